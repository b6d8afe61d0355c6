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

    def __call__(
        self, layout: str, sources: list[Parameter], lay_out: Callable[..., tuple[Tensor, ...]]
    ) -> list[Parameter]:
        """The parameters that hold copies of `lay_out(*sources)`; the same ones for the same sources and layout name.

        Raises:
            ValueError: when the sources are trained in part only.
        """
        key = (layout, tuple(map(id, sources)))
        if key not in self._made:
            flags = {source.requires_grad for source in sources}
            if len(flags) > 1:
                raise ValueError(
                    f"the parts of {layout} are one parameter in torch, but differ in requires_grad; set it alike"
                )
            with torch.no_grad():
                made = [Parameter(part.clone(), requires_grad=flags == {True}) for part in lay_out(*sources)]
            self._made[key] = (sources, made)  # the sources are kept, since an id counts while its object lives
        return self._made[key][1]
