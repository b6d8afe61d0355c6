"""Objects that remember their constructor arguments."""

import inspect
from collections.abc import Mapping
from types import UnionType
from typing import Any, Self, Union, get_args, get_origin, get_type_hints


class Rebuildable:
    """An object that its class and arguments rebuild; the weights of a module are stored separately."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Records the arguments before they are used.

        Raises:
            TypeError: an argument must be one of the library's own classes, such as a configuration, and is not.
        """
        _check_objects(cls, args, kwargs)
        built = super().__new__(cls)
        built.__dict__["_arguments"] = (args, kwargs)  # not by setattr, which modules override
        return built

    @property
    def arguments(self) -> dict[str, Any]:
        """Returns the constructor arguments by parameter name, without those left at their defaults."""
        args, kwargs = self.__dict__["_arguments"]
        return dict(inspect.signature(type(self)).bind(*args, **kwargs).arguments)

    @classmethod
    def parameter_types(cls) -> Mapping[str, Any]:
        """Returns the types of the class's parameters by name, such as `Config` of a class within it."""
        hints = get_type_hints(cls.__init__, localns={**vars(cls)}, include_extras=True)
        return {name: kind for name, kind in hints.items() if name != "return"}


def _check_objects(cls: type[Rebuildable], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    try:
        given = inspect.signature(cls).bind(*args, **kwargs).arguments
        expected = cls.parameter_types()
    except (TypeError, NameError):
        return  # the call itself reports missing arguments, and a class of the user may be annotated with anything
    for name, value in given.items():
        hint = expected.get(name)
        kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        ours = tuple(kind for kind in kinds if isinstance(kind, type) and kind.__module__.startswith("fredholm."))
        if not ours or not set(kinds) <= {*ours, type(None)} or isinstance(value, ours):
            continue  # it fits, or its type is one that the class itself checks
        if value is None and type(None) in kinds:
            continue
        got = f"the class {value.__qualname__}" if isinstance(value, type) else type(value).__name__
        raise TypeError(f"{_public(cls)}: {name} must be of type {' or '.join(map(_public, ours))}; got {got}")


def _public(kind: type) -> str:
    """Returns the public name of a class, such as `models.ITNet.Config`."""
    package, *inner = kind.__module__.split(".")
    return f"{inner[0]}.{kind.__qualname__}" if package == "fredholm" else kind.__qualname__
