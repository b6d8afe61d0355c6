"""Routes of recurrences: torch's own cells, scans that are parallel over time, and long convolutions."""
