"""Fourier features of displacements without a table, rotated on the side of the queries or of the keys."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fredholm.evaluation.perceptron import all_pairs


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(("queries", "keys"), [(3, 3), (5, 2), (2, 5), (1, 4), (4, 1), (0, 3), (3, 0)])
def test_both_sides_give_the_formula_and_its_gradients(
    monkeypatch: pytest.MonkeyPatch, batch: int, queries: int, keys: int
) -> None:
    generator = torch.Generator().manual_seed(0)
    kernels, width, frequencies = 2, 3, 4

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()

    s, c = drawn(kernels, width, frequencies), drawn(kernels, width, frequencies)
    angles, others = drawn(batch, queries, frequencies), drawn(batch, keys, frequencies)
    inputs: Any = SimpleNamespace(
        query=torch.empty(0, dtype=torch.float64),
        query_phase=torch.cat([angles.sin(), angles.cos()], dim=-1),
        key_phase=torch.cat([others.sin(), others.cos()], dim=-1),
        sin_weight=s,
        cos_weight=c,
        **dict.fromkeys(("distance_weight", "wrapped_weight", "frequencies")),
    )
    turned, original = [], all_pairs._turned
    monkeypatch.setattr(
        all_pairs, "_turned", lambda phase, *rest: (turned.append(phase.shape[1]), original(phase, *rest))[1]
    )
    found = all_pairs.by_parts(inputs)
    assert turned == [min(queries, keys)]  # rotating the larger side would take more memory
    between = (angles[:, :, None] - others[:, None])[:, None, :, :, None]  # (B, 1, Nq, N, 1, L)
    expected = (s[:, None, None] * between.sin() + c[:, None, None] * between.cos()).sum(-1)
    torch.testing.assert_close(found, expected)
    leaves, cotangent = (s, c, angles, others), torch.randn(expected.shape, generator=generator, dtype=torch.float64)
    for ours, theirs in zip(
        *(torch.autograd.grad(value, leaves, cotangent) for value in (found, expected)), strict=True
    ):
        torch.testing.assert_close(ours, theirs)
