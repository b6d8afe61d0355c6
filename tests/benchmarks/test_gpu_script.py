"""`benchmarks/gpu.sh` and the table that it gathers, with a stand-in for Python that measures nothing."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gather import main
from benchmarks.harness import Options, Row
from benchmarks.harness.report import report_of
from tests.test_makefile import program

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
ROW = Row(case="exact", n=197, direction="forward", ours_s=0.02, per_second=1600.0)


def gpu(python: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(ROOT / "benchmarks/gpu.sh"), "--python", str(python), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
def test_failures_are_reported_and_the_rest_continues(tmp_path: Path) -> None:
    report_of("scan", [ROW], ["a note"], Options()).write_json(tmp_path / "canned.json")
    python = program(
        tmp_path / "stand-in",
        f"""
        case "$1 $2 $3" in
          "-c "* | "-m benchmarks.gather "*) exec "{sys.executable}" "$@" ;;
          "-m benchmarks itnet") echo no memory left; exit 3 ;;
          "-m benchmarks large_domains") cp "{tmp_path}/canned.json" "$7"; exit 124 ;;
          "-m benchmarks scan") cp "{tmp_path}/canned.json" "$7" ;;
        esac""",
    )
    done = gpu(python, "--out", str(tmp_path / "out"), "--device", "cpu")
    assert done.returncode == 1, done.stderr
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["log.txt", "table.json", "table.md"]
    table = (tmp_path / "out/table.md").read_text()
    lines = [line.split(" | ")[:2] for line in table.splitlines()]
    for name, outcome in {
        "tests": "done",
        "roofline": "done",
        "itnet": "failed with code 3, see log.txt",
        "large_domains": "stopped: out of time",
        "exact_mlp": "done",
        "scan": "done",
        "converted_layers": "done",
        "yat_attention": "done",
        "yat_dense": "done",
        "infinite_attention": "done",
        "linear_infinite_attention": "done",
        "neural_fields": "done",
        "infvit": "done",
        "graphs": "done",
        "one_kernel": "done",
        "continuous_convolution": "done",
    }.items():
        assert [f"| {name}", outcome] in lines
    assert "| exact | 197 | forward | 20.0 ms | 1600.0 |" in table
    assert table.count("- a note") == 2  # also after running out of time
    assert "no memory left" in (tmp_path / "out/log.txt").read_text()
    content = json.loads((tmp_path / "out/table.json").read_text())
    assert [report["benchmark"] for report in content["reports"]] == ["scan", "scan"]


@pytest.mark.slow
def test_every_benchmark_gets_the_options_device_json_and_quick(tmp_path: Path) -> None:
    python = program(
        tmp_path / "stand-in",
        f"""
        case "$1 $2" in
          "-c "* | "-m benchmarks.gather") exec "{sys.executable}" "$@" ;;
          *) echo "$*" >>"{tmp_path}/commands" ;;
        esac""",
    )
    done = gpu(python, "--out", str(tmp_path / "out"), "--device", "cuda", "--quick")
    assert done.returncode == 0, done.stderr
    commands = (tmp_path / "commands").read_text().splitlines()
    assert "pytest" in commands[0]
    names = ["tiles", "itnet", "training_step", "roofline", "exact_mlp", "large_domains", "scan", "converted_layers"]
    names += [
        "yat_attention",
        "yat_dense",
        "infinite_attention",
        "linear_infinite_attention",
        "neural_fields",
        "infvit",
        "graphs",
    ]
    names += ["one_kernel", "continuous_convolution"]
    assert [command.split()[2] for command in commands[1:]] == names
    for command in commands[1:]:
        assert "--device cuda --json /" in command
        assert " --quick " in command


@pytest.mark.parametrize(
    ("script", "options", "expected"),
    [("echo torch tyro", [], "lacks torch tyro; install them"), ("", ["--gpu"], "no option --gpu")],
)
def test_errors_in_options_are_reported(tmp_path: Path, script: str, options: list[str], expected: str) -> None:
    done = gpu(program(tmp_path / "stand-in", script), "--out", str(tmp_path / "out"), *options)
    assert done.returncode == 2
    assert expected in done.stderr


def test_a_missing_python_is_reported(tmp_path: Path) -> None:
    done = gpu(tmp_path / "nowhere", "--out", str(tmp_path / "out"))
    assert done.returncode == 2
    assert "there is no such python" in done.stderr


def test_missing_reports_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(tmp_path, tmp_path) == 2
    assert "neither steps nor reports" in capsys.readouterr().err
