"""Properties of the parameters of every kernel with any options."""

import inspect
import itertools
from collections.abc import Iterator
from typing import Any, get_args, get_origin, get_type_hints

import pytest
import torch

from fredholm import kernels
from fredholm.domains import Sequence
from fredholm.kernels import Kernel, KernelInputs, PointInputs

SIZES: dict[str, Any] = {
    "embed_dim": 4, "in_dim": 4, "out_dim": 4, "num_heads": 2, "kernel_size": 3, "width": 3, "num_frequencies": 2,
    "rank": 2, "state_dim": 4, "spacing": 0.1, "dim": 4, "value_dim": 3, "pos_dim": 1,
}  # fmt: skip
"""Small values for options without a default, or with a large one."""


def public_kernels() -> list[type[Kernel]]:
    found = (getattr(kernels, name) for name in kernels.__all__)
    composed = (kernels.Sum, kernels.Scaled, kernels.OnEdges)
    return [
        kind
        for kind in found
        if inspect.isclass(kind) and issubclass(kind, Kernel) and not inspect.isabstract(kind) and kind not in composed
    ]


def alternatives(annotation: Any, default: Any) -> list[Any]:
    """Other values of an option, by its type."""
    if annotation is bool:
        return [not default]
    if annotation is int:
        return [0, 1, 2, 3]
    if get_origin(annotation) is not None:
        arguments = get_args(annotation)
        if not all(isinstance(value, str) for value in arguments):
            return [value for argument in arguments for value in alternatives(argument, default)]
        return list(arguments)
    for inputs in (KernelInputs, PointInputs):
        if annotation is inputs:
            fields = list(inspect.signature(inputs).parameters)
            without_one = [inputs(**{name: False}) for name in fields]
            return [*without_one, inputs(**dict.fromkeys(fields, False))]
    return []


def variants(kind: type[Kernel]) -> Iterator[tuple[str, Kernel]]:
    """The kernel with its defaults, and with each valid change of one option or of two."""
    signature, hints = inspect.signature(kind), get_type_hints(kind.__init__)
    base = {name: SIZES[name] for name in signature.parameters if name in SIZES}
    changes = [
        {name: value}
        for name, parameter in signature.parameters.items()
        for value in alternatives(hints.get(name), parameter.default)
    ]
    pairs = ({**first, **second} for first, second in itertools.combinations(changes, 2))
    yield "defaults", kind(**base)
    for change in itertools.chain(changes, pairs):
        try:
            made = kind(**{**base, **change})
        except (ValueError, TypeError):
            continue
        yield str(change), made


@pytest.mark.parametrize("kind", public_kernels(), ids=lambda kind: kind.__name__)
def test_no_parameter_is_empty(kind):
    made = 0
    for name, kernel in variants(kind):
        empty = [path for path, parameter in kernel.named_parameters() if parameter.numel() == 0]
        assert not empty, f"{kind.__name__} with {name}: {empty}"
        made += 1
    assert made > 1


@pytest.mark.parametrize("name", ["MLP", "LowRankMLP", "SeparableMLP"])
def test_perceptrons_without_inputs_are_constant_and_load_checkpoints(name):
    kind, inputs = getattr(kernels, name), KernelInputs if name == "MLP" else PointInputs
    nothing = inputs(**dict.fromkeys(inspect.signature(inputs).parameters, False))
    options = {"rank": 2} if name == "LowRankMLP" else {}
    saved, loaded = (kind(4, 2, 1, width=3, inputs=nothing, epsilon=1.0, **options) for _ in range(2))
    loaded.load_state_dict(saved.state_dict())
    expected = saved.matrix(torch.randn(2, 5, 4), Sequence(5))
    torch.testing.assert_close(loaded.matrix(torch.randn(2, 5, 4), Sequence(5)), expected)
    torch.testing.assert_close(expected, expected[:1, :1, :1].expand_as(expected))
