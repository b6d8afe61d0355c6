"""The kernels against the dense oracle, in Triton's interpreter.

The interpreter must be chosen before triton is imported, and is then chosen for the whole process.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
ROOT = Path(__file__).resolve().parents[3]
SUITES = sorted((Path(__file__).parent / "interpreted").glob("test_*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("suite", SUITES, ids=lambda path: path.stem)
def test_in_the_interpreter(suite: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(suite)]
    done = subprocess.run(
        command, env={**os.environ, "TRITON_INTERPRET": "1"}, cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout
