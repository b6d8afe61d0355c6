"""Short real texts with a class: descriptions of software packages, and first lines of docstrings."""

import ast
import csv
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from benchmarks.first_runs.first_run import FirstRun, accuracy

SECTIONS = (
    *("admin", "database", "devel", "doc", "editors", "electronics", "fonts", "games", "graphics", "hamradio"),
    *("haskell", "httpd", "java", "javascript", "mail", "math", "net", "news", "ocaml", "perl", "php", "python"),
    *("ruby", "rust", "science", "sound", "text", "video", "web", "x11"),
)
NUM_SECTIONS, EACH_SECTION = 6, 500
NUM_MODULES, EACH_MODULE = 8, 150


def package_sections(folder: Path, seed: int) -> Path:
    """One-line descriptions of Debian packages, and their sections of the archive; see `descriptions`."""
    found = {name: texts for name, texts in descriptions().items() if name in SECTIONS}
    return _written(folder / "packages.csv", found, seed, NUM_SECTIONS, EACH_SECTION)


def descriptions() -> dict[str, set[str]]:
    """One-line descriptions of all Debian packages, by their section of the archive.

    Raises:
        ValueError: the machine has no lists of packages.
    """
    found: dict[str, set[str]] = {}
    for fields in packages():
        description = fields.get("Description") or fields.get("Description-en")
        if description and "Section" in fields:
            found.setdefault(fields["Section"], set()).add(description)
    return found


def packages() -> Iterator[dict[str, str]]:
    """The first line of each field for each Debian package.

    Raises:
        ValueError: the machine has no lists of packages.
    """
    if shutil.which("apt-cache") is None:
        raise ValueError("package descriptions come from apt-cache, which is missing; use a Debian system")
    listed = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, text=True, check=True).stdout
    for record in listed.split("\n\n"):
        yield dict(re.findall(r"^([\w-]+): *(.+)$", record, flags=re.MULTILINE))


def docstring_modules(folder: Path, seed: int) -> Path:
    """The first paragraphs of docstrings in Python's standard library, and their packages."""
    found: dict[str, set[str]] = {}
    for package, texts in docstrings().items():
        first = {" ".join(text.partition("\n\n")[0].split()) for text in texts}
        found[package] = {text for text in first if len(text.split()) >= 3}
    return _written(folder / "docstrings.csv", found, seed, NUM_MODULES, EACH_MODULE)


def docstrings() -> dict[str, list[str]]:
    """All docstrings of the standard library, in the order of its files, by package or top-level module."""
    root, found = Path(sysconfig.get_path("stdlib")), dict[str, list[str]]()
    for file in sorted(root.rglob("*.py")):
        package = file.relative_to(root).parts[0].removesuffix(".py")
        if package in ("site-packages", "test", "idlelib", "lib2to3", "__pycache__"):
            continue
        try:
            tree = ast.parse(file.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        docstrings = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, kinds))
        found.setdefault(package, []).extend(text for text in docstrings if text)
    return found


def _written(path: Path, found: Mapping[str, set[str]], seed: int, num_classes: int, each: int) -> Path:
    """A table of at most ``each`` texts of each of ``num_classes`` classes, drawn among the largest classes."""
    draw = np.random.default_rng(seed)
    large = sorted(found, key=lambda name: (-min(len(found[name]), each), name))
    large = [name for name in large if len(found[name]) >= each] or large[: 2 * num_classes]
    rows: list[Sequence[str]] = []
    for name in sorted(draw.permutation(large)[:num_classes].tolist()):
        rows += [(text, name) for text in draw.permutation(sorted(found[name]))[:each].tolist()]
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    return path


def texts(part: Any) -> tuple[list[str], np.ndarray]:
    """The texts of a set of sentences, and their classes."""
    return [sentence.first for sentence in part.sentences], part.answers.values.numpy()


PEERS = {
    "TF-IDF, logistic regression": accuracy(make_pipeline(TfidfVectorizer(), LogisticRegression(max_iter=1000)), texts),
    "the same, pairs of words too": accuracy(
        make_pipeline(
            TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), LogisticRegression(max_iter=1000, C=10.0)
        ),
        texts,
    ),
}

FIRST_RUNS = (
    FirstRun(
        name="package_sections",
        task="sentences",
        data="one line on Debian packages, 6 sections",
        make=package_sections,
        peers=PEERS,
    ),
    FirstRun(
        name="docstring_modules",
        task="sentences",
        data="first paragraphs of docstrings, 8 packages of Python",
        make=docstring_modules,
        peers=PEERS,
    ),
)
