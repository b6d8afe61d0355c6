"""Routes for sharded signals, beyond those that only need sums over all points."""
