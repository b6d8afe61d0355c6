"""Splits of examples into training, validation and test parts."""
