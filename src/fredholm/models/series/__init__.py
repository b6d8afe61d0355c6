"""Models of time series, and the interface of their configurations."""
