import torch
from torch import Tensor

from fredholm import IntegralOperator, kernels
from fredholm.blocks.post_norm import PostNormBlock
from fredholm.domains import Points, Sequence
from tests.refusals import refused


def operator(in_dim: int, out_dim: int) -> IntegralOperator:
    kernel = kernels.ContinuousConvolution(in_dim, out_dim, width=5, omega_0=9.0, scale=6.0, spacing=1.0)
    return IntegralOperator(kernel, residual=False, output_projection=False)


def block(in_dim: int, out_dim: int, dropout: float = 0.0) -> PostNormBlock:
    """Float64; norms and biases are random too, since their initial values could hide errors."""
    built = PostNormBlock(operator(in_dim, 4), operator(4, out_dim), dropout=dropout).double()
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return built


def norm(layer: torch.nn.LayerNorm, u: Tensor) -> Tensor:
    centred = u - u.mean(-1, keepdim=True)
    scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    return scaled * layer.weight + layer.bias


def signal(channels: int) -> tuple[Tensor, Sequence]:
    return torch.randn(3, 6, channels, dtype=torch.float64), Sequence(6, spacing=1.0)


def test_equals_its_formula() -> None:
    for in_dim, out_dim in ((3, 5), (5, 5)):
        built, (u, domain) = block(in_dim, out_dim), signal(in_dim)
        inner = norm(built.first_norm, built.first(u, domain)).clamp(min=0)
        branch = norm(built.second_norm, built.second(inner, domain)).clamp(min=0)
        straight = u
        if in_dim != out_dim:
            assert isinstance(built.shortcut, torch.nn.Linear)
            straight = u @ built.shortcut.weight.mT + built.shortcut.bias
        torch.testing.assert_close(built(u, domain), (straight + branch).clamp(min=0))


def test_dropout_acts_between_the_operators() -> None:
    built, (u, domain) = block(3, 5, dropout=0.4), signal(3)
    torch.manual_seed(1)
    out = built(u, domain)
    torch.manual_seed(1)
    inner = torch.nn.functional.dropout(built.first_norm(built.first(u, domain)).clamp(min=0), 0.4)
    branch = norm(built.second_norm, built.second(inner, domain)).clamp(min=0)
    torch.testing.assert_close(out, (built.shortcut(u) + branch).clamp(min=0))
    assert torch.equal(built.eval()(u, domain), built(u, domain))


def test_masked_points_do_not_affect_other_points() -> None:
    built, (u, domain) = block(3, 5), signal(3)
    mask = torch.tensor([True, True, False, True, True, False])
    garbage = torch.where(mask[:, None], u, 1e6)
    expected = built(u[:, mask], Points(domain.pos[mask]))
    torch.testing.assert_close(built(garbage, domain, key_padding_mask=mask)[:, mask], expected)
    torch.testing.assert_close(built(garbage, Sequence(6, spacing=1.0, mask=mask))[:, mask], expected)


def test_results_at_some_points_equal_those_of_the_whole() -> None:
    built, (u, domain) = block(3, 5), signal(3)
    parameters = list(built.parameters())
    for at in (torch.tensor([5]), torch.tensor([4, 1]), torch.tensor([[2, 0], [5, 5], [1, 3]])):
        places = at.expand(3, -1)[..., None]
        results = [built(u, domain, at=at), built(u, domain).take_along_dim(places, 1)]
        torch.testing.assert_close(*results)
        grads = [torch.autograd.grad((out * out.detach().cos()).sum(), parameters) for out in results]
        torch.testing.assert_close(*grads)


def test_chunks_equal_the_whole_sequence() -> None:
    built, (u, domain) = block(3, 5), signal(3)
    state = built.initial_state(3)
    first, state = built.scan(u[:, :2], Sequence(2, spacing=1.0), state)
    second, _ = built.scan(u[:, 2:], Sequence(4, spacing=1.0, start=2.0), state)
    torch.testing.assert_close(torch.cat([first, second], 1), built(u, domain))


def test_every_parameter_receives_a_gradient() -> None:
    built, (u, domain) = block(3, 5), signal(3)
    built(u, domain).square().sum().backward()
    missing = [name for name, p in built.named_parameters() if p.numel() and (p.grad is None or not p.grad.any())]
    assert missing == []


def test_operators_of_mismatched_widths_are_refused() -> None:
    with refused(ValueError, "PostNormBlock: the first operator gives 4 channels, the second takes 5"):
        PostNormBlock(operator(3, 4), operator(5, 5))
