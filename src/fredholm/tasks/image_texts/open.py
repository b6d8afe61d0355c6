"""Opening of every source of images with texts: a JSONL file, a folder of them, or an .npz file."""

from dataclasses import replace
from pathlib import Path

import torch

from fredholm.tasks.files.data_files import data_path
from fredholm.tasks.files.parts import refuse_part, rows_of_part
from fredholm.tasks.files.read_errors import reads_data
from fredholm.tasks.splits.split_files import SPLITS, Split, find_split_files
from fredholm.tasks.text import JSONL_SUFFIXES

from .image_text_set import Example, ImageTextSet
from .jsonl_file import read_examples, with_image_files
from .npz_file import read_npz, read_npz_shards


@reads_data
def open_image_texts(data: str | Path, *, image_size: tuple[int, int] | None = None) -> ImageTextSet:
    """Open labelled images with texts, with their split where they have one.

    Args:
        data: a .jsonl file, also gzipped (`read_examples`), a folder with files such as train.jsonl and test.jsonl or
            the start of such names (`find_split_files`), an .npz file (`read_npz`), or a folder of these
            (`read_npz_shards`).
        image_size: height and width to deliver; None: the size that all images have.

    Raises:
        ValueError: nothing of that name, a file or an image that cannot be read, an example without a label, a class
            unknown in training, or images that differ in size where no size is given.
        ImportError: images are files, and pillow is not installed.
    """
    path = data_path(data)
    if path.is_file():
        _check_kind(path)
    if path.suffix.lower() == ".npz" and path.is_file():
        found = read_npz(path, image_size=image_size)
    elif path.is_dir() and not _has(path, JSONL_SUFFIXES) and _has(path, (".npz",)):
        found = read_npz_shards(path, image_size=image_size)
    else:
        files = find_split_files(path, JSONL_SUFFIXES, what="JSONL", example=".jsonl")
        examples: list[Example] = []
        split: list[int] = []
        for name, paths in files.parts.items():
            own = [example for file in paths for example in read_examples(file)]
            examples += own
            split += [SPLITS.index(name)] * len(own)
        for example in examples:
            if example.label is None:
                raise ValueError(f"{example.place}: has no 'label'; give each line one")
        of_files = torch.tensor(split) if files.by_split else None
        found = with_image_files(examples, split=of_files, image_size=image_size)
    if found.labels is None:
        raise ValueError(f"{path}: has no array 'label'; expected a class an example")
    return found


@reads_data
def read_image_texts(
    path: Path, *, num_images: int, channels: int, image_size: tuple[int, int], part: Split | None = None
) -> ImageTextSet:
    """The examples of one file as a trained model reads them; labels are ignored.

    Args:
        path: a .jsonl or .npz file.
        num_images: images that each example must have.
        channels: channels that every image is brought to.
        image_size: height and width to deliver.
        part: of an .npz file with `split`; see `choose_part`.

    Raises:
        ValueError: it cannot be read, has no such part, or does not fit.
    """
    _check_kind(path)
    if path.suffix.lower() == ".npz":
        found = read_npz(path, image_size=image_size, reads_labels=False)
        rows = rows_of_part(path, found.marks.given, part)
        found = found if rows is None else found.select(rows)
        if found.channels != channels:
            raise ValueError(f"{path}: images have {found.channels} channels; the model reads {channels}")
    else:
        refuse_part(path, part)
        examples = [replace(example, label=None, marks={}) for example in read_examples(path)]
        found = with_image_files(examples, channels=channels, image_size=image_size)
    if found.num_images != num_images:
        first = found.examples[0]
        raise ValueError(f"{first.place}: has {found.num_images} images; the model reads {num_images} with a text")
    return found


def _has(folder: Path, suffixes: tuple[str, ...]) -> bool:
    return any(file.name.lower().endswith(suffixes) for file in folder.iterdir())


def _check_kind(path: Path) -> None:
    if not path.name.lower().endswith((*JSONL_SUFFIXES, ".npz")):
        raise ValueError(f"{path}: is of no known kind; expected {', '.join((*JSONL_SUFFIXES, '.npz'))}")
