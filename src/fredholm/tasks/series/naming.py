"""Names of channels that a file only counts."""

from fredholm.tasks.targets.target import check_names_differ


def unnamed_channels(count: int, known: tuple[str, ...] | None) -> tuple[str, ...]:
    """Names for channels that a file only counts.

    Raises:
        ValueError: there are not as many as the known ones, or two of these are equal.
    """
    if known is None:
        return tuple(f"channel_{c}" for c in range(count))
    if count != len(known):
        raise ValueError(f"has {count} channels; expected {len(known)}: {', '.join(known)}")
    check_names_differ("channels", known)
    return known
