"""Integrals of functions of the displacement: torch's convolution, transforms, and tiles."""
