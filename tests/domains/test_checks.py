"""Values of tensors are checked exactly where they can be read."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from fredholm import IntegralOperator, kernels
from fredholm.domains import Domain, Points, Sequence, trapezoid_weights
from fredholm.domains.checks import values_can_be_read
from fredholm.evaluation import AUTO, Dense
from tests.refusals import refused


def test_values_of_plain_tensors_can_be_read():
    assert values_can_be_read(torch.zeros(2), None, torch.zeros(0), torch.nn.Parameter(torch.ones(1)))


def test_values_of_meta_and_fake_tensors_cannot_be_read():
    assert not values_can_be_read(torch.zeros(2), torch.zeros(2, device="meta"))
    mode = FakeTensorMode()
    assert not values_can_be_read(mode.from_tensor(torch.zeros(2)))
    with mode:
        assert not values_can_be_read(torch.zeros(2))


def test_values_under_transforms():
    found = []

    def note(x: Tensor) -> Tensor:
        found.append(values_can_be_read(x))
        return x.square().sum()

    x = torch.ones(3, 2)
    torch.func.grad(note)(x)
    torch.func.jvp(note, (x,), (x,))
    assert found == [True, True]
    torch.func.vmap(note)(x)
    torch.func.vmap(torch.func.grad(note))(x)
    torch.func.grad(lambda x: torch.func.vmap(note)(x).sum())(x)
    assert not any(found[2:])


DOMAINS: dict[str, Callable[[Tensor, Tensor], Domain]] = {
    "points": lambda pos, mask: Points(pos, mask=mask),
    "weighed points": lambda pos, mask: Points(pos, pos[..., 0], mask),
    "weighed pairs": lambda pos, mask: Points(pos, mask=mask).weigh_pairs(pos.mT.expand(*pos.shape[:-1], -1)),
    "times": lambda pos, mask: Sequence(times=pos[..., 0], mask=mask),
    "trapezoids": lambda pos, mask: Sequence(
        times=pos[..., 0], weights=trapezoid_weights(pos[..., 0], mask), mask=mask
    ),
}
KERNELS = {
    "MLP": lambda: kernels.MLP(4, 2, 1, width=3, num_frequencies=2, depth=3),
    "causal attention": lambda: kernels.Attention(4, 2, is_causal=True),
    "sum": lambda: kernels.LinearAttention(4) + 0.5 * kernels.MLP(4, 2, 1, width=3, num_frequencies=2),
}


@pytest.fixture
def samples() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    u, pos = torch.randn(3, 5, 4, generator=generator), torch.rand(3, 5, 1, generator=generator).sort(1).values
    return u, pos, torch.arange(5) < torch.tensor([[5], [3], [4]])


@pytest.mark.parametrize("domain", DOMAINS.values(), ids=DOMAINS.keys())
@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS.keys())
def test_vmap_over_positions(kernel, domain, samples):
    operator = IntegralOperator(kernel(), evaluation=Dense())
    u, pos, mask = samples
    expected = torch.cat([operator(u[b : b + 1], domain(pos[b], mask[b])) for b in range(3)])
    got = torch.func.vmap(lambda v, p, m: operator(v[None], domain(p, m))[0])(u, pos, mask)
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("domain", DOMAINS.values(), ids=DOMAINS.keys())
def test_domains_of_shapes(domain, samples):
    _, pos, mask = samples
    with FakeTensorMode() as mode:
        found = [domain(mode.from_tensor(pos), mode.from_tensor(mask))]
    found.append(domain(pos.to("meta"), mask.to("meta")))
    assert [made.device.type for made in found] == ["cpu", "meta"]
    assert all(made.pos.shape == pos.shape and made.weights.shape == pos.shape[:2] for made in found)


@pytest.mark.parametrize("evaluation", [AUTO, Dense()], ids=["auto", "dense"])
@pytest.mark.parametrize("kernel", [*KERNELS.values(), lambda: kernels.LSTM(4, 4)], ids=[*KERNELS.keys(), "LSTM"])
def test_an_operator_on_fake_tensors(kernel, evaluation, samples):
    with FakeTensorMode() as mode:
        operator = IntegralOperator(kernel(), evaluation=evaluation)
        u, pos, mask = map(mode.from_tensor, samples)
        out = operator(u, Sequence(times=pos[..., 0], mask=mask))
    assert out.shape == u.shape


def test_checks_remain_where_values_can_be_read(samples):
    _, pos, _ = samples
    bad = pos.clone()
    bad[0, 0] = torch.nan

    def total(pos: Tensor) -> Tensor:
        return Points(pos).pos.sum()

    with refused(ValueError, "Points: pos holds NaN"):
        torch.func.grad(total)(bad)
    with refused(ValueError, "Sequence: times must not decrease"):
        torch.func.grad(lambda t: Sequence(times=t).pos.sum())(-pos[0, :, 0])
