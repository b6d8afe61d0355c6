"""What every reader of data shares: where files lie, what is read of them, how much, and what is said of bad ones."""
