"""A folder of image files, one subfolder a class."""

import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, final

import torch
from torch import Tensor
from tqdm import tqdm

from fredholm.tasks.files.data_files import files_below
from fredholm.tasks.files.noted import noted
from fredholm.tasks.files.read_errors import reads_data
from fredholm.tasks.splits.split_files import SPLIT_WORDS, Split
from fredholm.tasks.splits.split_marks import NO_MARKS, SplitMarks
from fredholm.tasks.splits.splits import Splits
from fredholm.tasks.targets import Answers, ClassAnswers

from .dataset import ImageDataset
from .kept import Kept
from .read import IMAGE_SUFFIXES, is_grey, read_images, size_of
from .resize import check_image_size, common_size


@final
class ImageFolder(ImageDataset):
    """Image files, decoded when asked for and kept decoded while they fit.

    Args:
        root: the folder that names are given relative to.
        files: the image files.
        answers: one a file; None: nothing is known.
        channels: 1 (grey) or 3 (RGB), to which every image is brought (see `read_images`).
        image_size: height and width, to which every image is brought.
        cache_bytes: the first images, as many as fit into this much memory, are decoded only once.
        marks: what the data say of splits.
    """

    def __init__(
        self,
        root: Path,
        files: Sequence[Path],
        answers: Answers | None,
        *,
        channels: int,
        image_size: tuple[int, int],
        cache_bytes: int = 512 << 20,
        marks: SplitMarks = NO_MARKS,
    ) -> None:
        super().__init__(answers, marks)
        if answers is not None and len(files) != len(answers):
            raise ValueError(f"{len(files)} files, but {len(answers)} answers: give one a file")
        check_image_size(image_size)
        self._root, self._files = root, [noted(file) for file in files]
        self._channels, self._image_size = channels, image_size
        self._pixels = Kept(len(files), (channels, *image_size), self._decode, cache_bytes=cache_bytes)

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

    def _name(self, index: int) -> str:
        return self._files[index].relative_to(self._root).as_posix()

    def _decode(self, indices: Tensor) -> Tensor:
        return read_images([self._files[index] for index in indices.tolist()], self._channels, self._image_size)


@reads_data
def image_folder(folder: str | Path, image_size: tuple[int, int] | None = None) -> Splits[ImageDataset]:
    """Open a folder with one subfolder a class, or with folders of splits that hold such subfolders.

    Folders of splits are ``train``, ``valid`` (or ``val``, ``validation``, ``dev``) and ``test``; one of the last two
    may be absent. Without them all images are one set. Classes are sorted by name. Images are the files of the kinds of
    `read_images` (capitals too) at any depth below a class folder; hidden files and folders are ignored, and how many
    other files are skipped is told in a warning. The images are grey if the headers of all files say so, otherwise RGB.
    Every header is read here; the pixels only when they are asked for.

    Args:
        folder: the folder.
        image_size: height and width to deliver; default: the size all images share, or `common_size` of the training
            folder's, with `Splits.sizes`.

    Raises:
        ValueError: no class folder, only one, or one without images; a test class unknown in training; two folders of
            one split; or an unreadable file.
        ImportError: pillow is not installed.
    """
    root = Path(folder)
    roots = _split_roots(root)
    classes = tuple(_class_folders(roots["train"]))
    if len(classes) == 1:
        raise ValueError(f"{roots['train']}: only one class folder, {classes[0]!r}; at least two classes are needed")
    parts = {split: _files_and_labels(where, classes) for split, where in roots.items()}
    _warn_of_skipped(root, [file for files, _ in parts.values() for file in files])
    files = [file for files, _ in parts.values() for file in files]
    channels, image_size, sizes = inspect(files, image_size, len(parts["train"][0]))
    found = {
        split: ImageFolder(
            root,
            files,
            ClassAnswers(names=classes, values=torch.tensor(labels, dtype=torch.int64)),
            channels=channels,
            image_size=image_size,
        )
        for split, (files, labels) in parts.items()
    }
    return Splits(found["train"], found.get("test"), found.get("valid"), is_given=len(roots) > 1, sizes=sizes)


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
    skipped = [path for path in files_below(root) if path not in read]
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
        found = image_files(root / name)
        if not found:
            suffixes = ", ".join(IMAGE_SUFFIXES)
            raise ValueError(f"{root / name}: no image ({suffixes}) in this class folder; add some or remove it")
        files += found
        labels += [classes.index(name)] * len(found)
    return files, labels


def image_files(folder: Path) -> list[Path]:
    """The images at any depth of a folder, but for hidden ones, by name."""
    return sorted(path for path in files_below(folder) if path.suffix.lower() in IMAGE_SUFFIXES)


class Headers(NamedTuple):
    """What the headers of some image files say."""

    channels: int
    """1 where all are grey, else 3."""
    image_size: tuple[int, int]
    """The one asked for, that of all, or `common_size`."""
    sizes: tuple[tuple[int, int], tuple[int, int]] | None
    """The smallest and the largest where a common one was chosen; see `Splits.sizes`."""


def inspect(files: list[Path], image_size: tuple[int, int] | None, num_train: int) -> Headers:
    """Reads all headers.

    Args:
        files: of all splits, those to learn from first.
        image_size: the one asked for; None: what suits the first `num_train` images, which takes longer.
        num_train: at least 1.

    Raises:
        ValueError: one cannot be read.
    """
    bar = tqdm(files, desc="reading image headers", unit="file", delay=1.0, leave=False, disable=None)
    found = [(is_grey(path), (0, 0) if image_size is not None else size_of(path)) for path in bar]
    channels, sizes = (1 if all(grey for grey, _ in found) else 3), [size for _, size in found]
    if len(set(sizes)) == 1:
        return Headers(channels, image_size or sizes[0], None)
    return Headers(channels, common_size(sizes[:num_train]), (min(sizes, key=math.prod), max(sizes, key=math.prod)))
