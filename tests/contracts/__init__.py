"""Suites that every kernel and every evaluation must pass: give them an object and its oracle, they do the rest."""
