from typing import Any

import pytest
import torch
from torch import Tensor

from fredholm import kernels
from fredholm.blocks.discounted import DiscountedBlock
from fredholm.domains import Grid, Points
from tests.refusals import refused


def block(**settings: Any) -> DiscountedBlock:
    """Four channels in two heads, float64, with random norms and biases: their initial values could hide errors."""
    built = DiscountedBlock(kernels.InfiniteAttention(4, 2, form="hop"), 4, **settings).double()
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return built


def norm(layer: torch.nn.LayerNorm, u: Tensor) -> Tensor:
    centred = u - u.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * layer.weight + layer.bias


@pytest.mark.parametrize("with_before", [False, True])
def test_equals_its_formula(with_before: bool) -> None:
    built, u, domain = block(), torch.randn(3, 6, 4, dtype=torch.float64), Grid(2, 3)
    factor, before = torch.tensor([0.7, 0.3]), torch.randn(3, 6, 4, dtype=torch.float64) if with_before else None
    v = norm(built.operator_norm, u)
    kappa = built.operator.kernel.matrix(v, domain)
    hop = torch.einsum("bqkoi,bki->bqo", kappa, torch.cat([v, v.new_ones(3, 6, 1)], -1))
    total = hop * torch.tensor([0.7, 0.7, 0.3, 0.3]) + (0 if before is None else before)
    z = u + total @ built.output.weight.T + built.output.bias
    expected = z + built.feed_forward(norm(built.feed_forward_norm, z))
    out, reached = built(u, domain, factor, before)
    torch.testing.assert_close(reached, total)
    torch.testing.assert_close(out, expected)


def test_dropout_after_the_output_map_and_stochastic_depth_on_each_branch() -> None:
    built, u, domain = block(dropout=0.3, drop_path=0.4), torch.randn(32, 6, 4, dtype=torch.float64), Grid(2, 3)
    factor = torch.tensor([0.7, 0.3])
    torch.manual_seed(1)
    out, total = built(u, domain, factor)
    torch.manual_seed(1)
    z = u + built.drop_path(torch.nn.functional.dropout(built.output(total), 0.3))
    torch.testing.assert_close(out, z + built.drop_path(built.feed_forward(built.feed_forward_norm(z))))
    assert built.feed_forward.dropout.p == 0.3
    assert not torch.equal(built.eval()(u, domain, factor)[0], out)


def test_masked_points_do_not_affect_other_points() -> None:
    built, u, domain = block(), torch.randn(2, 6, 4, dtype=torch.float64), Grid(2, 3)
    mask, factor = torch.tensor([True, True, False, True, True, True]), torch.tensor([0.7, 0.3])
    out, _ = built(torch.where(mask[:, None], u, 1e6), domain, factor, key_padding_mask=mask)
    torch.testing.assert_close(out[:, mask], built(u[:, mask], Points(domain.pos[mask]), factor)[0])


def test_initial_output_maps_are_scaled_by_the_gain() -> None:
    built = DiscountedBlock(kernels.InfiniteAttention(64, 2, form="hop"), 64, output_gain=0.25)
    assert built.output.weight.abs().max().item() == pytest.approx(0.25 * (6 / 128) ** 0.5, rel=1e-2)
    assert built.feed_forward.contract.weight.abs().max().item() == pytest.approx(0.25 * (6 / 320) ** 0.5, rel=1e-2)
    assert not built.output.bias.any()


def test_a_kernel_of_another_width_is_refused() -> None:
    with refused(ValueError, "the kernel maps 4 to 4 channels", "the block has embed_dim 6"):
        DiscountedBlock(kernels.InfiniteAttention(4, 2, form="hop"), 6)
