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
SIZES = [suite for suite in SUITES if suite.stem == "test_sizes"]
OTHERS = [suite for suite in SUITES if suite not in SIZES]


@pytest.mark.slow
@pytest.mark.parametrize(
    "share",
    [OTHERS[::2], OTHERS[1::2], pytest.param(SIZES, marks=pytest.mark.long)],
    ids=["one half", "the other", "more than one tile"],
)
def test_in_the_interpreter(share: list[Path]) -> None:
    """Two processes: each begins with seconds of imports."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *map(str, share)]
    done = subprocess.run(
        command, env={**os.environ, "TRITON_INTERPRET": "1"}, cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout
