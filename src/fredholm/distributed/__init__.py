"""One model over many processes, and one signal over many devices."""
