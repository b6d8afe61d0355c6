"""Settings that nothing reads are errors: whoever gives one believes that it does something."""

import inspect
from collections.abc import Callable


def refuse_idle(name: str, owner: Callable[..., object], because: str, instead: str, **given: object) -> None:
    """Raises ValueError for the first of some settings that is not at its default; called where nothing reads them.

    Args:
        name: who refuses, such as "kernels.MLP"; "" where messages name nobody.
        owner: the class or function whose signature states the defaults.
        because: the other setting, with which these have no effect, such as "num_frequencies=0".
        instead: what to do so that they have one.
        given: the settings by name.
    """
    stated = inspect.signature(owner).parameters
    for setting, value in given.items():
        default = stated[setting].default
        if value != default:
            keep = "leave it out" if default is None else f"leave it at {default!r}"
            told = f"{setting}={value!r} has no effect with {because}; {keep}, or {instead}"
            raise ValueError(f"{name}: {told}" if name else told)
