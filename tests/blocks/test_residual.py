from typing import Any

import torch

from fredholm import IntegralOperator, kernels
from fredholm.blocks import FeedForward, ResidualBlock
from fredholm.domains import Grid, Points, Sequence
from tests.refusals import refused


def block(*, hidden_dropout: float = 0.0, **settings: Any) -> ResidualBlock:
    """Four channels, float64; norms and biases are random too, since their initial values could hide errors."""
    kernel = kernels.MLP(4, 2, 2, width=5, num_frequencies=3)
    built = ResidualBlock(IntegralOperator(kernel), FeedForward(4, dropout=hidden_dropout), **settings).double()
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return built


def norm(layer: torch.nn.Module, u: torch.Tensor) -> torch.Tensor:
    assert isinstance(layer, torch.nn.LayerNorm)
    centred = u - u.mean(-1, keepdim=True)
    scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    return scaled * layer.weight + layer.bias


def test_equals_its_formula() -> None:
    built, u, domain = block(), torch.randn(3, 6, 4, dtype=torch.float64), Grid(2, 3)
    z = u + built.operator(norm(built.operator_norm, u), domain)
    expected = z + built.feed_forward(norm(built.feed_forward_norm, z))
    assert built.training
    torch.testing.assert_close(built(u, domain), expected)


def test_post_norm_equals_its_formula() -> None:
    built, u, domain = block(norm_first=False), torch.randn(3, 6, 4, dtype=torch.float64), Grid(2, 3)
    z = norm(built.operator_norm, u + built.operator(u, domain))
    torch.testing.assert_close(built(u, domain), norm(built.feed_forward_norm, z + built.feed_forward(z)))


def test_scaled_branches_without_norms_equal_their_formula() -> None:
    built, u, domain = block(norm=None, branch_scale=0.5), torch.randn(3, 6, 4, dtype=torch.float64), Grid(2, 3)
    assert built.operator_scale is not None
    assert built.feed_forward_scale is not None
    z = u + built.operator_scale * built.operator(u, domain)
    torch.testing.assert_close(built(u, domain), z + built.feed_forward_scale * built.feed_forward(z))


def test_output_at_other_points() -> None:
    for settings in ({}, {"norm_first": False}):
        built, u, domain = block(**settings), torch.randn(3, 6, 4, dtype=torch.float64), Grid(2, 3)
        some = Points(domain.pos[1:4])
        torch.testing.assert_close(built.at(u[:, 1:4], some, u, domain), built(u, domain)[:, 1:4])


def test_evaluation_drops_nothing() -> None:
    plain, dropping = block(), block(dropout=0.5, feed_forward_dropout=0.5, drop_path=0.5).eval()
    dropping.load_state_dict(plain.state_dict())
    u = torch.randn(3, 6, 4, dtype=torch.float64)
    assert torch.equal(dropping(u, Grid(2, 3)), plain(u, Grid(2, 3)))


def test_dropout_after_each_branch_and_stochastic_depth_on_both() -> None:
    built = block(dropout=0.3, feed_forward_dropout=0.2, drop_path=0.4)
    u, domain = torch.randn(32, 6, 4, dtype=torch.float64), Grid(2, 3)
    torch.manual_seed(1)
    out = built(u, domain)
    torch.manual_seed(1)
    z = u + built.drop_path(torch.nn.functional.dropout(built.operator(built.operator_norm(u), domain), 0.3))
    hidden = torch.nn.functional.dropout(built.feed_forward(built.feed_forward_norm(z)), 0.2)
    torch.testing.assert_close(out, z + built.drop_path(hidden))
    skipped = (z == u).flatten(1).all(1)
    assert 0 < skipped.sum() < 32


def test_masked_points_do_not_affect_other_points() -> None:
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


def test_bad_settings_are_refused() -> None:
    kernel = kernels.Convolution(4, 6, 1)
    with refused(ValueError, "ResidualBlock", "4 to 6 channels", "as many"):
        ResidualBlock(IntegralOperator(kernel, residual=False), FeedForward(4))
    with refused(ValueError, "ResidualBlock", "norm_first=False has no effect"):
        block(norm=None, norm_first=False)
    with refused(ValueError, "ResidualBlock", "feed_forward_dropout must be in [0, 1)", "got 1.0"):
        block(feed_forward_dropout=1.0)


def test_the_default_domain_is_a_sequence() -> None:
    block = ResidualBlock(IntegralOperator(kernels.MLP(4, 2, 1, width=3)), FeedForward(4))
    u = torch.randn(2, 5, 4)
    assert torch.equal(block(u), block(u, Sequence(5)))
