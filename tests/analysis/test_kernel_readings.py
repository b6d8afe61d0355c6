"""Profiles, spectra, receptive fields, symmetry and costs of kernels against explicit sums and known values."""

import itertools
import math
import sys

import pytest
import torch
from torch import nn

import fredholm
from fredholm import analysis, domains, kernels
from fredholm.analysis.kernel_values import num_heads, values_at
from fredholm.domains import PairList
from fredholm.domains.points import subset
from fredholm.evaluation import Integral
from tests.contracts.instances import ROWS, Cell, case_of, fits, table_kernel

DOUBLE = torch.float64


def attention(**options: object) -> kernels.Attention:
    return kernels.Attention(4, num_heads=2, **options).double()  # pyright: ignore


def signal(points: int = 6, channels: int = 4, batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, points, channels, dtype=DOUBLE)


def test_the_profile_of_a_convolution_equals_its_stencil() -> None:
    kernel = kernels.Convolution(1, 1, 5, padding="same").double()
    profile = analysis.kernel_profile(kernel, signal(9, 1), domains.Grid(9), reading="diagonal")
    pairs = zip(profile.places[:, 0].tolist(), profile.mean[0].tolist(), strict=True)
    stencil = {round(9 * place): mean for place, mean in pairs}
    weight = kernel.weight.detach().flatten().tolist()
    assert sorted(stencil) == list(range(-8, 9))
    for step in range(-8, 9):
        # tap k of a cross-correlation reads y = x + k - 2, and a displacement is x - y
        assert stencil[step] == pytest.approx(weight[2 - step] if abs(step) <= 2 else 0.0, abs=1e-12)
    assert profile.deviation.abs().max() < 1e-12
    assert profile.count.tolist() == [2 * (9 - abs(step)) for step in range(-8, 9)]


@pytest.mark.parametrize("by", ["displacement", "distance"])
def test_the_profile_of_attention_equals_the_mean_over_pairs(by: str) -> None:
    kernel, u, points = attention(), signal(), domains.Sequence(6)
    profile = analysis.kernel_profile(kernel, u, points, by=by)  # pyright: ignore
    kappa = kernel.matrix(u, points).detach()
    for k, place in enumerate(profile.places[:, 0].tolist()):
        steps = round(place * 256)
        pairs = [(i, j) for i in range(6) for j in range(6) if (i - j if by == "displacement" else abs(i - j)) == steps]
        for h in range(2):
            rows = [kappa[b, i, j, 2 * h : 2 * h + 2, :4] for b in range(2) for i, j in pairs]
            sizes = torch.tensor([math.sqrt(float(row.square().sum()) / 2) for row in rows])
            assert float(profile.mean[h, k]) == pytest.approx(float(sizes.mean()), rel=1e-5)
            assert float(profile.deviation[h, k]) == pytest.approx(float(sizes.std(correction=0)), rel=1e-4, abs=1e-7)
        assert int(profile.count[k]) == 2 * len(pairs)
    assert float(profile.deviation.max()) > 1e-3


def test_a_single_entry_can_be_profiled() -> None:
    kernel, u, points = attention(), signal(), domains.Sequence(6)
    profile = analysis.kernel_profile(kernel, u, points, reading=(3, 1))
    kappa = kernel.matrix(u, points)[..., 3, 1]
    same = torch.stack([kappa[:, i, i] for i in range(6)]).mean()
    assert profile.mean.shape == (1, 11)
    assert float(profile.mean[0, 5]) == pytest.approx(float(same.detach()))


def test_points_without_mass_are_left_out() -> None:
    kernel, u = attention(), signal()
    mask = torch.tensor([True] * 4 + [False] * 2)
    cut = analysis.kernel_profile(kernel, u[:, :4], domains.Sequence(4))
    masked = analysis.kernel_profile(kernel, u, domains.Points(domains.Sequence(6).pos, mask=mask))
    torch.testing.assert_close(masked.mean, cut.mean)
    assert masked.count.tolist() == cut.count.tolist()


def test_many_distances_are_binned() -> None:
    kernel = kernels.MLP(4, pos_dim=2, num_heads=2, width=4, num_frequencies=2).double()
    points = domains.Points(torch.rand(40, 2, dtype=DOUBLE))
    profile = analysis.kernel_profile(kernel, signal(40), points, by="distance", bins=8)
    assert len(profile.places) <= 8
    assert int(profile.count.sum()) == 2 * 40 * 40
    assert bool((profile.places[:, 0].diff() > 0).all())
    apart = torch.cdist(points.pos, points.pos).flatten()
    total = float((profile.places[:, 0] * profile.count).sum())
    assert total == pytest.approx(2 * float(apart.sum()))


def test_queries_of_a_large_kernel_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, u, points = attention(), signal(12), domains.Sequence(12)
    whole = kernel.matrix(u, points)
    integral = Integral(kernel, u, points)
    found = values_at("test", integral, 3)
    torch.testing.assert_close(found.kappa, whole[:, [2, 6, 10]][..., :4])
    monkeypatch.setattr("fredholm.analysis.kernel_values.MOST_ENTRIES", 2 * 20 * 12 * 2)
    assert values_at("test", integral, 12).kappa.shape[1] == 2


def test_a_causal_kernel_is_evaluated_at_its_first_points() -> None:
    for kernel in (attention(is_causal=True), kernels.LinearRNN(4, 3).double()):
        u, points = signal(12), domains.Sequence(12)
        found = values_at("test", Integral(kernel, u, points), 5)
        torch.testing.assert_close(found.kappa, kernel.matrix(u, points)[:, :5, :5][..., :4])


@pytest.mark.parametrize("stride", [5, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", ROWS)
def test_part_of_a_kernel_equals_the_same_part_of_the_whole(name: str, stride: int) -> None:
    """Every variant on one kind of domain, in turn; the long tests take all kinds."""
    domains_of = ("sequence", "spaced sequence", "line of cells", "tied times", "points", "grid")
    masks = itertools.cycle(("all", "mask per entry", "mask per entry", "all"))
    places = itertools.islice(itertools.product(ROWS[name].variants, domains_of), 0, None, stride)
    for (variant, kind), mask in zip(places, masks, strict=False):
        cell = Cell(name, variant, kind, mask)
        if not fits(cell):
            continue
        u, domain = case_of(cell).arguments()[1:3]
        kernel = table_kernel(name, variant, domain.pos_dim)
        integral = Integral(kernel, u, domain, None, kernel.output_domain(domain))
        with torch.no_grad():
            whole = kernel.matrix(*integral.arguments)[..., : kernel.in_dim]
        found = values_at("test", integral, 3).kappa
        rows, columns = found.shape[1:3]
        queries = torch.arange(rows) if kernel.is_causal else (torch.arange(rows) + 0.5) * whole.shape[1] / rows
        torch.testing.assert_close(
            found, whole[:, queries.long(), :columns], msg=lambda text, cell=cell: f"{cell}: {text}"
        )


def test_unmasked_points_of_one_time_stay_together() -> None:
    times, mask = torch.tensor([0.0, 1.0, 1.0, 1.0, 2.0], dtype=DOUBLE), torch.tensor([True, True, False, False, True])
    for exists, count in ((mask, 2), (torch.ones_like(mask), 1)):
        integral = Integral(attention(is_causal=True), signal(5), domains.Sequence(times=times, mask=exists))
        assert values_at("test", integral, 2).kappa.shape[1:3] == (count, count)


def test_masked_points_are_never_read() -> None:
    for name in ("Attention", "InfiniteAttention", "LowRankMLP"):
        kernel, u, mask = table_kernel(name, "plain", 1), signal(), torch.tensor([True] * 4 + [False] * 2)
        points = domains.Points(domains.Sequence(6).pos, mask=mask)
        junk = torch.where(mask[:, None], u, torch.nan)
        expected, found = (analysis.kernel_profile(kernel, each, points) for each in (u, junk))
        torch.testing.assert_close(found.mean, expected.mean)
        expected, found = (analysis.kernel_spectrum(kernel, each, points) for each in (u, junk))
        torch.testing.assert_close(found.values, expected.values)
    weights = analysis.attention_weights(table_kernel("InfiniteAttention", "plain", 1), junk, points)
    assert weights.isfinite().all()


def test_a_filter_is_evaluated_in_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = kernels.Convolution(2, 2, 3, 2, padding="same").double()
    integral = fredholm.IntegralOperator(kernel).double().prepare(signal(63, 2), domains.Grid(7, 9))
    whole = analysis.kernel_profile(integral)
    monkeypatch.setattr("fredholm.analysis.kernel_values.MOST_ENTRIES", 2 * 4 * 5**4)
    found = values_at("test", integral, 64)
    assert found.kappa.shape == (2, 25, 25, 2, 2)
    window = analysis.kernel_profile(integral)
    by_place = {tuple(place): mean for place, mean in zip(whole.places.tolist(), whole.mean[0].tolist(), strict=True)}
    for place, mean in zip(window.places.tolist(), window.mean[0].tolist(), strict=True):
        near = min(by_place, key=lambda each: sum((a - b) ** 2 for a, b in zip(each, place, strict=True)))
        assert by_place[near] == pytest.approx(mean)


def test_a_window_keeps_masses_and_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, mask = kernels.Convolution(1, 1, 3, padding="same", standardised=True).double(), torch.ones(11).bool()
    mask[4] = False
    weights = torch.where(mask, torch.arange(1.0, 12.0, dtype=DOUBLE), 0.0)
    grid = domains.Grid(11, weights=weights, mask=mask)
    monkeypatch.setattr("fredholm.analysis.kernel_values.MOST_ENTRIES", 25)
    found = values_at("test", Integral(kernel, torch.where(mask[:, None], signal(11, 1, 1), 0.0), grid), 11)
    assert found.domain.mask is not None
    assert found.domain.mask.tolist() == mask[3:8].tolist()
    torch.testing.assert_close(kernel.measure(found.domain), kernel.measure(grid)[3:8])
    with pytest.raises(ValueError, match="fewer points"):
        values_at("test", Integral(kernel, signal(11, 1, 1), domains.Grid(11).weigh_pairs(torch.zeros(11, 11))), 11)


def test_a_large_kernel_that_depends_on_more_than_pairs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = kernels.InfiniteAttention(4, num_heads=2).double()
    monkeypatch.setattr("fredholm.analysis.kernel_values.MOST_ENTRIES", 100)
    with pytest.raises(ValueError, match="fewer points"):
        analysis.kernel_profile(kernel, signal())


def test_bad_inputs_are_refused() -> None:
    kernel = attention()
    with pytest.raises(TypeError, match="IntegralOperator"):
        analysis.kernel_profile(nn.Linear(4, 4), signal())  # pyright: ignore
    with pytest.raises(ValueError, match="needs u"):
        analysis.kernel_spectrum(kernel)
    with pytest.raises(ValueError, match="no entry"):
        analysis.kernel_profile(kernel, signal(), reading=(4, 0))
    with pytest.raises(ValueError, match="expected 'displacement'"):
        analysis.kernel_profile(kernel, signal(), by="length")  # pyright: ignore
    with pytest.raises(ValueError, match="its own signal"):
        analysis.kernel_profile(Integral(kernel, signal(), domains.Sequence(6)), signal())
    nothing = domains.Points(domains.Sequence(6).pos, mask=torch.zeros(6, dtype=torch.bool))
    with pytest.raises(ValueError, match="has mass"):
        analysis.kernel_profile(kernel, signal(), nothing)


def test_the_spectrum_equals_that_of_the_weighted_matrix() -> None:
    kernel, u = attention(), signal(5)
    weights = torch.tensor([0.1, 0.2, 0.3, 0.15, 0.25], dtype=DOUBLE)
    points = domains.Points(torch.rand(5, 2, dtype=DOUBLE), weights)
    found = analysis.kernel_spectrum(kernel, u, points)
    kappa, root = kernel.matrix(u, points), kernel.measure(points).sqrt()
    for h in range(2):
        by_entry = []
        for b in range(2):
            rows = [
                torch.cat([root[i] * root[j] * kappa[b, i, j, 2 * h : 2 * h + 2, :4] for j in range(5)], dim=1)
                for i in range(5)
            ]
            by_entry.append(torch.linalg.svdvals(torch.cat(rows)))
        torch.testing.assert_close(found.values[h], torch.stack(by_entry).mean(0).detach())


@pytest.mark.parametrize("name", ["Attention", "InfiniteAttention", "Constant", "ContinuousConvolution"])
def test_pairs_have_their_weights_in_the_integral(name: str) -> None:
    kernel, u, density = table_kernel(name, "plain", 1), signal(5), torch.rand(5, 5, dtype=DOUBLE)
    density[0] = density[2, 3] = 0.0
    weighted = domains.Sequence(5).weigh_pairs(density.log())
    listed = domains.Sequence(5).list_pairs(PairList.of_index(torch.arange(5).expand(1, 5, 5), density[None], 5))
    kappa = kernel.matrix(u, weighted)[..., : kernel.in_dim].detach()
    kappa = kappa if kernel.holds_pair_weights else density[:, :, None, None] * kappa
    heads = num_heads(kernel)
    rows = (kappa * kernel.measure(weighted)[0]).unflatten(3, (heads, -1))  # all masses are equal
    matrices = rows.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)
    sizes = rows.square().sum((-1, -2)).mean((0, 1, 2)) / rows.shape[-2] / kernel.measure(weighted)[0] ** 2
    for where in (weighted, listed):
        found = analysis.kernel_spectrum(kernel, u, where).values
        torch.testing.assert_close(found, torch.linalg.svdvals(matrices).mean(0)[:, : found.shape[1]])
        profile = analysis.kernel_profile(kernel, u, where)
        squares = (profile.mean.square() + profile.deviation.square()) * profile.count
        torch.testing.assert_close(squares.sum(1) / profile.count.sum(), sizes)


def test_the_spectrum_of_a_mean_has_one_value_per_channel() -> None:
    kernel = kernels.Constant(3, 3).double()
    found = analysis.kernel_spectrum(kernel, signal(20, 3), domains.Grid(20))
    expected = torch.linalg.svdvals(kernel.weight.detach())
    torch.testing.assert_close(found.values[0, :3], expected)
    assert found.values[0, 3:].max() < 1e-9
    shares = expected.square() / expected.square().sum()
    assert float(found.effective_rank) == pytest.approx(float(torch.exp(-(shares * shares.log()).sum())), rel=1e-6)


def test_a_spectrum_of_fewer_points_equals_that_of_all() -> None:
    kernel = kernels.Constant(3, 3).double()
    whole, few = (analysis.kernel_spectrum(kernel, signal(64, 3), domains.Grid(64), num_points=n) for n in (64, 8))
    assert few.num_points == 8
    torch.testing.assert_close(few.values[0, :3], whole.values[0, :3])


def all_singular_values(kernel: kernels.Kernel, u: torch.Tensor, domain: domains.Domain) -> torch.Tensor:
    """The singular values of the whole of M, for one head."""
    root = kernel.measure(domain).sqrt()
    kappa = kernel.matrix(u, domain) * root[:, None, None, None] * root[:, None, None]
    return torch.linalg.svdvals(kappa.transpose(2, 3).flatten(3, 4).flatten(1, 2)).mean(0).detach()


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_the_spectrum_of_channel_groups_equals_that_of_the_whole(groups: int) -> None:
    kernel = kernels.Convolution(6, 6, 3, padding="same", groups=groups).double()
    u, grid = signal(12, 6), domains.Grid(12)
    found = analysis.kernel_spectrum(kernel, u, grid)
    torch.testing.assert_close(found.values[0], all_singular_values(kernel, u, grid))
    with torch.no_grad():
        kernel.weight[0] = 0  # an output channel that depends on no input
    torch.testing.assert_close(
        analysis.kernel_spectrum(kernel, u, grid).values[0], all_singular_values(kernel, u, grid)
    )


def test_indirectly_mixed_channels_belong_to_one_block() -> None:
    kernel, u, grid = kernels.Constant(7, 7).double(), signal(3, 7), domains.Grid(3)
    with torch.no_grad():
        kernel.weight.copy_(torch.eye(7) + torch.eye(7).roll(1, 0).triu(-1).tril())
        kernel.weight.copy_(kernel.weight[torch.tensor([3, 0, 5, 1, 6, 2, 4])])
    torch.testing.assert_close(
        analysis.kernel_spectrum(kernel, u, grid).values[0], all_singular_values(kernel, u, grid)
    )


def test_unmixed_channels_allow_more_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[analysis.kernel_spectrum.__module__], "MOST_COLUMNS", 24)
    counts = {
        groups: analysis.kernel_spectrum(
            kernels.Convolution(6, 6, 3, padding="same", groups=groups).double(), signal(30, 6), domains.Grid(30)
        ).num_points
        for groups in (1, 3, 6)
    }
    assert counts == {1: 4, 3: 12, 6: 24}


@pytest.mark.parametrize(("shape", "num_points", "count"), [((5, 5, 5), 64, 64), ((9, 7), 25, 25), ((1, 1), 3, 1)])
def test_a_window_has_the_requested_number_of_points(shape: tuple[int, ...], num_points: int, count: int) -> None:
    kernel = kernels.Convolution(2, 2, 3, len(shape), padding="same").double()
    found = analysis.kernel_spectrum(kernel, signal(math.prod(shape), 2), domains.Grid(*shape), num_points=num_points)
    assert found.num_points == count


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_spectrum_of_low_precision_at_other_queries_is_near(dtype: torch.dtype) -> None:
    kernel = kernels.Convolution(3, 6, 3, stride=2, groups=3)
    u, grid = signal(11, 3), domains.Grid(11)
    with torch.no_grad():
        exact = analysis.kernel_spectrum(fredholm.IntegralOperator(kernel, residual=False).double().prepare(u, grid))
        found = analysis.kernel_spectrum(
            fredholm.IntegralOperator(kernel, residual=False).to(dtype).prepare(u.to(dtype), grid)
        )
    assert found.values.shape == exact.values.shape
    torch.testing.assert_close(found.values, exact.values, rtol=2e-2, atol=1e-2)


def test_an_expensive_spectrum_is_refused_unless_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, u = kernels.InfiniteAttention(4).double(), signal()
    monkeypatch.setattr(sys.modules[analysis.kernel_spectrum.__module__], "MOST_COLUMNS", 4)
    with pytest.raises(ValueError, match="num_points=6 to wait"):
        analysis.kernel_spectrum(kernel, u)
    assert analysis.kernel_spectrum(kernel, u, num_points=6).num_points == 6


def test_the_receptive_field_equals_the_norm_of_the_jacobian() -> None:
    operator, u, points = fredholm.IntegralOperator(attention()).double(), signal(), domains.Sequence(6)
    found = analysis.receptive_field(operator, u, points, index=4)
    jacobian = torch.autograd.functional.jacobian(lambda v: operator(v, points)[:, 4], u)
    for b in range(2):
        for j in range(6):
            expected = float(jacobian[b, :, b, j].norm())  # pyright: ignore
            assert float(found.field[b, j]) == pytest.approx(expected, rel=1e-6)


def test_random_probes_approximate_the_norm() -> None:
    operator, u = fredholm.IntegralOperator(attention()).double(), signal()
    exact = analysis.receptive_field(operator, u, index=0).field
    generator = torch.Generator().manual_seed(0)
    near = [analysis.receptive_field(operator, u, index=0, num_probes=3, generator=generator).field for _ in range(400)]
    torch.testing.assert_close(torch.stack(near).square().mean(0).sqrt(), exact, rtol=0.1, atol=0.02)


def test_a_convolution_sees_its_window_and_a_stack_sees_more() -> None:
    grid = domains.Grid(15)
    layers = nn.ModuleList(
        fredholm.IntegralOperator(kernels.Convolution(2, 2, 3, padding="same"), residual=True) for _ in range(2)
    ).double()
    one = analysis.receptive_field(layers[0], signal(15, 2), grid, index=7)  # pyright: ignore
    assert (one.field > 0).sum(1).tolist() == [3, 3]
    u = signal(15, 2)
    summary = fredholm.IntegralOperator(kernels.Convolution(2, 2, 15), residual=False).double()
    whole = analysis.model_receptive_field(
        layers, lambda: layers[1](layers[0](u, grid).tanh(), grid), index=7, num_probes=None
    )
    assert (whole.field > 0).sum(1).tolist() == [5, 5]
    with_summary, parts = nn.ModuleList([*layers, summary]), (layers[0], layers[1])
    pooled = analysis.model_receptive_field(
        with_summary, lambda: summary(parts[1](parts[0](u, grid).tanh(), grid), grid), index=7, num_probes=None
    )
    torch.testing.assert_close(pooled.field, whole.field)
    direct = analysis.receptive_field(lambda v, d: layers[1](layers[0](v, d).tanh(), d), u, grid, index=7)
    torch.testing.assert_close(whole.field, direct.field)


def test_a_receptive_field_needs_an_output_that_depends_on_the_signal() -> None:
    with pytest.raises(ValueError, match="no point 9"):
        analysis.receptive_field(fredholm.IntegralOperator(attention()).double(), signal(), index=9)
    with pytest.raises(ValueError, match="detached"):
        analysis.receptive_field(lambda v, d: v.detach(), signal(), index=0)
    with pytest.raises(ValueError, match="no operator"):
        analysis.model_receptive_field(nn.Linear(2, 2), lambda: None, index=0)


def test_symmetry_reports_the_equivariances_of_a_kernel() -> None:
    distance = kernels.KernelInputs(query_position=False, key_position=False, relative_position=False)
    even = fredholm.IntegralOperator(kernels.MLP(4, pos_dim=2, inputs=distance, epsilon=1.0)).double()
    points = domains.Points(torch.rand(7, 2, dtype=DOUBLE))
    found = analysis.symmetry(even, signal(7), points)
    assert found.errors.keys() == {"translations", "permutations", "rotations"}
    assert max(found.errors.values()) < 1e-9
    uneven = fredholm.IntegralOperator(kernels.MLP(4, pos_dim=2, epsilon=1.0)).double()
    broken = analysis.symmetry(uneven, signal(7), points)
    assert broken.errors["permutations"] < 1e-9 < 1e-3 < min(broken.errors["rotations"], broken.errors["translations"])
    stencil = fredholm.IntegralOperator(kernels.Convolution(4, 4, 3, 2, padding="same")).double()
    refused = analysis.symmetry(stencil, signal(9), domains.Grid(3, 3))
    assert refused.errors == {}
    assert all("grid" in why.lower() for why in refused.refused.values())


def test_integrals_are_recorded_unchanged() -> None:
    operator, u = fredholm.IntegralOperator(attention()).double(), signal()
    with analysis.record_integrals(operator) as found:
        out = operator(u, domains.Sequence(6))
    assert list(found) == [""]
    torch.testing.assert_close(operator.answer(found[""]), out)
    torch.testing.assert_close(
        analysis.kernel_profile(found[""]).mean, analysis.kernel_profile(operator, u, domains.Sequence(6)).mean
    )
    operator(u[:1])
    assert len(found[""].u) == 2, "nothing is recorded after the context"


def test_costs_name_the_chosen_route() -> None:
    operator, u = fredholm.IntegralOperator(attention()).double(), signal()
    with analysis.record_integrals(operator) as found:
        operator(u)
    cost = analysis.operator_costs({"": operator}, found)[""]
    assert cost.route == operator.explain(u)
    assert cost.seconds > 0
    assert cost.megabytes >= 0


def test_readings_can_be_plotted() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    operator, u, line = fredholm.IntegralOperator(attention()).double(), signal(), domains.Sequence(6)
    profile = analysis.kernel_profile(operator, u, line)
    axes = profile.plot()
    assert [curve.get_ydata().tolist() for curve in axes.get_lines()] == profile.mean.tolist()  # pyright: ignore
    spectrum = analysis.kernel_spectrum(operator, u, line)
    assert len(spectrum.plot().get_lines()) == 2
    field = analysis.receptive_field(operator, u, line, index=2)
    assert field.plot().get_lines()[0].get_ydata().tolist() == field.field[0].tolist()  # pyright: ignore
    grid = domains.Grid(2, 3)
    flat = analysis.receptive_field(operator, u, grid, index=4).plot()
    assert flat.get_images()[0].get_array().shape == (2, 3)  # pyright: ignore
    assert len(analysis.symmetry(operator, u, grid).plot().patches) == 3
    assert analysis.kernel_profile(operator, u, grid).plot().get_xlabel() == "displacement, second axis"
    space = domains.Points(torch.rand(6, 3, dtype=DOUBLE))
    with pytest.raises(ValueError, match="distance"):
        analysis.kernel_profile(operator, u, space).plot()
    plt.close("all")


def test_a_subset_of_a_domain_keeps_its_positions() -> None:
    grid = domains.Grid(4)
    part = subset(grid, torch.tensor([1, 3]), grid.weights[[1, 3]])
    torch.testing.assert_close(part.pos[:, 0], grid.pos[[1, 3], 0])
