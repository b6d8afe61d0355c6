"""What the bare command of every task reaches on data made for this, beside what a user would try otherwise.

``python -m benchmarks.first_runs --list`` names the runs. One file for each task makes its data and states the peers.
"""

from benchmarks.first_runs.first_run import FirstRun, Peer, Row, measure, table

__all__ = ["FirstRun", "Peer", "Row", "measure", "table"]
