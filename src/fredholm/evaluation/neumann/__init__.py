"""Integrals of hops and of their series."""
