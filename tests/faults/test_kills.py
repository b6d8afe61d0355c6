"""A few kills of every kind, in a process that can fork: the whole number is `make faults`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("driver", ["kills", "environment"])
def test_a_few_faults_end_as_promised(driver: str) -> None:
    command = [sys.executable, "-m", "tests.faults", "--quick", driver]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = [line.split("|")[1:-1] for line in done.stdout.splitlines()[2:]]
    assert len(rows) >= 5
    assert all(int(tried.replace(",", "")) > 0 and int(broken) == 0 for _, tried, _, broken in rows)
