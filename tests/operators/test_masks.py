"""Points that do not exist are never read and have no weight."""

from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor

from fredholm import IntegralOperator
from fredholm.domains import Domain, Grid, Points, Sequence, Union
from fredholm.evaluation import AUTO, Dense
from tests.operators.build import CONTENT_FREE, gradients, operator, signal

NAN, INF = float("nan"), float("inf")
MASK = torch.tensor([[True, True, False, True], [False, True, True, True]])
POS = torch.rand(2, 4, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def run(op: IntegralOperator, u: Tensor, domain: Domain, **more: Any) -> dict[str, Tensor]:
    """The result, and all gradients of a functional of it that depends on every entry."""
    op.zero_grad()
    leaves = [t.clone().requires_grad_() for t in (u, more.pop("query", None)) if isinstance(t, Tensor)]
    if len(leaves) > 1:
        more["query"] = leaves[1]
    out = op(leaves[0], domain, **more)
    (out * torch.linspace(1, 2, out.numel(), dtype=out.dtype).view_as(out)).sum().backward()
    return {"out": out.detach()} | {name: grad.clone() for name, grad in gradients(op, *leaves).items()}


def assert_same(got: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    for name in expected:
        assert got[name].isfinite().all(), name
        torch.testing.assert_close(got[name], expected[name], msg=lambda text, name=name: f"{name}: {text}")


def domains_with(value: float, mask: Tensor = MASK) -> dict[str, Domain]:
    """Domains of four points each, including grids, with `value` as position or time of points that do not exist."""
    pos = torch.where(mask[..., None], POS, value)
    times = torch.where(mask, POS[..., 0].cumsum(-1), value)
    grid, tail = Grid(2, 2, mask=mask), Points(pos[:, 1:], mask=mask[:, 1:])
    return {
        "points": Points(pos, mask=mask),
        "grid": grid,
        "times": Sequence(times=times, mask=mask),
        "sequence": Sequence(4, mask=mask),
        "union": Union(Grid(1, 1, mask=mask[:, :1]), tail),
    }


@pytest.mark.pairs
@pytest.mark.parametrize("garbage", [NAN, INF, 1e30])
@pytest.mark.parametrize("kind", ["points", "grid", "times", "sequence", "union"])
@pytest.mark.parametrize("evaluation", [AUTO, Dense()])
def test_values_at_missing_points_have_no_effect(kind: str, garbage: float, evaluation: Dense) -> None:
    clean, dirty = domains_with(0.0)[kind], domains_with(garbage)[kind]
    op = operator(clean.pos_dim, evaluation=evaluation)
    u = signal(4)
    expected = run(op, torch.where(MASK[..., None], u, 0.0), clean)
    got = run(op, torch.where(MASK[..., None], u, garbage), dirty)
    assert_same(got, expected)
    assert (got["out"][~MASK] == 0).all()
    assert (got["input 0"][~MASK] == 0).all()
    assert got["input 0"][MASK].all()


@pytest.mark.parametrize("garbage", [NAN, INF, 1e30])
@pytest.mark.parametrize("domain", [Points(POS), Grid(2, 2), Union(Grid(1, 2), Points(POS[0, :2]))], ids=repr)
def test_values_masked_by_a_call_have_no_effect(domain: Domain, garbage: float) -> None:
    op, u = operator(), signal(4)
    got = run(op, torch.where(MASK[..., None], u, garbage), domain, key_padding_mask=MASK)
    assert_same(got, run(op, u, domain.restrict(MASK)))
    assert (got["input 0"][~MASK] == 0).all()


@pytest.mark.parametrize("far", [1e20, 3e38])
@pytest.mark.parametrize("masked_by", ["domain", "call"])
def test_a_padded_position_beyond_float32_causes_no_overflow(masked_by: str, far: float) -> None:
    op, u, keep = operator(dtype=torch.float32), signal(4, dtype=torch.float32), MASK[0]
    pos = torch.where(keep[:, None], POS[0], far).float()
    if masked_by == "domain":
        got = run(op, u, Points(pos, mask=keep))
    else:
        got = run(op, u, Points(pos), key_padding_mask=keep)
    assert_same(got, run(op, u, Points(POS[0].float(), mask=keep)))


@pytest.mark.parametrize("garbage", [NAN, 1e30])
def test_values_at_missing_queries_have_no_effect(garbage: float) -> None:
    op, u, v = operator(), signal(5), signal(4, seed=1)
    keys = Points(torch.rand(5, 2, dtype=torch.float64))
    expected = run(op, u, keys, query=torch.where(MASK[..., None], v, 0.0), query_domain=domains_with(0.0)["points"])
    got = run(op, u, keys, query=torch.where(MASK[..., None], v, garbage), query_domain=domains_with(garbage)["points"])
    assert_same(got, expected)
    assert (got["out"][~MASK] == 0).all()
    assert got["out"][MASK].all()
    assert (got["input 1"][~MASK] == 0).all()
    assert got["input 0"].all()


@pytest.mark.parametrize("domain", [Points(POS), Grid(2, 2), Sequence(4), Union(Grid(1, 2), Grid(2, 1))], ids=repr)
@pytest.mark.parametrize("evaluation", [AUTO, Dense()])
def test_without_existing_points_everything_is_exactly_zero(domain: Domain, evaluation: Dense) -> None:
    op, none = operator(domain.pos_dim, evaluation=evaluation), torch.zeros(4, dtype=torch.bool)
    u = torch.full((2, 4, 6), NAN, dtype=torch.float64)
    for got in (run(op, u, domain, key_padding_mask=none), run(op, u, domain.restrict(none))):
        assert got["out"].shape == (2, 4, 6)
        assert {name for name, value in got.items() if value.ne(0).any()} == set()


def test_without_points_to_integrate_queries_get_residual_and_bias() -> None:
    op, u, v = operator(), signal(4), signal(3, seed=1)
    none, queries = torch.zeros(4, dtype=torch.bool), Points(torch.rand(3, 2, dtype=torch.float64))
    got = run(op, u, Grid(2, 2), query=v, query_domain=queries, key_padding_mask=none)
    assert op.residual_weight is not None
    assert op.bias is not None
    assert torch.equal(got["out"], (op.bias + v @ op.residual_weight.T).detach())
    assert {name for name, value in got.items() if value.any()} == {"out", "residual_weight", "bias", "input 1"}


def test_an_empty_batch_entry_does_not_affect_the_others() -> None:
    op, u = operator(), signal(4)
    mask = torch.tensor([[False] * 4, [True, True, False, True]])
    got = run(op, u, Grid(2, 2), key_padding_mask=mask)
    alone = run(op, u[1:], Grid(2, 2), key_padding_mask=mask[1])
    assert (got["out"][0] == 0).all()
    torch.testing.assert_close(got["out"][1:], alone["out"])


@pytest.mark.slow
@given(st.lists(st.booleans(), min_size=6, max_size=6), st.booleans(), st.booleans())
def test_masking_points_equals_dropping_them(keep: list[bool], weighted: bool, is_causal: bool) -> None:
    mask = torch.tensor(keep)
    weights = torch.tensor([0.5, 2.0, 0.0, 1.0, 3.0, 0.25], dtype=torch.float64) if weighted else None
    op, u = operator(is_causal=is_causal), signal(6)
    for domain in (Grid(2, 3, weights=weights), Points(Grid(2, 3).pos, weights=weights)):
        dropped = Points(domain.pos[mask], weights=None if weights is None else weights[mask])
        expected = op(u[:, mask], dropped)
        for got in (op(u, domain, key_padding_mask=mask), op(u, domain.restrict(mask))):
            torch.testing.assert_close(got[:, mask], expected)
            assert (got[:, ~mask] == 0).all()


def test_each_batch_entry_has_its_own_mask() -> None:
    op, u, domain = operator(), signal(4), Points(POS)
    got = op(u, domain, key_padding_mask=MASK)
    for entry, keep in enumerate(MASK):
        expected = op(u[entry : entry + 1, keep], Points(POS[entry, keep]))
        torch.testing.assert_close(got[entry : entry + 1, keep], expected)


def test_the_masks_of_domain_and_call_are_combined() -> None:
    op, u = operator(), signal(4)
    of_domain, call = torch.tensor([True, True, False, True]), torch.tensor([True, False, True, True])
    got = op(u, Grid(2, 2, mask=of_domain), key_padding_mask=call)
    assert torch.equal(got, op(u, Grid(2, 2, mask=of_domain & call)))
    assert not torch.allclose(got, op(u, Grid(2, 2, mask=of_domain)))


def test_the_mask_of_a_call_applies_to_keys_and_not_to_separate_queries() -> None:
    op, u, v = operator(inputs=CONTENT_FREE), signal(4), signal(4, seed=1)
    keep = torch.tensor([True, False, True, True])
    got = op(u, Grid(2, 2), query=v, key_padding_mask=keep)
    expected = op(u[:, keep], Points(Grid(2, 2).pos[keep]), query=v, query_domain=Grid(2, 2))
    torch.testing.assert_close(got, expected)
    assert got[:, 1].all()
