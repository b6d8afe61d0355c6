"""Perceptrons of two points: whole, of low rank, separable."""
