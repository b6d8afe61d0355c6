"""Shared suites that every kernel, evaluation route, model and task must pass, with their oracles."""
