"""Models of whole graphs and of nodes."""
