"""The arrays of an .npz file that a user hands over."""

import zipfile
from pathlib import Path

import numpy as np


def load_arrays(path: Path) -> dict[str, np.ndarray]:
    """All arrays of an .npz file; objects are refused.

    Raises:
        ValueError: it cannot be read as one.
    """
    try:
        with np.load(path, allow_pickle=False) as opened:
            return {name: opened[name] for name in opened.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, AttributeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ValueError(f"{path}: cannot be read as an .npz file ({reason}); pass one without objects") from error
