"""Models of functions on a domain."""
