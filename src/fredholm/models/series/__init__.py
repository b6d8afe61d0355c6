"""Models of time series, and how such models are built."""
