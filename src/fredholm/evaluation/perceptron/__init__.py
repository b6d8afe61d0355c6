"""Exact routes of perceptrons of two points, in tiles."""
