"""Data, loss and metric of one kind of problem each."""
