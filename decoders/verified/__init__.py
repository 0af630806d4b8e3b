"""Verified decoding: drafts of several tokens, of which those stay that the slow decoder would have written itself.

`lopa` compares states of a row in the same way and verifies nothing."""
