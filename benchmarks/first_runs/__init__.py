"""Results of the bare command of every task on generated data, against what a user would try otherwise.

``python -m benchmarks.first_runs --list`` names the runs. One file per task generates its data and defines the peers.
"""

from benchmarks.first_runs.first_run import FirstRun, Peer, Row, measure, table

__all__ = ["FirstRun", "Peer", "Row", "measure", "table"]
