"""Parameters that operators hold in another layout than torch's layers do."""

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor
from torch.nn import Parameter


@final
class Relaid:
    """Lays parameters out anew, each once for a whole model, so that layers which share one go on sharing it."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, tuple[int, ...]], tuple[list[Parameter], list[Parameter]]] = {}
        self._used: dict[int, tuple[str, tuple[int, ...]]] = {}

    def __call__(
        self, layout: str, sources: list[Parameter], lay_out: Callable[..., tuple[Tensor, ...]]
    ) -> list[Parameter]:
        """The parameters that hold copies of `lay_out(*sources)`; the same ones for the same sources and layout.

        Args:
            layout: its name, of the parameter that torch has.
            sources: what is laid out; attributes that all of them have go over.
            lay_out: how.

        Raises:
            ValueError: when the sources are trained or shared in part only, or their gradients have hooks.
        """
        key = (layout, tuple(map(id, sources)))
        if len(set(key[1])) < len(sources) or any(self._used.setdefault(one, key) != key for one in key[1]):
            raise ValueError(f"a part of {layout} is shared, and not the whole of it, as torch would have to; untie it")
        if key not in self._made:
            flags = {source.requires_grad for source in sources}
            if len(flags) > 1:
                raise ValueError(
                    f"the parts of {layout} are one parameter in torch, but differ in requires_grad; set it alike"
                )
            if any(map(has_gradient_hooks, sources)):
                raise ValueError(f"it has a hook on the gradient of {layout}, which is laid out otherwise; remove it")
            with torch.no_grad():
                made = [Parameter(part.clone(), requires_grad=flags == {True}) for part in lay_out(*sources)]
            first, *others = (vars(source) for source in sources)
            common = {name: value for name, value in first.items() if all(o.get(name) is value for o in others)}
            for part in made:
                vars(part).update(common)
            self._made[key] = (sources, made)  # the sources are kept, since an id counts while its object lives
        return self._made[key][1]


def has_gradient_hooks(parameter: Parameter) -> bool:
    """Whether anything is to be called with the gradient of a parameter."""
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)
