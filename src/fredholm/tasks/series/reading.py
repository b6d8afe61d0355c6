"""How what is known of each series is read, whatever the kind of file."""

from dataclasses import dataclass
from typing import final

from fredholm.tasks.targets import Kind


@final
@dataclass(frozen=True, kw_only=True)
class Reading:
    """What labels are read as.

    Args:
        kind: classes, labels or numbers; None: as the file says, see each reader.
        names: of the classes, labels or numbers that are known already, whose order decides; None: those of the file.
    """

    kind: Kind | None = None
    names: tuple[str, ...] | None = None
