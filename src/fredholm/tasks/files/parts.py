"""Which part is read of a file that holds several, such as a training and a test set."""

import warnings
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from fredholm.tasks.splits.split_files import SPLITS, Split
from fredholm.tasks.splits.splits import Part, Splits


def choose_part(path: Path, present: Mapping[Split, object], part: Split | None) -> Split:
    """The part that was asked for; else the test part or, without one, the last that there is, with a warning.

    Args:
        path: the file, for messages.
        present: the parts that it holds, by name; none: it is not in parts.
        part: the one to read; None: nobody said.

    Raises:
        ValueError: there is no such part.
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
    """Raises ValueError where a part is asked for of a file that is not in parts."""
    if part is not None:
        raise ValueError(f"{path}: is not in parts; leave --part {part} out")


def rows_of_part(path: Path, split: Tensor | None, part: Split | None) -> Tensor | None:
    """Which rows are read: those of a part, `(m,)`; None where they are not in parts.

    Args:
        path: the file, for messages.
        split: int64 `(n,)`, each row's part as its number in `SPLITS`; None: they are not in parts.
        part: see `choose_part`, also for errors and the warning.
    """
    if split is None:
        refuse_part(path, part)
        return None
    numbers: dict[Split, int] = {name: number for number, name in enumerate(SPLITS) if bool((split == number).any())}
    return (split == numbers[choose_part(path, numbers, part)]).nonzero()[:, 0]


def part_of(path: Path, found: Part | Splits[Part], part: Split | None) -> Part:
    """What was read of a file, or the part of it that was asked for; errors and warning as for `choose_part`."""
    if not isinstance(found, Splits):
        refuse_part(path, part)
        return found
    present: dict[Split, Part] = {name: each for name in SPLITS if (each := getattr(found, name, None)) is not None}
    return present[choose_part(path, present, part)]
