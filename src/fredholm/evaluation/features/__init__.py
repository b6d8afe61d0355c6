"""Routes of kernels that factor through features of one point."""
