"""Routes of attention: fused, in tiles of scores, and with sums over the keys first."""
