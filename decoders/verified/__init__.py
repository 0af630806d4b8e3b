"""Verified decoding: drafts of several tokens, of which those stay that the slow decoder would have written itself."""
