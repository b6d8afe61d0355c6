"""Values, tensors and files: what everything that is saved is written with."""

__all__: list[str] = []
