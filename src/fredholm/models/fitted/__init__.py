"""Models that are fitted to all training data in closed form, without gradient steps."""
