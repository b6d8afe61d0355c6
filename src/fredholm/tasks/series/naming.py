"""Names of channels that a file only counts."""


def unnamed_channels(count: int, known: tuple[str, ...] | None) -> tuple[str, ...]:
    """Names for channels that a file only counts.

    Raises:
        ValueError: there are not as many as the known ones.
    """
    if known is None:
        return tuple(f"channel_{c}" for c in range(count))
    if count != len(known):
        raise ValueError(f"has {count} channels; expected {len(known)}: {', '.join(known)}")
    return known
