"""Selection of an array's channels: by name where the file has names, else by position."""

from fredholm.tasks.targets.target import check_names_differ


def chosen_channels(
    count: int, *, own: tuple[str, ...] | None, known: tuple[str, ...] | None, what: str = "channel"
) -> tuple[tuple[str, ...], list[int] | None]:
    """Returns the names and positions of the channels to read.

    Args:
        count: number of channels in the array.
        own: channel names in the file, if any.
        known: names of the required channels, in order; None: all.
        what: noun for a channel, in messages.

    Returns:
        The names, and the position of each in the array; None: all, in the order of the array. Without names in the
        file, or where `known` are generated names, positions are those of `known`.

    Raises:
        ValueError: the numbers of names and channels differ, two names are equal, or a required channel is missing.
    """
    if own is not None:
        _check_count(count, own, what)
        if known is not None and own != known and (known != _unnamed(len(known), what) or set(known) <= set(own)):
            if absent := [name for name in known if name not in own]:
                raise ValueError(f"has no {what} {', '.join(map(repr, absent))}; its {what}s are {', '.join(own)}")
            check_names_differ(f"{what}s", known)
            return known, [own.index(name) for name in known]
    names = known if known is not None else own if own is not None else _unnamed(count, what)
    _check_count(count, names, what)
    return names, None


def _unnamed(count: int, what: str) -> tuple[str, ...]:
    return tuple(f"{what}_{c}" for c in range(count))


def _check_count(count: int, names: tuple[str, ...], what: str) -> None:
    if len(names) != count:
        raise ValueError(f"has {count} {what}s; expected {len(names)}: {', '.join(names) or 'none'}")
    check_names_differ(f"{what}s", names)
