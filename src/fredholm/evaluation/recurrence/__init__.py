"""Linear recurrences, parallel over chunks of time."""
