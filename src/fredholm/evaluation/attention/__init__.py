"""Integrals of attention: fused, in tiles of scores, and by sums over the keys first."""
