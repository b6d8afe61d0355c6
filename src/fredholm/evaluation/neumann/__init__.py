"""Routes of hops and their series."""
