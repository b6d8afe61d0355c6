"""Tables of numbers, categories and texts: what Debian's lists say of packages."""

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, hstack
from sklearn.datasets import make_friedman1
from sklearn.decomposition import TruncatedSVD
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

from benchmarks.first_runs.first_run import FirstRun
from benchmarks.first_runs.sentences import SECTIONS, packages

NUM_ROWS = 3_000
NUM_SECTIONS, EACH_SECTION = 12, 150
DIRECTIONS = 50
"""Of texts, for boosted trees."""


def package_sizes(folder: Path, seed: int) -> Path:
    """Packages, and the binary logarithm of the kilobytes that each takes."""
    rows = list(_rows())
    drawn = np.random.default_rng(seed).permutation(len(rows))[:NUM_ROWS]
    return _written(folder / "sizes.csv", [{**rows[i], "target": rows[i]["size"]} for i in drawn], ("size",))


def package_kinds(folder: Path, seed: int) -> Path:
    """Packages, and the section of the archive that each is in."""
    draw, by_section = np.random.default_rng(seed), dict[str, list[dict[str, Any]]]()
    for row in _rows():
        by_section.setdefault(row["section"], []).append(row)
    large = sorted(name for name in SECTIONS if len(by_section.get(name, ())) >= EACH_SECTION)
    found: list[dict[str, Any]] = []
    for name in draw.permutation(large)[:NUM_SECTIONS].tolist():
        of = by_section[name]
        found += [{**of[i], "label": name} for i in draw.permutation(len(of))[:EACH_SECTION]]
    return _written(folder / "kinds.csv", found, ("section",))


def smooth_function(folder: Path, seed: int) -> Path:
    """Friedman's first function of ten numbers, of which five matter, with noise of deviation 1."""
    x, y = make_friedman1(600, noise=1.0, random_state=seed)
    return _of_numbers(folder / "smooth.csv", x, "target", y.round(4))


def thresholds(folder: Path, seed: int) -> Path:
    """Twelve numbers, and whether some of them are above thresholds; one answer in twenty is wrong."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(1_200, 12))
    told = ((x[:, 0] > 0.3) & (x[:, 1] < 0.5)) | (x[:, 2] > 1)
    return _of_numbers(folder / "thresholds.csv", x, "label", (told ^ (draw.random(len(x)) < 0.05)).astype(int))


def _of_numbers(path: Path, x: np.ndarray, name: str, y: np.ndarray) -> Path:
    rows: list[dict[str, Any]] = []
    for row, told in zip(x.round(4).tolist(), y.tolist(), strict=True):
        rows.append({**{f"x{k}": value for k, value in enumerate(row)}, name: told})
    return _written(path, rows, ())


def _rows() -> Iterator[dict[str, Any]]:
    """What is said of each package that says how large it is."""
    for fields in packages():
        if "Installed-Size" not in fields or "Description" not in fields:
            continue
        depends = [
            re.split(r"[ (:|]", each.strip())[0] for each in fields.get("Depends", "").split(",") if each.strip()
        ]
        yield {
            "description": fields["Description"],
            "depends": " ".join(depends),
            "maintainer": fields["Maintainer"].partition("<")[0].strip(' "'),
            "architecture": fields["Architecture"],
            "section": fields.get("Section", "").rpartition("/")[2],
            "priority": fields.get("Priority", ""),
            "relations": sum(
                fields.get(name, "").count(",") + 1 for name in ("Suggests", "Recommends") if name in fields
            ),
            "depends_on": len(depends),
            "tags": fields["Tag"].count("::") if "Tag" in fields else "",
            "size": round(float(np.log2(1 + int(fields["Installed-Size"]))), 3),
        }


def _written(path: Path, rows: list[dict[str, Any]], without: tuple[str, ...]) -> Path:
    names = [name for name in rows[0] if name not in without]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return path


def _columns(task: Any, part: Any) -> tuple[np.ndarray, list[list[str]], list[list[str]]]:
    """Numbers `(n, F)`, NaN where one is missing, and the cells of categories and of texts, column by column."""
    facts, cells = task.facts, part.rows.cells
    numbers = [[float(cell or "nan") for cell in cells[column.name]] for column in facts.of("number")]
    categories, texts = ([list(cells[column.name]) for column in facts.of(kind)] for kind in ("category", "text"))
    return np.array(numbers).T.reshape(len(part), -1), categories, texts


def _boosted(task: Any, split: str) -> float:
    train, held_out = task.splits.train, task.held_out(split)
    found = [list[np.ndarray]() for _ in range(2)]
    given = [_columns(task, part) for part in (train, held_out)]
    for each, (numbers, _, _) in zip(found, given, strict=True):
        each.append(numbers)
    if given[0][1]:
        codes = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1).fit(np.array(given[0][1]).T)
        for each, (_, categories, _) in zip(found, given, strict=True):
            each.append(codes.transform(np.array(categories).T))
    for column, texts in enumerate(given[0][2]):
        read = make_pipeline(TfidfVectorizer(sublinear_tf=True), TruncatedSVD(DIRECTIONS, random_state=0)).fit(texts)
        for each, (_, _, of) in zip(found, given, strict=True):
            each.append(read.transform(of[column]))
    make = HistGradientBoostingClassifier if train.answers.kind == "class" else HistGradientBoostingRegressor
    learnt, asked = (np.hstack(each) for each in found)
    return _measured(make(random_state=0), learnt, asked, train, held_out)


def _linear(task: Any, split: str) -> float:
    train, held_out = task.splits.train, task.held_out(split)
    given = [_columns(task, part) for part in (train, held_out)]
    scale = make_pipeline(SimpleImputer(), StandardScaler()).fit(given[0][0])
    found: list[list[Any]] = [[csr_matrix(scale.transform(numbers))] for numbers, _, _ in given]
    if given[0][1]:
        codes = OneHotEncoder(handle_unknown="ignore").fit(np.array(given[0][1]).T)
        for each, (_, categories, _) in zip(found, given, strict=True):
            each.append(codes.transform(np.array(categories).T))
    for column, texts in enumerate(given[0][2]):
        read = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True).fit(texts)
        for each, (_, _, of) in zip(found, given, strict=True):
            each.append(read.transform(of[column]))
    model = LogisticRegression(C=10.0, max_iter=1000) if train.answers.kind == "class" else Ridge()
    learnt, asked = (hstack(each).tocsr() for each in found)
    return _measured(model, learnt, asked, train, held_out)


def _forest(task: Any, split: str) -> float:
    train, held_out = task.splits.train, task.held_out(split)
    make = RandomForestClassifier if train.answers.kind == "class" else RandomForestRegressor
    learnt, asked = (_columns(task, part)[0] for part in (train, held_out))
    return _measured(make(500, random_state=0), learnt, asked, train, held_out)


def _measured(model: Any, learnt: Any, asked: Any, train: Any, held_out: Any) -> float:
    """Accuracy, or the mean absolute error."""
    wanted = [part.answers.values.numpy().reshape(len(part)) for part in (train, held_out)]
    told = model.fit(learnt, wanted[0]).predict(asked)
    return float((told == wanted[1]).mean() if train.answers.kind == "class" else np.abs(told - wanted[1]).mean())


PEERS = {"boosted trees, texts in 50 directions": _boosted, "linear, TF-IDF of pairs of words": _linear}
PEERS_OF_NUMBERS = {"boosted trees": _boosted, "random forest": _forest, "linear": _linear}

FIRST_RUNS = (
    FirstRun(
        name="package_sizes",
        task="table",
        data="nine columns on Debian packages, and the logarithm of their size",
        make=package_sizes,
        peers=PEERS,
    ),
    FirstRun(
        name="package_kinds",
        task="table",
        data="nine columns on Debian packages, 12 sections",
        make=package_kinds,
        peers=PEERS,
    ),
    FirstRun(
        name="smooth_function",
        task="table",
        data="Friedman's function of ten numbers, with noise",
        make=smooth_function,
        peers=PEERS_OF_NUMBERS,
    ),
    FirstRun(
        name="thresholds",
        task="table",
        data="twelve numbers, three of which are above thresholds or not",
        make=thresholds,
        peers=PEERS_OF_NUMBERS,
    ),
)
