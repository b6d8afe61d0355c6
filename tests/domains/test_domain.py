"""Properties of every domain: a measure over the existing points, masks, restriction, devices."""

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import assume, given
from torch import Tensor

from fredholm.domains import Domain, Grid, Points, Sequence, Union
from tests.refusals import refused

NAN, INF = float("nan"), float("inf")
KINDS = ["points", "batched points", "grid", "sequence", "times", "batched times", "union"]


def build(kind: str, n: int, mask: Tensor | None = None, weights: Tensor | None = None) -> Domain:
    """A domain of n points; batched ones have two batch entries."""
    generator = torch.Generator().manual_seed(n)
    if kind == "points":
        return Points(torch.rand(n, 2, generator=generator), weights, mask)
    if kind == "batched points":
        return Points(torch.rand(2, n, 2, generator=generator), weights, mask)
    if kind == "grid":
        return Grid(1, n, weights=weights, mask=mask)
    if kind == "sequence":
        return Sequence(n, weights=weights, mask=mask)
    if kind == "times":
        return Sequence(times=torch.rand(n, generator=generator).cumsum(0), weights=weights, mask=mask)
    if kind == "batched times":
        return Sequence(times=torch.rand(2, n, generator=generator).cumsum(1), weights=weights, mask=mask)
    first = n // 2
    parts = [None, None] if mask is None else mask.split([first, n - first], -1)
    shares = [None, None] if weights is None else weights.split([first, n - first], -1)
    return Union(
        Points(torch.rand(first, 1, generator=generator), shares[0], parts[0]),
        Sequence(n - first, weights=shares[1], mask=parts[1]),
    )


@st.composite
def masks(draw: st.DrawFn, n: int) -> Tensor | None:
    """None, or a mask of n points, for all or for each of two batch entries."""
    batched = draw(st.sampled_from([None, False, True]))
    if batched is None:
        return None
    mask = torch.tensor(draw(st.lists(st.booleans(), min_size=2 * n, max_size=2 * n)), dtype=torch.bool).view(2, n)
    return mask if batched else mask[0]


@given(st.data(), st.sampled_from(KINDS), st.integers(1, 7))
def test_the_default_measure_is_uniform_over_the_points_that_exist(data: st.DataObject, kind: str, n: int) -> None:
    mask = data.draw(masks(n))
    domain = build(kind, n, mask)
    expected = torch.ones(n, dtype=torch.bool) if mask is None else mask
    assert domain.num_points == n
    if mask is None:
        assert domain.mask is None
    else:
        assert domain.mask is not None
        assert torch.equal(domain.mask, mask)
    weights = domain.weights.expand(*expected.shape[:-1], n)
    assert weights.dtype == domain.pos.dtype
    for row, exists in zip(weights.reshape(-1, n), expected.reshape(-1, n), strict=True):
        count = int(exists.sum())
        torch.testing.assert_close(row, exists.to(row.dtype) / max(count, 1))
        assert (row[~exists] == 0).all()
        if count:
            torch.testing.assert_close(row.sum().item(), 1.0)


@given(st.data(), st.sampled_from(KINDS), st.integers(1, 7))
def test_restriction_is_the_domain_built_with_the_joint_mask(data: st.DataObject, kind: str, n: int) -> None:
    built, restriction = data.draw(masks(n)), data.draw(masks(n))
    domain = build(kind, n, built)
    joint = restriction if built is None else built if restriction is None else restriction & built
    restricted, expected = domain.restrict(restriction), build(kind, n, joint)
    assert type(restricted) is type(domain)
    assert torch.equal(restricted.weights, expected.weights)
    if joint is None:
        assert restricted.mask is None
    else:
        assert restricted.mask is not None
        assert torch.equal(restricted.mask, joint)
    assert restricted.grid_blocks == domain.grid_blocks
    assert torch.equal(domain.weights, build(kind, n, built).weights)  # the domain itself is unchanged


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "union"])
def test_given_weights_are_kept(kind: str) -> None:
    weights, mask = torch.tensor([0.5, 2.0, 0.0, 7.0]), torch.tensor([True, False, True, True])
    domain = build(kind, 4, weights=weights)
    assert torch.equal(domain.weights, weights)
    assert domain.restrict(mask).weights.tolist() == [0.5, 0.0, 0.0, 7.0]
    assert build(kind, 4, mask, weights).weights.tolist() == [0.5, 0.0, 0.0, 7.0]
    per_batch = domain.restrict(torch.stack([mask, ~mask]))
    assert per_batch.weights.tolist() == [[0.5, 0.0, 0.0, 7.0], [0.0, 2.0, 0.0, 0.0]]
    assert per_batch.batch_size == 2


@pytest.mark.parametrize("kind", KINDS)
def test_weights_of_one_batch_entry_each(kind: str) -> None:
    weights = torch.tensor([[1.0, 2.0, 3.0], [0.0, 1.0, 0.0]])
    domain = build(kind, 3, weights=weights)
    assert domain.batch_size == 2
    assert domain.weights.shape == (2, 3)
    if kind != "union":  # a union distributes its mass over the parts again
        assert torch.equal(domain.weights, weights)


@pytest.mark.parametrize("value", [NAN, INF, -INF, 3e38])
@pytest.mark.parametrize("kind", ["points", "batched points", "times", "batched times"])
def test_positions_of_points_that_do_not_exist_are_blanked(kind: str, value: float) -> None:
    shape = {"points": (3, 2), "batched points": (2, 3, 2), "times": (3,), "batched times": (2, 3)}[kind]
    values = torch.linspace(1, 2, math.prod(shape)).view(shape)
    pos = values[..., None] if "times" in kind else values
    kept = pos[..., [0, 2], :]
    pos[..., 1, :] = value
    mask = torch.tensor([True, False, True])
    weights = torch.tensor([1.0, NAN, 1.0])
    domain = Sequence(times=values, mask=mask, weights=weights) if "times" in kind else Points(values, weights, mask)
    assert (domain.pos[..., 1, :] == 0).all()
    assert torch.equal(domain.pos[..., [0, 2], :], kept)
    assert domain.weights.tolist() == [1.0, 0.0, 1.0]


def test_a_shared_position_that_exists_in_one_batch_entry_is_kept() -> None:
    pos, mask = torch.tensor([[1.0], [2.0], [NAN]]), torch.tensor([[True, False, False], [True, True, False]])
    assert Points(pos, mask=mask).pos.tolist() == [[1.0], [2.0], [0.0]]
    with refused(ValueError, "NaN or infinite", "points that exist"):
        Points(torch.tensor([[1.0], [NAN], [2.0]]), mask=mask)


def test_restriction_blanks_positions_but_keeps_grids_whole() -> None:
    mask = torch.tensor([True, False, True])
    assert Points(torch.tensor([[1.0], [3e38], [2.0]])).restrict(mask).pos.tolist() == [[1.0], [0.0], [2.0]]
    for grid in (Grid(3), Sequence(3)):
        assert torch.equal(grid.restrict(mask).pos, grid.pos)
    assert torch.equal(Grid(3, mask=mask).pos, Grid(3).pos)
    joined = Union(Points(torch.tensor([[3e38]])), Grid(3)).restrict(torch.tensor([False, True, False, True]))
    assert joined.pos.flatten().tolist() == [0.0, *Grid(3).pos.flatten().tolist()]


@pytest.mark.parametrize("kind", KINDS)
def test_another_device(kind: str) -> None:
    mask = torch.tensor([[True, True, False], [True, False, True]])
    domain = build(kind, 3, mask)
    moved = domain.to("meta")
    assert type(moved) is type(domain)
    tensors = {name: value for name, value in vars(moved).items() if isinstance(value, Tensor)}
    assert {"pos", "weights", "mask"} <= tensors.keys()
    assert {name for name, value in tensors.items() if value.device.type != "meta"} == set()
    assert ("times" in tensors) == ("times" in kind)
    assert moved.device == torch.device("meta")
    assert domain.device == torch.device("cpu")
    assert domain.to("cpu") is domain
    assert (moved.num_points, moved.pos_dim, moved.batch_size) == (3, domain.pos_dim, 2)


def test_only_domains_without_tensors_follow_a_signal_to_its_device() -> None:
    assert Grid(2).is_generated
    assert Sequence(2).is_generated
    assert Union(Grid(2), Sequence(2)).is_generated
    assert not Points(torch.rand(2, 1)).is_generated
    assert not Sequence(times=torch.rand(1)).is_generated
    assert not Union(Grid(2), Points(torch.rand(2, 1))).is_generated


@pytest.mark.parametrize(
    ("domain", "text"),
    [
        (Points(torch.zeros(3, 2)), "Points(num_points=3, pos_dim=2)"),
        (Points(torch.zeros(4, 3, 2)), "Points(num_points=3, pos_dim=2, batch_size=4)"),
        (
            Points(torch.zeros(3, 2), mask=torch.ones(5, 3, dtype=torch.bool)),
            "Points(num_points=3, pos_dim=2, batch_size=5)",
        ),
        (Grid(2, 3), "Grid(2, 3)"),
        (Grid(4, periodic=True), "Grid(4, periodic=True)"),
        (Sequence(5), "Sequence(5)"),
        (Sequence(times=torch.zeros(2, 6)), "Sequence(num_points=6, pos_dim=1, batch_size=2)"),
        (Union(Points(torch.zeros(1, 2)), Grid(2, 3)), "Union(num_points=7, pos_dim=2)"),
    ],
)
def test_repr(domain: Domain, text: str) -> None:
    assert repr(domain) == text


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=4))
def test_periodic_displacements_are_the_shortest(displacements: list[float]) -> None:
    torus, plain = Grid(4, periodic=True), Grid(4)
    d = torch.tensor(displacements, dtype=torch.float64)[:, None]
    wrapped = torus.wrap(d)
    assert (wrapped >= -0.5).all()
    assert (wrapped < 0.5).all()
    turns = d - wrapped
    torch.testing.assert_close(turns, turns.round(), atol=1e-12, rtol=0)
    assert torch.equal(plain.wrap(d), d)


def test_displacements_run_from_key_to_query() -> None:
    queries = torch.tensor([[0.9], [0.1]], dtype=torch.float64)
    keys = Grid(2).pos[:, 0]  # 1/4 and 3/4
    expected = torch.tensor([[0.65, 0.15], [-0.15, -0.65]], dtype=torch.float64)
    assert keys.tolist() == [0.25, 0.75]
    torch.testing.assert_close(Grid(2).displacement(queries)[..., 0], expected)
    round_the_box = torch.tensor([[-0.35, 0.15], [-0.15, 0.35]], dtype=torch.float64)
    torch.testing.assert_close(Grid(2, periodic=True).displacement(queries)[..., 0], round_the_box)
    batched = Points(torch.rand(3, 5, 2)).displacement(torch.rand(4, 2))
    assert batched.shape == (3, 4, 5, 2)


@given(st.data(), st.integers(1, 6))
def test_masks_that_do_not_fit_are_refused(data: st.DataObject, n: int) -> None:
    shape = data.draw(st.lists(st.integers(0, 7), max_size=3).map(tuple))
    assume(not (len(shape) in (1, 2) and shape[-1] == n))
    mask = torch.ones(shape, dtype=torch.bool)
    message = ("mask", f"({n},)", f"got shape {shape}")
    for kind in ("points", "batched points", "grid", "sequence", "times", "batched times"):
        with refused(ValueError, *message):
            build(kind, n, mask)
    for kind in KINDS:
        with refused(ValueError, *message):
            build(kind, n).restrict(mask)


@pytest.mark.parametrize("kind", KINDS)
def test_only_a_domain_with_a_cache_keeps_values(kind: str) -> None:
    domain, calls = build(kind, 3), []

    def count(of: Domain) -> int:
        return of.cached("number of calls", lambda: len(calls.append(None) or calls))

    assert [count(domain), count(domain)] == [1, 2]
    two = [domain.with_cache() for _ in range(2)]
    for cached in two:  # each has a separate cache
        assert cached.has_cache
        assert count(cached) == count(cached) == len(calls)
        assert cached.has_points_of(domain)
    fewer = two[0].restrict(torch.tensor([True, True, False]))
    assert not fewer.has_cache
    assert count(fewer) == 5


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "union"])
class TestBadInput:
    """Points, grids and sequences refuse the same mistakes with the same messages."""

    def test_mask_of_another_batch_size(self, kind: str) -> None:
        if "batched" in kind:
            with refused(ValueError, "mask", "(2, 3)", "(5, 3)"):
                build(kind, 3, torch.ones(5, 3, dtype=torch.bool))
        weights = torch.ones(2, 3)
        with refused(ValueError, "(2, 3)", "(5, 3)"):
            build(kind, 3, torch.ones(5, 3, dtype=torch.bool), weights)
        for domain in (build(kind, 3, weights=weights), build(kind, 3, torch.ones(2, 3, dtype=torch.bool))):
            with refused(ValueError, "mask", "(5, 3)", "2"):
                domain.restrict(torch.ones(5, 3, dtype=torch.bool))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8])
    def test_mask_that_is_not_bool(self, kind: str, dtype: torch.dtype) -> None:
        with refused(TypeError, "mask must be bool", "True", str(dtype)):
            build(kind, 3, torch.ones(3, dtype=dtype))
        with refused(TypeError, "mask must be bool", "True", str(dtype)):
            build(kind, 3).restrict(torch.ones(3, dtype=dtype))

    def test_mask_that_is_no_tensor(self, kind: str) -> None:
        with refused(TypeError, "mask must be a tensor", "list"):
            build(kind, 3, [True, True, False])  # pyright: ignore[reportArgumentType]
        with refused(TypeError, "mask must be a tensor", "list"):
            build(kind, 3).restrict([True, True, False])  # pyright: ignore[reportArgumentType]

    def test_mask_on_another_device(self, kind: str) -> None:
        mask = torch.ones(3, dtype=torch.bool, device="meta")
        with refused(ValueError, "mask is on meta", "cpu", "one device"):
            build(kind, 3).restrict(mask)
        if kind not in ("grid", "sequence"):  # these are created on the mask's device
            with refused(ValueError, "mask is on meta", "cpu", "one device"):
                build(kind, 3, mask)

    def test_weights(self, kind: str) -> None:
        with refused(ValueError, "weights", ">= 0", "-0.25"):
            build(kind, 3, weights=torch.tensor([1.0, -0.25, 1.0]))
        for value in (NAN, INF):
            with refused(ValueError, "weights", "NaN or infinite"):
                build(kind, 3, weights=torch.tensor([1.0, value, 1.0]))
        with refused(TypeError, "weights", "float", "torch.int64"):
            build(kind, 3, weights=torch.ones(3, dtype=torch.int64))
        with refused(TypeError, "weights must be a tensor", "list"):
            build(kind, 3, weights=[1.0, 1.0, 1.0])  # pyright: ignore[reportArgumentType]
        with refused(ValueError, "weights", "(3,)", "(4,)"):
            build(kind, 3, weights=torch.ones(4))
        with refused(ValueError, "weights", "(3,)", "()"):
            build(kind, 3, weights=torch.ones(()))


def test_a_domain_has_no_other_dtype() -> None:
    with refused(TypeError, "Grid.to: a domain goes to a device, not to torch.float32"):
        Grid(2).to(torch.float32)  # pyright: ignore[reportArgumentType]
