"""Tables of numbers, categories, texts and images: Debian's lists of packages, and pictures with numbers."""

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from PIL import Image
from scipy.sparse import csr_matrix, hstack
from sklearn.datasets import load_digits, make_friedman1
from sklearn.decomposition import PCA, TruncatedSVD
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
from sklearn.svm import SVC, SVR

from benchmarks.first_runs.first_run import FirstRun
from benchmarks.first_runs.sentences import SECTIONS, packages

NUM_ROWS = 3_000
NUM_SECTIONS, EACH_SECTION = 12, 150
DIRECTIONS = 50
"""Principal directions of texts and of pixels, as features for trees."""


def package_sizes(folder: Path, seed: int) -> Path:
    """Packages, and the binary logarithm of their installed size in kilobytes."""
    rows = list(_rows())
    drawn = np.random.default_rng(seed).permutation(len(rows))[:NUM_ROWS]
    return _written(folder / "sizes.csv", [{**rows[i], "target": rows[i]["size"]} for i in drawn], ("size",))


def package_kinds(folder: Path, seed: int) -> Path:
    """Packages, and their section of the archive."""
    draw, by_section = np.random.default_rng(seed), dict[str, list[dict[str, Any]]]()
    for row in _rows():
        by_section.setdefault(row["section"], []).append(row)
    large = sorted(name for name in SECTIONS if len(by_section.get(name, ())) >= EACH_SECTION)
    found: list[dict[str, Any]] = []
    for name in draw.permutation(large)[:NUM_SECTIONS].tolist():
        members = by_section[name]
        found += [{**members[i], "label": name} for i in draw.permutation(len(members))[:EACH_SECTION]]
    return _written(folder / "kinds.csv", found, ("section",))


def smooth_function(folder: Path, seed: int) -> Path:
    """Friedman's first function of ten numbers, of which five matter, with noise of deviation 1."""
    x, y = make_friedman1(600, noise=1.0, random_state=seed)
    return _of_numbers(folder / "smooth.csv", x, "target", y.round(4))


def thresholds(folder: Path, seed: int) -> Path:
    """Twelve numbers, and whether some of them exceed thresholds; one label in twenty is wrong."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(1_200, 12))
    label = ((x[:, 0] > 0.3) & (x[:, 1] < 0.5)) | (x[:, 2] > 1)
    return _of_numbers(folder / "thresholds.csv", x, "label", (label ^ (draw.random(len(x)) < 0.05)).astype(int))


def scanned_prices(folder: Path, seed: int) -> Path:
    """Scans of digits, one in ten missing, with a shop and a size; the shop scales the digit's part of the price."""
    draw, digits = np.random.default_rng(seed), cast(Any, load_digits())
    rows: list[dict[str, Any]] = []
    for number, i in enumerate(draw.permutation(len(digits.images))[:1_000].tolist()):
        shop, size, scan = int(draw.integers(3)), float(draw.gamma(2.0, 2.0)), f"{number}.png"
        Image.fromarray((digits.images[i] * 255 / 16).astype(np.uint8)).save(folder / scan)
        price = int(digits.target[i]) * (1 + shop) + 2 * size + float(draw.normal(0, 0.5))
        is_there = draw.random() > 0.1
        rows.append({"scan": scan if is_there else "", "shop": "abc"[shop], "size": round(size, 3), "price": price})
    return _written(folder / "prices.csv", [{**row, "target": round(row["price"], 3)} for row in rows], ("price",))


def stripes_and_signs(folder: Path, seed: int) -> Path:
    """Noisy pictures with a stripe, and two numbers: whether it is upright, inverted if the first is above 0."""
    draw, rows = np.random.default_rng(seed), list[dict[str, Any]]()
    for number in range(600):
        pixels, is_upright, place = draw.normal(100, 30, (16, 16)), bool(draw.integers(2)), int(draw.integers(2, 14))
        pixels[(slice(None), place) if is_upright else place] += 120
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{number}.png")
        x, other = draw.normal(size=2).round(4).tolist()
        rows.append({"photo": f"{number}.png", "x": x, "other": other, "label": int(is_upright ^ (x > 0))})
    return _written(folder / "stripes.csv", rows, ())


def _of_numbers(path: Path, x: np.ndarray, name: str, y: np.ndarray) -> Path:
    rows: list[dict[str, Any]] = []
    for row, answer in zip(x.round(4).tolist(), y.tolist(), strict=True):
        rows.append({**{f"x{k}": value for k, value in enumerate(row)}, name: answer})
    return _written(path, rows, ())


def _rows() -> Iterator[dict[str, Any]]:
    """Columns of each package that lists its size and a description."""
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
    """Numbers `(n, F)` with NaN for missing ones, and the cells of categories and of texts, column by column."""
    facts, cells = task.facts, part.rows.cells
    numbers = [[float(cell or "nan") for cell in cells[column.name]] for column in facts.of("number")]
    categories, texts = ([list(cells[column.name]) for column in facts.of(kind)] for kind in ("category", "text"))
    return np.array(numbers).T.reshape(len(part), -1), categories, texts


def _boosted(task: Any, split: str) -> float:
    train, held_out = task.splits.train, task.held_out(split)
    found = [list[np.ndarray]() for _ in range(2)]
    columns = [_columns(task, part) for part in (train, held_out)]
    for each, (numbers, _, _) in zip(found, columns, strict=True):
        each.append(numbers)
    if columns[0][1]:
        codes = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1).fit(np.array(columns[0][1]).T)
        for each, (_, categories, _) in zip(found, columns, strict=True):
            each.append(codes.transform(np.array(categories).T))
    for column, texts in enumerate(columns[0][2]):
        read = make_pipeline(TfidfVectorizer(sublinear_tf=True), TruncatedSVD(DIRECTIONS, random_state=0)).fit(texts)
        for each, (_, _, of) in zip(found, columns, strict=True):
            each.append(read.transform(of[column]))
    make = HistGradientBoostingClassifier if train.answers.kind == "class" else HistGradientBoostingRegressor
    learnt, queries = (np.hstack(each) for each in found)
    return _measured(make(random_state=0), learnt, queries, train, held_out)


def _linear(task: Any, split: str) -> float:
    train, held_out = task.splits.train, task.held_out(split)
    columns = [_columns(task, part) for part in (train, held_out)]
    scale = make_pipeline(SimpleImputer(), StandardScaler()).fit(columns[0][0])
    found: list[list[Any]] = [[csr_matrix(scale.transform(numbers))] for numbers, _, _ in columns]
    if columns[0][1]:
        codes = OneHotEncoder(handle_unknown="ignore").fit(np.array(columns[0][1]).T)
        for each, (_, categories, _) in zip(found, columns, strict=True):
            each.append(codes.transform(np.array(categories).T))
    for column, texts in enumerate(columns[0][2]):
        read = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True).fit(texts)
        for each, (_, _, of) in zip(found, columns, strict=True):
            each.append(read.transform(of[column]))
    model = LogisticRegression(C=10.0, max_iter=1000) if train.answers.kind == "class" else Ridge()
    learnt, queries = (hstack(each).tocsr() for each in found)
    return _measured(model, learnt, queries, train, held_out)


def _forest(task: Any, split: str) -> float:
    train, held_out = task.splits.train, task.held_out(split)
    make = RandomForestClassifier if train.answers.kind == "class" else RandomForestRegressor
    learnt, queries = (_columns(task, part)[0] for part in (train, held_out))
    return _measured(make(500, random_state=0), learnt, queries, train, held_out)


def _on_pixels(task: Any, split: str, model: Any) -> float:
    """The metric of a model on numbers, one-hot categories, and pixels in 50 principal directions."""
    train, held_out = task.splits.train, task.held_out(split)
    everything = [torch.arange(len(part)) for part in (train, held_out)]
    batches = task.train_batch(everything[0], torch.Generator()), task.held_out_batch(split, everything[1])
    pixels = [batch["images"].flatten(1).float().numpy() for batch in batches]
    turn, found = PCA(DIRECTIONS, random_state=0).fit(pixels[0]), list[np.ndarray]()
    for batch, own in zip(batches, pixels, strict=True):
        levels = [
            (batch["categories"][:, [column]] == torch.arange(count)).float()
            for column, count in enumerate(task.table_reading().num_categories)
        ]
        others = torch.cat([batch["numbers"], batch["has_image"].float(), *levels], 1)
        found.append(np.hstack([others.numpy(), turn.transform(own)]))
    return _measured(model, found[0], found[1], train, held_out)


def _boosted_on_pixels(task: Any, split: str) -> float:
    is_class = task.splits.train.answers.kind == "class"
    make = HistGradientBoostingClassifier if is_class else HistGradientBoostingRegressor
    return _on_pixels(task, split, make(random_state=0))


def _forest_on_pixels(task: Any, split: str) -> float:
    is_class = task.splits.train.answers.kind == "class"
    return _on_pixels(task, split, (RandomForestClassifier if is_class else RandomForestRegressor)(500, random_state=0))


def _kernel_on_pixels(task: Any, split: str) -> float:
    machine = SVC(C=10.0) if task.splits.train.answers.kind == "class" else SVR(C=10.0)
    return _on_pixels(task, split, make_pipeline(StandardScaler(), machine))


def _measured(model: Any, learnt: Any, queries: Any, train: Any, held_out: Any) -> float:
    """Accuracy of a classifier, or mean absolute error of a regressor, on the held-out part."""
    targets = [part.answers.values.numpy().reshape(len(part)) for part in (train, held_out)]
    predicted = model.fit(learnt, targets[0]).predict(queries)
    return float(
        (predicted == targets[1]).mean() if train.answers.kind == "class" else np.abs(predicted - targets[1]).mean()
    )


PEERS = {"boosted trees, texts in 50 directions": _boosted, "linear, TF-IDF of pairs of words": _linear}
PEERS_OF_IMAGES = {
    "boosted trees, pixels in 50 directions": _boosted_on_pixels,
    "random forest likewise": _forest_on_pixels,
    "support vectors likewise": _kernel_on_pixels,
}
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
    FirstRun(
        name="scanned_prices",
        task="table",
        data="a scan of a digit, a shop and a size, and a price",
        make=scanned_prices,
        peers=PEERS_OF_IMAGES,
    ),
    FirstRun(
        name="stripes_and_signs",
        task="table",
        data="a picture and two numbers, of which neither alone decides",
        make=stripes_and_signs,
        peers=PEERS_OF_IMAGES,
    ),
)
