"""Frames: the location, size and orientation of a set of samples."""
