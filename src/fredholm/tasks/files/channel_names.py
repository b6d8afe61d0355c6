"""Which channels of an array are read: by name where the file tells names, else by place."""

from fredholm.tasks.targets.target import check_names_differ


def chosen_channels(
    count: int, *, own: tuple[str, ...] | None, known: tuple[str, ...] | None, what: str = "channel"
) -> tuple[tuple[str, ...], list[int] | None]:
    """The names of the channels that are read, and which of the array's they are.

    Args:
        count: how many the array has.
        own: their names, if the file tells them.
        known: those that are wanted, in this order; None: all.
        what: one of them, in a word.

    Returns:
        The names, and the place of each in the array; None: all, as they lie there. Where the file tells no names, or
        what is known was only counted, places are those of what is known.

    Raises:
        ValueError: there are not as many names as channels, two are equal, or one that is wanted is not there.
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
