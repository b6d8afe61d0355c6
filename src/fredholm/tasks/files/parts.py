"""Choice of the part to read from a file with several, such as a training and a test set."""

import warnings
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from fredholm.tasks.splits.split_files import SPLITS, Split
from fredholm.tasks.splits.splits import Part, Splits


def choose_part(path: Path, present: Mapping[Split, object], part: Split | None) -> Split:
    """Returns the requested part; else the test part or, without one, the last existing one, with a warning.

    Args:
        path: path of the file, for messages.
        present: parts of the file by name; empty where it has no parts.
        part: the requested part; None: no request.

    Raises:
        ValueError: the file has no such part.
    """
    names: list[Split] = [name for name in SPLITS if name in present]
    if part is None:
        chosen = names[-1]
        if len(names) > 1:
            others = " or ".join(f"--part {name}" for name in names[:-1])
            warnings.warn(
                f"{path}: holds the parts {', '.join(names)}; the {chosen} part is read ({others} reads another)",
                stacklevel=3,
            )
        return chosen
    if part not in names:
        raise ValueError(f"{path}: holds no {part} part; it has {', '.join(names)}")
    return part


def refuse_part(path: Path, part: Split | None) -> None:
    """Raises a ValueError where a part is requested of a file without parts."""
    if part is not None:
        raise ValueError(f"{path}: is not in parts; leave --part {part} out")


def rows_of_part(path: Path, split: Tensor | None, part: Split | None) -> Tensor | None:
    """Returns the indices of the rows to read, `(m,)`: those of a part; None where the file has no parts.

    Args:
        path: path of the file, for messages.
        split: int64 `(n,)`, the part of each row by its number in `SPLITS`; None: the file has no parts.
        part: see `choose_part`, also for errors and the warning.
    """
    if split is None:
        refuse_part(path, part)
        return None
    numbers: dict[Split, int] = {name: number for number, name in enumerate(SPLITS) if bool((split == number).any())}
    return (split == numbers[choose_part(path, numbers, part)]).nonzero()[:, 0]


def part_of(path: Path, found: Part | Splits[Part], part: Split | None) -> Part:
    """Returns the data of a file, or the requested part of them; errors and warning as for `choose_part`."""
    if not isinstance(found, Splits):
        refuse_part(path, part)
        return found
    present: dict[Split, Part] = {name: each for name in SPLITS if (each := getattr(found, name, None)) is not None}
    return present[choose_part(path, present, part)]
