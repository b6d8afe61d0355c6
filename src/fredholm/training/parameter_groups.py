"""Which parameters weight decay pulls towards zero."""

import math
from typing import Any

from torch import nn

NORMS = (
    nn.LayerNorm,
    nn.RMSNorm,
    nn.GroupNorm,
    nn.modules.batchnorm._NormBase,
)


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Optimiser groups: matrices decay; biases, norms and what a module exempts do not.

    A module exempts its own parameters by listing their local names in a class attribute ``no_weight_decay``
    (the kernels' output bias, which holds the identity of the initial integral). Buffers and frozen parameters
    are in no group. ITNet H.4.

    Args:
        model: any module; a parameter shared by several modules is exempt if one of them exempts it.
        weight_decay: the first group's decay; the second's is 0.

    Returns:
        Two groups of (name, parameter) pairs, as ``torch.optim`` takes them.

    Raises:
        ValueError: a module exempts a name that is not one of its own parameters, or the decay is below 0.
    """
    if not 0 <= weight_decay < math.inf:
        raise ValueError(f"training.parameter_groups: weight_decay must be >= 0 and finite; got {weight_decay}")
    exempt: set[int] = set()
    for path, module in model.named_modules():
        own = dict(module.named_parameters(recurse=False))
        listed = getattr(module, "no_weight_decay", frozenset())
        # a parameter that an option leaves out is an attribute that is None
        if unknown := sorted(name for name in listed if name not in own and getattr(module, name, ...) is not None):
            where = path or type(module).__name__
            raise ValueError(f"{where}.no_weight_decay lists {', '.join(unknown)}, not among its parameters")
        for name, parameter in own.items():
            if parameter.ndim <= 1 or isinstance(module, NORMS) or name in listed:
                exempt.add(id(parameter))
    trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    return [
        {"params": [pair for pair in trained if id(pair[1]) not in exempt], "weight_decay": weight_decay},
        {"params": [pair for pair in trained if id(pair[1]) in exempt], "weight_decay": 0.0},
    ]
