"""Exact integrals of perceptrons of two points, in tiles."""
