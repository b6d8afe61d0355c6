"""Attention along all chains of points: hops and their discounted series."""
