"""The behaviour of `make` on other machines, simulated by stand-ins for python3 and nvidia-smi."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The files that the Makefile's setup reads, in a folder with a space in its name."""
    folder = tmp_path / "a folder"
    folder.mkdir()
    for name in ("Makefile", "pyproject.toml", "constraints-cpu.txt"):
        shutil.copy(ROOT / name, folder)
    return folder


def program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def make(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PATH": f"{checkout / 'tools'}:{os.environ['PATH']}"}
    for name in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS"):  # this suite may itself run under make
        environment.pop(name, None)
    command = ["make", *arguments]
    return subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)


def test_a_missing_or_old_python_is_reported(checkout: Path) -> None:
    program(checkout / "tools/old-python", f'exec "{sys.executable}" -c "import sys; sys.version_info = (3, 10); $2"')
    for name in ("no-such-python", "old-python"):
        done = make(checkout, "demo", f"PYTHON={name}")
        assert done.returncode != 0
        assert f"{name} is missing or older than Python 3.11" in done.stderr
        assert not (checkout / ".venv").exists()


def test_a_python_without_venv_is_reported(checkout: Path) -> None:
    program(checkout / "tools/bare-python", 'case "$2" in *ensurepip*) exit 1;; esac')
    done = make(checkout, "test", "PYTHON=bare-python")
    assert done.returncode != 0
    assert "apt install python3-venv" in done.stderr
    assert not (checkout / ".venv").exists()


@pytest.mark.parametrize(("gpu", "pinned"), [("exit 1", True), ("exit 0", False)])
def test_only_a_machine_without_gpu_is_pinned_to_the_cpu_build(checkout: Path, gpu: str, pinned: bool) -> None:
    program(checkout / "tools/nvidia-smi", gpu)
    program(checkout / ".venv/bin/python", 'echo "$@"')
    (checkout / ".venv/.stamp-venv").touch()
    done = make(checkout, ".venv/.stamp-demo")
    assert done.returncode == 0, done.stderr
    assert "--editable .[train,data,augment,report]" in done.stdout
    assert ("--constraint constraints-cpu.txt" in done.stdout) == pinned


def test_setup_is_redone_only_when_its_inputs_change(checkout: Path) -> None:
    program(checkout / ".venv/bin/python", "echo installed")
    (checkout / ".venv/.stamp-venv").touch()
    assert "installed" in make(checkout, ".venv/.stamp-dev").stdout
    assert "installed" not in make(checkout, ".venv/.stamp-dev").stdout
    os.utime(checkout / "pyproject.toml", (2**31, 2**31))
    assert "installed" in make(checkout, ".venv/.stamp-dev").stdout


def test_a_failed_setup_leaves_no_stamp(checkout: Path) -> None:
    program(checkout / ".venv/bin/python", "exit 1")
    (checkout / ".venv/.stamp-venv").touch()
    assert make(checkout, ".venv/.stamp-dev").returncode != 0
    assert not (checkout / ".venv/.stamp-dev").exists()
