"""Names of class numbers."""

from pathlib import Path

from fredholm.tasks.files.data_files import read_bytes

from .mask_set import IGNORED


def named_classes(file: Path) -> tuple[str, ...] | None:
    """Reads the class names in a file, one a line; None where the file does not exist."""
    if not file.is_file():
        return None
    try:
        names = [line.strip() for line in read_bytes(file).decode("utf-8-sig").splitlines()]
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: cannot be read as text ({error})") from error
    while names and not names[-1]:
        names.pop()
    return checked_classes(names, str(file))


def checked_classes(names: list[str], source: str) -> tuple[str, ...]:
    """Checks class names; raises a ValueError where there are none or too many, or one is empty or repeated."""
    if not names:
        raise ValueError(f"{source}: names no class; write one a line, in the order of their numbers")
    if len(names) > IGNORED:
        raise ValueError(f"{source}: names {len(names)} classes; a mask can have at most {IGNORED}")
    for number, name in enumerate(names):
        if not name or name in names[:number]:
            raise ValueError(f"{source}: the name of class {number} is {name!r}; give each class one of its own")
    return tuple(names)
