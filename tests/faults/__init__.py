"""Fault injection: kills, damaged folders, hostile files, extreme numbers and hostile environments.

Each driver takes a number of faults to try and a seed, and returns a list of `Outcome`. ``python -m tests.faults``
runs them all and prints the table of docs/reliability.md; the tests in this folder run a small part of each.
"""
