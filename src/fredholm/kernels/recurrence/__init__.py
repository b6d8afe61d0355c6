"""Causal kernels that are carried along a sequence in a state."""
