"""Examples in JSONL, whose images are files."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fredholm.tasks.images.encoded_images import image_files
from fredholm.tasks.images.read import is_grey, size_of
from fredholm.tasks.splits.split_marks import MARKS, SplitMarks, marks_of_cells
from fredholm.tasks.text import json_lines
from fredholm.tasks.text.tokenizer import utf8

from .image_text_set import Example, ImageTextSet, numbered


def read_examples(path: Path) -> list[Example]:
    """The lines of a file: objects with `images`, one path or a list of them; `text`; and, where known, `label`.

    A label is a text, a whole number or a truth value. `split`, `group` and `time` are read too, as `marks_of_cells`
    does. Image files are not opened.

    Raises:
        ValueError: the file cannot be read, is empty or no UTF-8, a line does not parse, lacks a key, or has a value of
            another type, an empty text, half a surrogate pair, or another number of images than the first. The message
            names file and line.
    """
    examples: list[Example] = []
    for line, found in json_lines(path):
        try:
            images, text, label, marks = _images(found), _text(found), _label(found), _marks(found)
            if examples and len(images) != len(examples[0].images):
                raise ValueError(
                    f"has {len(images)} images, but line {examples[0].line} has {len(examples[0].images)}; give each "
                    "line as many"
                )
        except ValueError as error:
            raise ValueError(f"{path}, line {line}: {error}") from error
        examples.append(Example(images=images, text=text, label=label, marks=marks, path=path, line=line))
    if not examples:
        raise ValueError(f"{path}: has no lines but empty ones; expected at least one object")
    return examples


def with_image_files(
    examples: Sequence[Example],
    *,
    split: Tensor | None = None,
    channels: int | None = None,
    image_size: tuple[int, int] | None = None,
) -> ImageTextSet:
    """Examples with their images; headers are read here, pixels on demand.

    Args:
        examples: at least one; paths of images are relative to the folder of their file.
        split: int64 `(n,)`, the split of each where file names have one: 0 train, 1 valid, 2 test; None: by the lines.
        channels: channels of every image; None: 1 if all are grey, else 3.
        image_size: height and width to deliver; None: the size that all have.

    Raises:
        ValueError: an image cannot be read, examples differ in their number of images, images in size, and what
            `numbered` refuses. The message names file and line.
        ImportError: pillow is not installed.
    """
    first, places = examples[0], dict[Path, int]()
    all_grey, size_of_first = True, None
    for example in examples:
        if len(example.images) != len(first.images):
            raise ValueError(
                f"{example.place}: has {len(example.images)} images, but {first.place} has {len(first.images)}; give "
                "each text as many"
            )
        for file in _files(example):
            if file in places:
                continue
            places[file] = len(places)
            try:
                grey, size = is_grey(file), size_of(file)
            except ValueError as error:
                raise ValueError(f"{example.place}: image {error}") from error
            all_grey &= grey
            size_of_first = size_of_first or size
            if image_size is None and size != size_of_first:
                sizes = " and ".join(f"{height}x{width}" for height, width in (size_of_first, size))
                raise ValueError(
                    f"{example.place}: images differ in size, {sizes} ({file}); pass image_size, the height and width "
                    "to bring all to"
                )
    marks = _joined(examples, split)
    labels, classes = numbered(examples, marks.given)
    size = image_size or size_of_first
    assert size is not None
    return ImageTextSet(
        examples=tuple(examples),
        pictures=image_files(
            Path(),
            list(places),
            None,
            channels=channels or (1 if all_grey else 3),
            image_size=size,
        ),
        index=torch.tensor([[places[file] for file in _files(example)] for example in examples]),
        labels=labels,
        classes=classes,
        marks=marks,
    )


def _joined(examples: Sequence[Example], split: Tensor | None) -> SplitMarks:
    """The marks of all examples.

    Raises:
        ValueError: only some examples have a mark, a line names a split where its file name does, or `marks_of_cells`
            refuses them.
    """
    columns: dict[str, list[str]] = {}
    for word in MARKS:
        if having := [example for example in examples if word in example.marks]:
            if len(having) < len(examples):
                bare = next(example for example in examples if word not in example.marks)
                raise ValueError(
                    f"{bare.place}: has no {word!r}, but {having[0].place} has one; give each one, or none"
                )
            columns[word] = [example.marks[word] for example in examples]
    if split is not None and "split" in columns:
        raise ValueError(f"{examples[0].place}: has a 'split', but its file is of one; leave it out")
    marks = marks_of_cells(columns, lambda i, word: f"{examples[i].place}: {word}")
    return marks if split is None else replace(marks, given=split)


def _files(example: Example) -> list[Path]:
    return [example.path.parent / name for name in example.images]


def _value(found: dict[str, Any], key: str) -> Any:
    if key not in found:
        has = f"its keys are {', '.join(found)}" if found else "it is empty"
        raise ValueError(f"has no {key!r}; {has}; expected images, text and label")
    return found[key]


def _images(found: dict[str, Any]) -> tuple[str, ...]:
    value = _value(found, "images")
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise ValueError(f"'images' is {_shown(value)}; expected a path, or a list of paths")
    return tuple(names)


def _text(found: dict[str, Any]) -> str:
    value = _value(found, "text")
    if not isinstance(value, str):
        raise ValueError(f"'text' is {_shown(value)}; expected a text")
    if not value.strip():
        raise ValueError("'text' is empty; write one, or leave the line out")
    utf8(value)
    return value


def _label(found: dict[str, Any]) -> str | None:
    """The class as text; None where it is absent or null."""
    value = found.get("label")
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"'label' is {_shown(value)}; expected a class: a text, a whole number, true or false")
    utf8(value)
    return value.strip()


def _marks(found: dict[str, Any]) -> dict[str, str]:
    """The keys of `MARKS` that an object has, with their values."""
    marks: dict[str, str] = {}
    for word in MARKS:
        value = found.get(word)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError(f"{word!r} is {_shown(value)}; expected a text or a number")
        utf8(str(value))
        marks[word] = str(value)
    return marks


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
