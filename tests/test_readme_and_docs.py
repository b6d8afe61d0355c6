"""The Python of the README and of every page runs, links resolve, and quoted names and commands exist."""

import importlib
import inspect
import itertools
import re
import shlex
import subprocess
import traceback
from pathlib import Path

import pytest
import torch
from torch.distributed import run as torchrun

import fredholm
from fredholm import cli
from fredholm.training.recipes import list_recipes

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(p for p in (ROOT / "docs").rglob("*.md") if "_build" not in p.parts)])
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")


def blocks(page: Path, language: str) -> list[tuple[int, str]]:
    """(number of its first line, text) of every fenced block in a language."""
    text = page.read_text()
    return [(text.count("\n", 0, m.start(2)) + 1, m[2]) for m in BLOCK.finditer(text) if m[1] == language]


def pages_with(language: str, slow: tuple[str, ...] = ()) -> list[object]:
    """A test case for every page with fenced blocks in the language."""
    return [
        pytest.param(page, id=str(page.relative_to(ROOT)), marks=[pytest.mark.slow] if page.stem in slow else [])
        for page in PAGES
        if blocks(page, language)
    ]


SLOW = (
    *("analysis", "ckcnn", "compare", "compare_routes", "estimators", "export", "filter_bank", "operator", "points"),
    *("report", "segmentation", "training"),
)


def first_error(page: Path) -> str | None:
    """The traceback of the first error of a page's Python, run top to bottom in one namespace, as a reader types it."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    for line, source in blocks(page, "python"):
        padded = "\n" * (line - 1) + source  # so that a traceback names the line of the page
        try:
            exec(compile(padded, str(page), "exec"), namespace)
        except Exception:
            return traceback.format_exc()
    return None


@pytest.mark.usefixtures("few_rates", "quick_choices")
@pytest.mark.parametrize("page", pages_with("python", SLOW))
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    assert (error := first_error(page)) is None, error


def test_an_error_of_a_page_is_reported_with_its_line(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n```python\nx = 1\n```\n\n```python\nx += 1\nassert x == 1\n```\n")
    error = first_error(page)
    assert error is not None
    assert f'File "{page}", line 9' in error
    assert "AssertionError" in error


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES])
def test_links_resolve(page: Path) -> None:
    targets = [t for t in LINK.findall(page.read_text()) if "://" not in t]
    assert [t for t in targets if not (page.parent / t).exists()] == []


PACKAGES = sorted(place.name for place in Path(fredholm.__file__).parent.iterdir() if (place / "__init__.py").is_file())
NAME = re.compile(rf"`((?:fredholm|{'|'.join(PACKAGES)})(?:\.\w+)+)(?:\(((?:\w+=(?:, )?)*)\))?`")


def quoted_names() -> list[object]:
    """A test case for every page that quotes dotted names of the library, perhaps with arguments as in (a=, b=)."""
    found = {page: NAME.findall(page.read_text()) for page in PAGES}
    return [pytest.param(names, id=str(page.relative_to(ROOT))) for page, names in found.items() if names]


def named(dotted: str) -> object:
    """The object of a dotted name, with or without the prefix `fredholm.`."""
    first, *rest = dotted.removeprefix("fredholm.").split(".")
    found = getattr(fredholm, first, None) or importlib.import_module(f"fredholm.{first}")
    for name in rest:
        try:
            found = getattr(found, name)
        except AttributeError:
            assert inspect.ismodule(found), f"{dotted} does not exist"
            found = importlib.import_module(f"{found.__name__}.{name}")
    return found


@pytest.mark.parametrize("names", quoted_names())
def test_quoted_names_exist(names: list[tuple[str, str]]) -> None:
    for dotted, arguments in names:
        found = named(dotted)
        if arguments:
            assert callable(found)
            quoted = set(re.findall(r"(\w+)=", arguments))
            assert quoted <= inspect.signature(found).parameters.keys(), dotted


def test_pages_of_papers_quote_names_and_recipes_that_exist() -> None:
    papers = ROOT / "docs" / "papers"
    for page in ("itnet", "yat", "ckconv", "infsa", "fields"):
        text = (papers / f"{page}.md").read_text()
        assert len(NAME.findall(text)) >= 20
        assert all((ROOT / file).is_file() for file in re.findall(r"`(recipes/\w+\.py)`", text))
        sentences = re.findall(r"the recipes? ((?:`\w+`,? ?)+)", text)
        recipes = {name for sentence in sentences for name in re.findall(r"`(\w+)`", sentence)}
        assert recipes <= list_recipes().keys()


@pytest.mark.parametrize("page", pages_with("console"))
def test_quoted_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([\w.-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    quoted = {
        target for _, text in blocks(page, "console") for target in re.findall(r"^\$ make ([\w-]+)", text, re.MULTILINE)
    }
    assert quoted <= targets


@pytest.mark.parametrize("page", pages_with("bash"))
def test_the_shell_parses_scripts(page: Path) -> None:
    for line, text in blocks(page, "bash"):
        done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), f"{page}:{line}"


@pytest.mark.parametrize("page", pages_with("yaml"))
def test_manifests_are_kubernetes_objects(page: Path) -> None:
    yaml = pytest.importorskip("yaml")
    for line, text in blocks(page, "yaml"):
        for each in yaml.safe_load_all(text):
            assert {"apiVersion", "kind", "metadata"} <= each.keys(), f"{page}:{line}"
            for container in each["spec"].get("template", {}).get("spec", {}).get("containers", []):
                assert all(isinstance(word, str) for word in container["command"])


@pytest.mark.parametrize("page", [ROOT / "docs" / "processes.md"])
def test_torchrun_parses_quoted_launches(page: Path) -> None:
    """Launches in shell blocks and manifests, up to the arguments of `fredholm`."""
    texts = [text for kind in ("bash", "console", "yaml") for _, text in blocks(page, kind)]
    launches = [
        launch for text in texts for launch in re.findall(r"torchrun\b(.*?)-m\s+(?:- )?fredholm", text, re.DOTALL)
    ]
    assert len(launches) == 3
    for launch in launches:
        words = shlex.split(re.sub(r"^\s*- ", " ", launch.replace("\\\n", " "), flags=re.MULTILINE))
        words = ["1" if word.startswith("$SLURM_NNODES") else word for word in words if word != "-"]
        assert torchrun.parse_args([*words, "-m", "fredholm"]).module


KIND = re.compile(r"--task\.model(\.stack)?(\.kernel(\.\w+)?)?")
"""An option that chooses the kind of a part of a model."""


def quoted_options() -> list[object]:
    """One test case for each quoted `fredholm` command: its words up to the recipe's name with the kinds of its parts,
    which decide the available options, and all options that the pages quote with it."""
    cases: dict[tuple[str, ...], set[str]] = {}
    for page in PAGES:
        for _, text in blocks(page, "console"):
            for command in re.findall(r"^\$ fredholm (.*)$", text, re.MULTILINE):
                words = shlex.split(command, comments=True)
                named = words[0] == "train" and ":" not in words[1]  # a reader's own file does not exist here
                named = named or (words[0] == "compare" and len(words) > 1)
                options = {word.partition("=")[0] for word in words if word.startswith("--")}
                kinds = [pair for pair in itertools.pairwise(words) if KIND.fullmatch(pair[0])]
                start = (*words[: 2 if named else 1], *itertools.chain(*kinds))
                cases.setdefault(start, set()).update(options)
    return [pytest.param(words, options, id=" ".join(words)) for words, options in sorted(cases.items())]


@pytest.mark.parametrize(("words", "options"), quoted_options())
def test_quoted_commands_exist(words: tuple[str, ...], options: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*words, "--help"]) == 0
    help_text = capsys.readouterr().out
    assert [option for option in sorted(options) if option not in help_text] == []
