"""Frames: where a set of samples lies, how large it is, and how it is turned."""
