"""The command `python -m benchmarks`: its list, its errors, and the output of a run."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import BENCHMARKS, main
from benchmarks.harness import GateError

ROOT = Path(__file__).parents[2]
NAMES = [benchmark.name for benchmark in BENCHMARKS]
ON_A_GPU = ("tiles",)
"""Benchmarks with nothing to measure on a CPU."""
SHORT = ("scan", "exact_mlp", "generation")
"""Short runs; all others have test files of their own."""
FEWER: dict[str, list[str]] = {
    "exact_mlp": ["--cases", "grid"],
    "converted_layers": ["--cases", "LSTM", "Conv2d"],
    "large_domains": ["--cases", "grid", "shared samples", "low rank"],
    "itnet": ["--cases", "exact", "low rank 2"],
    "yat_dense": ["--cases", "YatDense"],
    "roofline": ["--cases", "exact, grid", "softmax attention"],
    "graphs": ["--cases", "graph attention", "low rank"],
}


def test_the_list_names_every_benchmark_with_its_purpose(capsys):
    assert main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(maxsplit=1) for line in lines] == [[b.name, b.purpose] for b in BENCHMARKS]
    assert len(set(NAMES)) == len(NAMES)


def test_a_missing_name_prints_the_usage(capsys):
    assert main([]) == 2
    assert "usage: python -m benchmarks" in capsys.readouterr().out


@pytest.mark.parametrize("name", NAMES)
def test_every_benchmark_has_the_common_options(name, capsys):
    with pytest.raises(SystemExit, match="0"):
        main([name, "--help"])
    printed = capsys.readouterr().out
    for option in ("--json", "--device", "--quick", "--seed", "--rounds", "--budget-s", "--threads"):
        assert option in printed


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["scann"], "no benchmark 'scann'"),
        (["scan", "--device", "cuda:99"], "PyTorch sees"),
        (["exact_mlp", "--cases", "grid bf16"], "measured against 'grid'"),
        (["tiles", "--quick"], "tiles are those of kernels on a GPU"),
        (["roofline", "--points", "50"], "points must be a square number; got 50"),
    ],
)
def test_errors_take_one_line(argv, message, capsys):
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert error.count("\n") == 1


def test_a_failed_gate_has_its_own_exit_code(monkeypatch, capsys):
    def disagree(*_: object, **__: object) -> None:
        raise GateError("selective scan against plain loop: relative error")

    monkeypatch.setattr("benchmarks.scan.compare", disagree)
    assert main(["scan", "--quick"]) == 1
    assert "error: selective scan against plain loop" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("in_one_process")
@pytest.mark.parametrize(
    "name",
    [name if name in SHORT else pytest.param(name, marks=pytest.mark.long) for name in NAMES if name not in ON_A_GPU],
)
def test_a_quick_run_prints_a_table_and_writes_the_same_rows(name, tmp_path, capsys):
    path = tmp_path / "rows.json"
    assert main([name, "--quick", "--threads", "1", "--json", str(path), *FEWER.get(name, [])]) == 0
    check_report(name, path, capsys.readouterr().out)


@pytest.mark.long
def test_the_command_measures_memory_in_separate_processes(tmp_path):
    path = tmp_path / "rows.json"
    command = [sys.executable, "-m", "benchmarks", "scan", "--quick", "--threads", "1", "--json", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    check_report("scan", path, done.stdout)


def check_report(name: str, path: Path, printed: str) -> None:
    """Checks that the printed table and the written report agree."""
    report = json.loads(path.read_text())
    assert report["benchmark"] == name
    assert report["threads"] == 1
    assert report["rows"]
    table = [line.split(" | ")[:3] for line in printed.splitlines() if line.startswith("| ")][2:]
    assert table == [[f"| {row['case']}", str(row["n"]), row["direction"]] for row in report["rows"]]
    assert [line[2:] for line in printed.splitlines() if line.startswith("- ")] == report["notes"]
