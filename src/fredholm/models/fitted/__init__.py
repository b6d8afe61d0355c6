"""Models that are computed from all training data, and not learnt in steps."""
