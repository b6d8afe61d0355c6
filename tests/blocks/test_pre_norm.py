from typing import Any

import torch

from fredholm import IntegralOperator, kernels
from fredholm.blocks.pre_norm import PreNormBlock
from fredholm.domains import Grid, Points
from tests.refusals import refused


def block(**settings: Any) -> PreNormBlock:
    """Four channels, float64; norms and biases are noise too, so that nothing hides behind their start."""
    kernel = kernels.MLP(4, 2, 2, width=5, num_frequencies=3)
    built = PreNormBlock(IntegralOperator(kernel), 4, **settings).double()
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return built


def norm(layer: torch.nn.LayerNorm, u: torch.Tensor) -> torch.Tensor:
    centred = u - u.mean(-1, keepdim=True)
    scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    return scaled * layer.weight + layer.bias


def test_is_its_formula() -> None:
    built, u, domain = block(), torch.randn(3, 6, 4, dtype=torch.float64), Grid(2, 3)
    z = u + built.operator(norm(built.operator_norm, u), domain)
    expected = z + built.feed_forward(norm(built.feed_forward_norm, z))
    assert built.training
    torch.testing.assert_close(built(u, domain), expected)


def test_evaluation_drops_nothing() -> None:
    plain, dropping = block(), block(dropout=0.5, drop_path=0.5).eval()
    dropping.load_state_dict(plain.state_dict())
    u = torch.randn(3, 6, 4, dtype=torch.float64)
    assert torch.equal(dropping(u, Grid(2, 3)), plain(u, Grid(2, 3)))


def test_dropout_after_the_operator_and_stochastic_depth_on_each_branch() -> None:
    built, u, domain = block(dropout=0.3, drop_path=0.4), torch.randn(32, 6, 4, dtype=torch.float64), Grid(2, 3)
    torch.manual_seed(1)
    out = built(u, domain)
    torch.manual_seed(1)
    integral = torch.nn.functional.dropout(built.operator(built.operator_norm(u), domain), 0.3)
    z = u + built.drop_path(integral)
    torch.testing.assert_close(out, z + built.drop_path(built.feed_forward(built.feed_forward_norm(z))))
    assert (built.feed_forward.dropout.p, built.drop_path.probability) == (0.3, 0.4)
    skipped = (z == u).flatten(1).all(1)
    assert 0 < skipped.sum() < 32


def test_what_is_masked_reaches_no_other_point() -> None:
    built, u, domain = block(), torch.randn(2, 6, 4, dtype=torch.float64), Grid(2, 3)
    mask = torch.tensor([True, True, False, True, True, True])
    garbage = torch.where(mask[:, None], u, 1e6)
    out = built(garbage, domain, key_padding_mask=mask)
    torch.testing.assert_close(out[:, mask], built(u[:, mask], Points(domain.pos[mask])))
    torch.testing.assert_close(out[:, mask], built(garbage, Grid(2, 3, mask=mask))[:, mask])


def test_every_parameter_receives_a_gradient() -> None:
    built = block()
    built(torch.randn(2, 6, 4, dtype=torch.float64), Grid(2, 3)).square().sum().backward()
    missing = [name for name, p in built.named_parameters() if p.numel() and (p.grad is None or not p.grad.any())]
    assert missing == []


def test_an_operator_of_another_width() -> None:
    operator = IntegralOperator(kernels.MLP(6, 2, 2))
    with refused(ValueError, "PreNormBlock", "6 to 6 channels", "4"):
        PreNormBlock(operator, 4)
