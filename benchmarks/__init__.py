"""Benchmarks: ratios against peers measured in one run, each row after its own correctness gate."""
