"""Objects that remember what they were built from."""

import inspect
from collections.abc import Mapping
from types import UnionType
from typing import Any, Self, Union, get_args, get_origin, get_type_hints


class Rebuildable:
    """An object whose class and arguments build it again; of a module the weights are kept beside them."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Notes the arguments before they are used.

        Raises:
            TypeError: where one of the library's own classes is expected, such as a configuration, and another came.
        """
        _check_objects(cls, args, kwargs)
        built = super().__new__(cls)
        built.__dict__["_arguments"] = (args, kwargs)  # not by setattr, which modules have their own of
        return built

    @property
    def arguments(self) -> dict[str, Any]:
        """What it was built from, by the names of its class's parameters, without those left at their defaults."""
        args, kwargs = self.__dict__["_arguments"]
        return dict(inspect.signature(type(self)).bind(*args, **kwargs).arguments)

    @classmethod
    def parameter_types(cls) -> Mapping[str, Any]:
        """The types of the class's parameters by name, such as `Config` of a class within it."""
        hints = get_type_hints(cls.__init__, localns={**vars(cls)}, include_extras=True)
        return {name: kind for name, kind in hints.items() if name != "return"}


def _check_objects(cls: type[Rebuildable], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    try:
        given = inspect.signature(cls).bind(*args, **kwargs).arguments
        expected = cls.parameter_types()
    except (TypeError, NameError):
        return  # the call says itself what is missing, and a class of one's own may be annotated with anything
    for name, value in given.items():
        hint = expected.get(name)
        kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        ours = tuple(kind for kind in kinds if isinstance(kind, type) and kind.__module__.startswith("fredholm."))
        if not ours or not set(kinds) <= {*ours, type(None)} or isinstance(value, ours):
            continue  # it fits, or may be something else, which the class itself checks
        if value is None and type(None) in kinds:
            continue
        came = f"the class {value.__qualname__}" if isinstance(value, type) else type(value).__name__
        raise TypeError(f"{_public(cls)}: {name} must be of type {' or '.join(map(_public, ours))}; got {came}")


def _public(kind: type) -> str:
    """A class as it is imported, such as `models.ITNet.Config`."""
    package, *inner = kind.__module__.split(".")
    return f"{inner[0]}.{kind.__qualname__}" if package == "fredholm" else kind.__qualname__
