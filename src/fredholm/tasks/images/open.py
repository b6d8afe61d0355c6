"""Opening of every source of images, by name or by path."""

import difflib
from pathlib import Path

from fredholm.tasks.files.arrow_table import COLUMN_SUFFIXES
from fredholm.tasks.files.data_files import data_path
from fredholm.tasks.files.read_errors import reads_data
from fredholm.tasks.splits.split_files import is_saved
from fredholm.tasks.splits.splits import Splits
from fredholm.tasks.targets import Kind
from fredholm.tasks.targets.labels_table import TABLE

from .dataset import ImageDataset
from .digits import digits
from .idx import idx_folder, is_idx_folder
from .image_folder import image_folder, labelled_folder
from .image_table import image_table
from .npz_file import npz_images, npz_shards


@reads_data
def open_images(
    data: str | Path, *, image_size: tuple[int, int] | None = None, kind: Kind | None = None
) -> Splits[ImageDataset]:
    """Open labelled images with their splits, or all as one set.

    Args:
        data: ``"digits"`` (`digits`; write ``./digits`` for a folder of that name), the path of an ``.npz`` file
            (`npz_images`), of a .parquet or .arrow file, a folder of these or one that Hugging Face's datasets saved
            (`image_table`), or of a folder with the four MNIST-format files (`idx_folder`), with a table labels.csv
            (`labelled_folder`), with .npz files (`npz_shards`) or with one subfolder of image files a class
            (`image_folder`).
        image_size: height and width to deliver; default: the size the images have.
        kind: the kind of the answers; None: the kind that the source has. Digits, MNIST-format files and subfolders
            have classes.

    Raises:
        ValueError: nothing of that name, or the source is broken or of another kind.
        ImportError: the source needs a package that is not installed.
    """
    if str(data) == "digits":
        _refuse_kind(kind, "digits")
        return digits(image_size)
    folder = data_path(data)
    try:
        if not folder.exists():
            raise ValueError(
                f"no data called {str(data)!r}: {_hint(folder)}the path of a folder, an .npz or a .parquet file"
            )
        if folder.suffix.lower() == ".npz" and folder.is_file():
            return npz_images(folder, image_size, kind)
        if folder.suffix.lower() in COLUMN_SUFFIXES or is_saved(folder):
            return image_table(folder, image_size, kind)
        if not folder.is_dir():
            raise ValueError(f"{folder} is a file; pass an .npz or .parquet file, or the folder that holds it")
        if (folder / TABLE).is_file():
            return labelled_folder(folder, image_size, kind)
        if not any(each.is_dir() for each in folder.iterdir()):
            suffixes = {each.suffix.lower() for each in folder.iterdir()}
            if ".npz" in suffixes:
                return npz_shards(folder, image_size, kind)
            if suffixes & {*COLUMN_SUFFIXES}:
                return image_table(folder, image_size, kind)
        _refuse_kind(kind, str(folder))
        if is_idx_folder(folder):
            return idx_folder(folder, image_size)
        return image_folder(folder, image_size)
    except PermissionError as error:
        raise ValueError(f"{error.filename}: may not be read ({error.strerror}); change its permissions") from error


def _refuse_kind(kind: Kind | None, source: str) -> None:
    if kind not in (None, "class"):
        raise ValueError(f"target is {kind!r}, but {source} has classes; leave it out, or pass a folder with {TABLE}")


def _hint(folder: Path) -> str:
    """A hint for a message: the nearest name among ``digits`` and the files and folders beside ``folder``."""
    siblings = {"digits": "digits"} if folder.name == str(folder) else {}
    if folder.parent.is_dir():
        known = (path for path in folder.parent.iterdir() if path.is_dir() or path.suffix.lower() == ".npz")
        siblings |= {path.name: str(path) for path in known}
    nearest = [siblings[name] for name in difflib.get_close_matches(folder.name, siblings, n=1)]
    others = "pass " if nearest == ["digits"] else "pass 'digits' or "
    return f"did you mean {nearest[0]!r}? Otherwise {others}" if nearest else others
