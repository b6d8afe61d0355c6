"""The Python of the README and of every page runs, links lead somewhere, and quoted commands exist."""

import re
import shlex
from pathlib import Path

import pytest
import torch

from fredholm import cli

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(p for p in (ROOT / "docs").rglob("*.md") if "_build" not in p.parts)])
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")


def blocks(page: Path, language: str) -> list[tuple[int, str]]:
    """(line of its first line, text) of every fenced block of the language."""
    text = page.read_text()
    return [(text.count("\n", 0, m.start(2)) + 1, m[2]) for m in BLOCK.finditer(text) if m[1] == language]


def pages_with(language: str) -> list[object]:
    return [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES if blocks(page, language)]


@pytest.mark.parametrize("page", pages_with("python"))
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Top to bottom in one namespace, as a reader would type them."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for line, source in blocks(page, "python"):
        padded = "\n" * (line - 1) + source  # a traceback then names the line of the page
        exec(compile(padded, str(page), "exec"), namespace)


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES])
def test_links_lead_somewhere(page: Path) -> None:
    targets = [t for t in LINK.findall(page.read_text()) if "://" not in t]
    assert [t for t in targets if not (page.parent / t).exists()] == []


@pytest.mark.parametrize("page", pages_with("console"))
def test_quoted_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([\w.-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    quoted = {
        target for _, text in blocks(page, "console") for target in re.findall(r"^\$ make ([\w-]+)", text, re.MULTILINE)
    }
    assert quoted <= targets


def quoted_options() -> list[object]:
    """One case for every `fredholm` command quoted: its words up to a recipe's name, and all options quoted with it."""
    cases: dict[tuple[str, ...], set[str]] = {}
    for page in PAGES:
        for _, text in blocks(page, "console"):
            for command in re.findall(r"^\$ fredholm (.*)$", text, re.MULTILINE):
                words = shlex.split(command, comments=True)
                named = words[0] == "train" and ":" not in words[1]  # a reader's own file is not here
                options = {word.partition("=")[0] for word in words if word.startswith("--")}
                cases.setdefault(tuple(words[:2] if named else words[:1]), set()).update(options)
    return [pytest.param(words, options, id=" ".join(words)) for words, options in sorted(cases.items())]


@pytest.mark.parametrize(("words", "options"), quoted_options())
def test_quoted_commands_exist(words: tuple[str, ...], options: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*words, "--help"]) == 0
    help_text = capsys.readouterr().out
    assert [option for option in sorted(options) if option not in help_text] == []
