"""What quadratures ask of the numbers that they are built with."""


def check_count(name: str, what: str, value: object, least: int = 1) -> None:
    """Raises, in the name of `name`, unless `value` is a whole number of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name}: {what} must be a whole number; got {value!r}")
    if value < least:
        raise ValueError(f"{name}: {what} must be at least {least}; got {value}")


def check_number(name: str, what: str, value: object) -> None:
    """Raises TypeError, in the name of `name`, unless `value` is a number."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{name}: {what} must be a number; got {value!r}")
