"""Routes of kernels of the displacement: torch's convolution, Fourier transforms, and tiles."""
