"""Serialisation of values, tensors and files, shared by everything that is saved."""

__all__: list[str] = []
