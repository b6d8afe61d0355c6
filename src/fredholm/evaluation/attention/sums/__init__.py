"""Sums of values whose densities come from Yat scores, tile by tile, forward and backward."""
