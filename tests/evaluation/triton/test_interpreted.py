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
PERCEPTRON = [suite for suite in SUITES if suite.stem in ("test_fused_op", "test_fused_route")]
FEATURES = [suite for suite in SUITES if suite.stem == "test_fused_features"]
OTHERS = [suite for suite in SUITES if suite not in (*PERCEPTRON, *FEATURES) and suite.stem != "test_sizes"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("suites", "marks"),
    [
        (PERCEPTRON, "not long"),
        (FEATURES, "not long"),
        (OTHERS, "not long"),
        pytest.param(SUITES, "long", marks=pytest.mark.long),
    ],
    ids=["perceptron", "features", "the others", "what is long"],
)
def test_in_the_interpreter(suites: list[Path], marks: str) -> None:
    """Three processes, no more: each begins with seconds of imports."""
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", marks]
    command = [sys.executable, "-m", "pytest", *options, *map(str, suites)]
    done = subprocess.run(
        command, env={**os.environ, "TRITON_INTERPRET": "1"}, cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout
