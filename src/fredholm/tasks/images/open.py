"""One entry for every source of images, by name or by path."""

import difflib
from pathlib import Path

from fredholm._settings import refuse_idle
from fredholm.tasks.splits import Splits
from fredholm.tasks.stratified_split import DEFAULT_TEST_FRACTION

from .dataset import ImageDataset
from .digits import digits
from .idx import idx_folder, is_idx_folder
from .image_folder import image_folder
from .npz_file import npz_images


def open_images(
    data: str | Path,
    *,
    image_size: tuple[int, int] | None = None,
    test_fraction: float = DEFAULT_TEST_FRACTION,
    split_seed: int = 0,
) -> Splits[ImageDataset]:
    """Open labelled images as a training and a test set.

    Args:
        data: ``"digits"`` (`digits`; write ``./digits`` for a folder of that name), the path of an ``.npz`` file
            (`npz_images`), or of a folder with the four MNIST-format files (`idx_folder`) or with one subfolder of
            image files a class (`image_folder`).
        image_size: height and width to deliver; default: the size the images have.
        test_fraction: share of the test set, above 0 and below 1, where the source does not bring its own split.
        split_seed: picks one of many such splits.

    Raises:
        ValueError: nothing of that name, the source is broken or of another kind, or settings of a split where it has
            its own.
        ImportError: the source needs a package that is not installed.
    """
    if str(data) == "digits":
        _refuse_split(test_fraction, "'digits'")
        return digits(image_size)
    folder = Path(data).expanduser()
    try:
        if not folder.exists():
            raise ValueError(
                f"no data called {str(data)!r}: {_hint(folder)}pass 'digits' or the path of a folder or an .npz file"
            )
        if folder.suffix == ".npz" and folder.is_file():
            _refuse_split(test_fraction, str(folder))
            return npz_images(folder, image_size)
        if not folder.is_dir():
            raise ValueError(f"{folder} is a file; pass an .npz file, or the folder that holds it")
        if is_idx_folder(folder):
            _refuse_split(test_fraction, str(folder))
            return idx_folder(folder, image_size)
        return image_folder(folder, image_size, test_fraction, split_seed)
    except PermissionError as error:
        raise ValueError(f"{error.filename}: may not be read ({error.strerror}); change its permissions") from error


def _refuse_split(test_fraction: float, source: str) -> None:
    fixed, given = f"{source}, which has a fixed split", {"test_fraction": test_fraction}
    refuse_idle("", open_images, fixed, "pass images without a split", **given)


def _hint(folder: Path) -> str:
    """Offer the nearest name among ``digits`` and the sources that lie where ``folder`` was looked for."""
    siblings = {"digits": "digits"} if folder.name == str(folder) else {}
    if folder.parent.is_dir():
        known = (path for path in folder.parent.iterdir() if path.is_dir() or path.suffix == ".npz")
        siblings |= {path.name: str(path) for path in known}
    nearest = difflib.get_close_matches(folder.name, siblings, n=1)
    return f"did you mean {siblings[nearest[0]]!r}? Otherwise " if nearest else ""
