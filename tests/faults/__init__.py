"""Fault injection: kills, damaged folders, hostile files, extreme numbers and hostile environments of a run.

Each driver takes how many faults to try and a seed, and returns a list of `Outcome`. ``python -m tests.faults`` runs
them all and prints the table of docs/reliability.md; quick parts of each are tests beside it.
"""
