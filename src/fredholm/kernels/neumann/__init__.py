"""Infinite attention: hops, and their discounted series over all chains of points."""
