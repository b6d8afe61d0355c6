"""Attention in all its forms: one number per pair of points and head, times a value matrix."""
