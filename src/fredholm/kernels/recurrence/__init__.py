"""Recurrences: causal kernels with a state along a sequence."""
