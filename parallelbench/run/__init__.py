"""Decoding one run: requests to a generator, records to its directory, by one process or several."""
