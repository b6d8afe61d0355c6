"""Benchmarks: ratios against peers measured in the same run, each row behind a correctness gate."""
