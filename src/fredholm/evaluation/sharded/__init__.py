"""Routes for signals of which each process holds a part, beside those that add up sums over the points."""
