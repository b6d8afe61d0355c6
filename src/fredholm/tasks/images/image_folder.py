"""A folder of image files, one subfolder a class."""

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import final

import torch
from torch import Tensor
from tqdm import tqdm

from fredholm._settings import refuse_idle
from fredholm.tasks.split_files import SPLIT_WORDS, SPLITS, Split
from fredholm.tasks.splits import Splits
from fredholm.tasks.stratified_split import DEFAULT_TEST_FRACTION, stratified_split

from .dataset import ImageDataset
from .kept import Kept
from .read import IMAGE_SUFFIXES, is_grey, read_images, size_of
from .resize import check_image_size


@final
class ImageFolder(ImageDataset):
    """Image files, decoded when asked for and kept decoded while they fit.

    Args:
        root: the folder that names are given relative to.
        files: the image files.
        labels: one label a file, each in ``0 .. len(classes) - 1``.
        classes: the class names.
        channels: 1 (grey) or 3 (RGB), to which every image is brought (see `read_images`).
        image_size: height and width, to which every image is brought.
        cache_bytes: the first images, as many as fit into this much memory, are decoded only once.
    """

    def __init__(
        self,
        root: Path,
        files: Sequence[Path],
        labels: Sequence[int],
        classes: tuple[str, ...],
        *,
        channels: int,
        image_size: tuple[int, int],
        cache_bytes: int = 512 << 20,
    ) -> None:
        if len(files) != len(labels):
            raise ValueError(f"{len(files)} files, but {len(labels)} labels: give one label a file")
        check_image_size(image_size)
        self._root, self._files, self._classes = root, list(files), tuple(classes)
        self._targets = torch.tensor(labels, dtype=torch.int64)
        self._channels, self._image_size = channels, image_size
        self._pixels = Kept(len(files), (channels, *image_size), self._decode, cache_bytes=cache_bytes)

    @property
    def classes(self) -> tuple[str, ...]:
        return self._classes

    @property
    def channels(self) -> int:
        return self._channels

    @property
    def image_size(self) -> tuple[int, int]:
        return self._image_size

    def __len__(self) -> int:
        return len(self._files)

    def _images(self, indices: Tensor) -> Tensor:
        return self._pixels[indices]

    def _labels(self, indices: Tensor) -> Tensor:
        return self._targets[indices]

    def _name(self, index: int) -> str:
        return self._files[index].relative_to(self._root).as_posix()

    def _decode(self, indices: Tensor) -> Tensor:
        return read_images([self._files[index] for index in indices.tolist()], self._channels, self._image_size)


def image_folder(
    folder: str | Path,
    image_size: tuple[int, int] | None = None,
    test_fraction: float = DEFAULT_TEST_FRACTION,
    split_seed: int = 0,
) -> Splits[ImageDataset]:
    """Open a folder with one subfolder a class, or with folders of splits that hold such subfolders.

    Folders of splits are ``train``, ``valid`` (or ``val``, ``validation``, ``dev``) and ``test``; one of the last two
    may be absent. Without them `stratified_split` splits off a test set. Classes are sorted by name. Images are the
    files of the kinds of `read_images` (capitals too) at any depth below a class folder; hidden files and folders are
    ignored, and how many other files are skipped is told in a warning, as are classes without an image in a split. The
    images are grey if the headers of all files say so, otherwise RGB. Every header is read here; the pixels only when
    they are asked for.

    Args:
        folder: the folder.
        image_size: height and width to deliver; default: the size all images share.
        test_fraction: share of the test set; refused where the folder has one.
        split_seed: picks one of many such splits.

    Raises:
        ValueError: no class folder, only one, or one without images; a test class unknown in training; two folders of
            one split; an unreadable file; or images of different sizes and no ``image_size``.
        ImportError: pillow is not installed.
    """
    root = Path(folder)
    roots = _split_roots(root)
    classes = tuple(_class_folders(roots["train"]))
    if len(classes) == 1:
        raise ValueError(f"{roots['train']}: only one class folder, {classes[0]!r}; at least two classes are needed")
    parts = {split: _files_and_labels(where, classes) for split, where in roots.items()}
    _warn_of_skipped(root, [file for files, _ in parts.values() for file in files])
    if len(parts) > 1:
        fixed, given = f"{root}, which has its own splits", {"test_fraction": test_fraction}
        refuse_idle("", image_folder, fixed, "move all images into class folders", **given)
    else:
        files, labels = parts["train"]
        names = [path.relative_to(roots["train"]).as_posix() for path in files]
        chosen = stratified_split(names, labels, test_fraction, split_seed)
        for split, own in zip(("train", "test"), chosen, strict=True):
            parts[split] = [files[i] for i in own], [labels[i] for i in own]
    held_out: list[Split] = [split for split in SPLITS[1:] if split in parts]
    for split in held_out:
        _warn_of_absent(root, split, [name for number, name in enumerate(classes) if number not in parts[split][1]])

    channels, image_size = _inspect([file for files, _ in parts.values() for file in files], image_size)
    found = {
        split: ImageFolder(root, *part, classes, channels=channels, image_size=image_size)
        for split, part in parts.items()
    }
    return Splits(found["train"], found.get("test"), found.get("valid"), is_given=len(roots) > 1)


def _warn_of_absent(root: Path, split: Split, classes: list[str]) -> None:
    """Warns of classes without an image in a split."""
    if classes:
        told = f"{', '.join(map(repr, classes[:6]))}{', ...' if len(classes) > 6 else ''}"
        warnings.warn(f"{root}: no image of {told} is in the {split} set; add images of it", stacklevel=3)


def _split_roots(root: Path) -> dict[Split, Path]:
    """Where the class folders of each split lie; a folder called ``train`` among class folders is a class."""
    folders = _subfolders(root)
    if "train" not in folders or not set(folders) <= SPLIT_WORDS.keys():
        return {"train": root}
    found: dict[Split, Path] = {}
    for name in folders:
        split = SPLIT_WORDS[name]
        if split in found:
            raise ValueError(f"{root}: has the folders {found[split].name} and {name}, which are one split; keep one")
        found[split] = root / name
    return found


def _warn_of_skipped(root: Path, files: list[Path]) -> None:
    """Warns of what lies below a folder and is not among the files that are read, but for hidden files."""
    read = set(files)
    skipped = [path for path in _listed(root) if path not in read]
    if skipped:
        kinds = sorted({path.suffix.lower() or path.name for path in skipped})
        told = f"{', '.join(kinds[:6])}{', ...' if len(kinds) > 6 else ''}"
        count = f"{len(skipped)} file{'s' if len(skipped) > 1 else ''}"
        warnings.warn(f"{root}: skipped {count} that are no images of a class ({told})", stacklevel=3)


def _class_folders(root: Path) -> list[str]:
    folders = _subfolders(root)
    if not folders:
        raise ValueError(f"{root}: no class folder; put the images into one subfolder a class, such as cat/1.png")
    return folders


def _subfolders(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))


def _files_and_labels(root: Path, classes: tuple[str, ...]) -> tuple[list[Path], list[int]]:
    files: list[Path] = []
    labels: list[int] = []
    for name in _class_folders(root):
        if name not in classes:
            raise ValueError(f"{root / name}: class {name!r} is not among the training classes ({', '.join(classes)})")
        found = _image_files(root / name)
        if not found:
            suffixes = ", ".join(IMAGE_SUFFIXES)
            raise ValueError(f"{root / name}: no image ({suffixes}) in this class folder; add some or remove it")
        files += found
        labels += [classes.index(name)] * len(found)
    return files, labels


def _image_files(folder: Path) -> list[Path]:
    return sorted(path for path in _listed(folder) if path.suffix.lower() in IMAGE_SUFFIXES)


def _listed(folder: Path) -> list[Path]:
    """All files at any depth of a folder, but for hidden ones."""
    found: list[Path] = []
    for directory, subfolders, names in os.walk(folder):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        found += [Path(directory, name) for name in names if not name.startswith(".")]
    return found


def _inspect(files: list[Path], image_size: tuple[int, int] | None) -> tuple[int, tuple[int, int]]:
    """Read all headers; return the number of channels, and the size asked for or else shared by all."""
    all_grey = True
    first_size = None
    for path in tqdm(files, desc="reading image headers", unit="file", delay=1.0, leave=False, disable=None):
        all_grey &= is_grey(path)
        if image_size is None:
            size = size_of(path)
            if first_size is not None and size != first_size:
                raise ValueError(
                    f"images differ in size: {files[0]} is {_text(first_size)}, {path} is {_text(size)}; "
                    f"pass image_size, the height and width to bring all to"
                )
            first_size = size
    size = image_size or first_size
    assert size is not None
    return (1 if all_grey else 3), size


def _text(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"
