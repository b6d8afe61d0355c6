"""Objects that remember what they were built from."""

import inspect
from collections.abc import Mapping
from typing import Any, Self, get_type_hints


class Rebuildable:
    """An object whose class and arguments build it again; of a module the weights are kept beside them."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Notes the arguments before they are used."""
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
