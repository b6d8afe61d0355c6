"""The kernels compared with the dense oracle in Triton's interpreter.

The interpreter is selected when triton is imported, for the whole process, so these tests run in a separate one.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
ROOT = Path(__file__).resolve().parents[3]
SUITES = sorted((Path(__file__).parent / "interpreted").glob("test_*.py"))
ALWAYS = [suite for suite in SUITES if suite.stem in ("test_instances", "test_fused_activation", "test_offsets")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("suites", "marks"),
    [(ALWAYS, "not long"), pytest.param(SUITES, "", marks=pytest.mark.long)],
    ids=["every kernel on some domains", "all"],
)
def test_in_the_interpreter(suites: list[Path], marks: str) -> None:
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", marks]
    command = [sys.executable, "-m", "pytest", *options, *map(str, suites)]
    done = subprocess.run(
        command, env={**os.environ, "TRITON_INTERPRET": "1"}, cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout
