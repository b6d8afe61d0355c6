"""A number for each pair of points and each head, times a value matrix: attention in all its forms."""
