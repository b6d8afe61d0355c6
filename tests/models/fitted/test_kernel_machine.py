"""Kernel machines: the kernel by loops, the fit by solving its system, left-out scores by refits."""

import math

import pytest
import torch
from torch import Tensor

from fredholm.models import KernelMachine, Readout, Regressand
from fredholm.models.fitted import kernel_choice, kernel_fit, kernel_machine
from fredholm.tasks.targets import ClassTarget, NumberTarget, Target
from tests.refusals import refused

CLASSES = ClassTarget(names=("a", "b"))
NUMBER = NumberTarget(names=("y",), mean=(0.0,), deviation=(1.0,))


def problem(n: int = 60, d: int = 5, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Coordinates of which the first two matter."""
    x = torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x, torch.sin(2 * x[:, 0]) + x[:, 1]


def fitted(machine: KernelMachine, x: Tensor, y: Tensor, target: Target, groups: Tensor | None = None) -> Tensor:
    torch.manual_seed(1)
    return machine.fit(x, target.targets(y), target, groups=groups)


def kernel(machine: KernelMachine, x: Tensor, y: Tensor) -> Tensor:
    """κ, entry by entry."""
    found = torch.empty(len(x), len(y), dtype=torch.float64)
    w, lengths, s = machine.relevance.double(), machine.lengths.double(), machine.shares.double()
    for i, a in enumerate(x.double()):
        for j, b in enumerate(y.double()):
            first = (w[0] * (a - b)).abs().sum()
            second = ((a - b) @ machine.metric.double()).square().sum().sqrt()
            product = (a * b).sum() / machine.square.double()
            r = 5**0.5 * second / lengths[2]
            kernels = torch.stack(
                [
                    product,
                    torch.exp(-first / lengths[0]),
                    torch.exp(-second / lengths[1]),
                    (1 + r + r**2 / 3) * torch.exp(-r),
                ]
            )
            found[i, j] = s @ kernels
    return found


def test_outputs_and_gradients_are_sums_over_centres() -> None:
    machine = KernelMachine(5, 3, 7).double()
    with torch.no_grad():
        for tensor in (machine.centres, machine.relevance, machine.metric, machine.dual, machine.bias):
            tensor.copy_(torch.rand(tensor.shape, dtype=torch.float64))
        machine.lengths.copy_(torch.tensor([2.0, 3.0, 4.0]))
        machine.shares.copy_(torch.tensor([0.2, 0.4, 0.3, 0.1]))
        machine.square.fill_(4.0)
    x, _ = problem(6)
    mine, theirs = (x.clone().requires_grad_() for _ in range(2))
    found, expected = machine(mine), kernel(machine, theirs, machine.centres) @ machine.dual + machine.bias
    torch.testing.assert_close(found, expected)
    weight = torch.rand(6, 3, dtype=torch.float64)
    own = torch.autograd.grad((found * weight).sum(), [mine, machine.dual, machine.bias])
    other = torch.autograd.grad((expected * weight).sum(), [theirs, machine.dual, machine.bias])
    torch.testing.assert_close(own, other)


@pytest.mark.parametrize("groups", [0, 20])
def test_with_few_examples_nothing_is_learnt_from_noise(groups: int) -> None:
    errors = list[float]()
    for seed in range(1, 5):
        x, _ = problem(60, 40, seed)
        y = (torch.arange(60) % 2 * 2.0 - 1)[:, None]
        members = torch.arange(60) // 3 if groups else None
        left_out = fitted(KernelMachine(40, 1, 60).double(), x, y, NUMBER, members)
        errors.append(float((left_out - y).square().mean()))
    assert sum(errors) / 4 > 0.93  # 0.75 with metrics that have seen the examples


@pytest.mark.parametrize("per_group", [1, 3])
def test_left_out_scores_of_wide_rows_do_not_leak_through_the_mean(per_group: int) -> None:
    x, _ = problem(30, 100)
    # centred targets that are linear in more coordinates than rows follow from the sum of the others
    x, y = x - x.mean(0), (torch.arange(30) % 2 * 2.0 - 1)[:, None].double()
    groups = None if per_group == 1 else torch.arange(30) // per_group
    assert kernel_choice.Part(x, y, groups).fit(x @ x.T / 100).error > 0.8  # 0 if the mean is taken over all rows


def test_with_few_examples_the_metric_is_learnt_where_it_helps() -> None:
    x, y = problem(200, 12)
    y = y + 0.5 * torch.randn(200, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    machine = KernelMachine(12, 1, 200).double()
    left_out = fitted(machine, x[:120], y[:120, None], NUMBER)
    assert machine.relevance[1, :2].min() > 3 * machine.relevance[1, 2:].max()
    with torch.no_grad():
        others = machine(x[120:]) - y[120:, None]
    assert 0.7 < (left_out - y[:120, None]).square().mean() / others.square().mean() < 1.5


def test_left_out_scores_use_metrics_learnt_without_each_part(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = torch.arange(40) // 2
    x, y = (each[groups] for each in problem(20))
    y = y + 0.1 * torch.randn(20, dtype=torch.float64)[groups]  # the twin reveals it
    part = kernel_choice.Part(x, (y - y.mean())[:, None], groups)
    torch.manual_seed(2)
    found = kernel_choice.best_choice(part, 3).fit
    torch.manual_seed(2)
    own, expected = torch.randperm(20)[groups] % 5, torch.empty(40, 1, dtype=torch.float64)
    monkeypatch.setattr(kernel_choice, "FEW", 0)
    for k in range(5):
        rest = KernelMachine(5, 1, 40).double()
        fitted(rest, x[own != k], y[own != k, None], NUMBER, groups[own != k])
        expected[own == k] = rest(x[own == k]).detach()
    torch.testing.assert_close(found.left_out, expected - y.mean(), rtol=1e-5, atol=1e-5)
    assert found.error == pytest.approx(float((expected[:, 0] - y).square().mean()), rel=1e-5)


def test_a_graph_gives_the_same_outputs() -> None:
    machine = KernelMachine(37, 2, 9)
    torch.nn.init.normal_(machine.dual)
    machine.centres.normal_()
    machine.shares.copy_(torch.tensor([0.2, 0.4, 0.3, 0.1]))
    x = torch.randn(5, 37)
    graph = torch.export.export(machine, (x,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)).module()
    torch.testing.assert_close(graph(x[:3]), machine(x[:3]))


@pytest.mark.parametrize(("n", "centres", "groups"), [(40, 40, 0), (40, 60, 7), (40, 17, 0), (40, 17, 7)])
@pytest.mark.parametrize("chosen", [1500, 30])
def test_the_fit_solves_its_system_and_left_out_scores_are_those_of_refits(
    n: int, centres: int, groups: int, chosen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_choice, "FEW", 0)
    x, y = problem(n)
    x = x.float().double()  # the precision of stored centres
    members = torch.arange(n) % groups if groups else None
    machine = KernelMachine(5, 1, centres, num_chosen=chosen).double()
    left_out = fitted(machine, x, y[:, None], NUMBER, members)
    assert left_out.shape == (n, 1)
    count, penalty = min(n, centres), float(machine.penalty)
    known, offset = machine.centres[:count], y.mean()
    assert not machine.dual[count:].any()

    def compute(without: Tensor) -> Tensor:
        """Scores for the examples of a group, by a fit without them."""
        keep = torch.ones(n, dtype=torch.bool)
        keep[without] = False
        if count == n:
            gram, mean = kernel(machine, x[keep], x[keep]), y[keep].mean()
            dual = torch.linalg.solve(gram + penalty * torch.eye(len(gram), dtype=torch.float64), y[keep] - mean)
            return mean + kernel(machine, x[without], x[keep]) @ dual
        to_centres = kernel(machine, x[keep], known)
        system = to_centres.T @ to_centres + penalty * kernel(machine, known, known)
        dual = torch.linalg.solve(system, to_centres.T @ (y - offset)[keep])
        return offset + kernel(machine, x[without], known) @ dual

    for i in range(0, n, 9):
        own = torch.tensor([i]) if members is None else (members == members[i]).nonzero()[:, 0]
        torch.testing.assert_close(left_out[own, 0], compute(own), rtol=1e-3, atol=1e-3)
    everything = offset + kernel(machine, x, known) @ machine.dual[:count, 0]
    torch.testing.assert_close(machine(x)[:, 0], everything, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("p", "is_turned"), [(1, False), (2, False), (2, True)])
def test_steepness_along_each_coordinate_matches_autograd(p: int, is_turned: bool) -> None:
    x, y = problem(20)
    part = kernel_choice.Part(x, (y - y.mean())[:, None], None)
    weight = torch.rand(5, 5, dtype=torch.float64) + 0.1
    metric = part._tried(p, weight if is_turned else weight[0], (2.0,))
    along, outer = metric.weight if is_turned else metric.weight.diag(), torch.zeros(5, 5, dtype=torch.float64)
    for i in range(len(x)):
        query, others = x[i].clone().requires_grad_(), torch.arange(len(x)) != i
        apart = ((query - x[others]) @ along).abs().pow(p).sum(1).pow(1 / p)
        value = torch.exp(-apart / metric.length) @ metric.fit.dual[others, 0]
        gradient = torch.autograd.grad(value, query)[0]
        outer += gradient.outer(gradient) / len(x)
    torch.testing.assert_close(part._steepness(p, metric), outer.diagonal())
    if p == 2:
        torch.testing.assert_close(part._outer(metric), outer)


@pytest.mark.parametrize(("few", "is_sum"), [(500, True), (0, True), (0, False)])
def test_the_metric_is_turned_for_sums_of_coordinates_but_not_for_single_ones(
    few: int, is_sum: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_choice, "FEW", few)
    x, single = problem(240, 6)
    along = x @ torch.tensor([1.0, -1.0, 0.6, 0.4, -0.8, 0.5], dtype=torch.float64)
    y = along.sin() if is_sum else single
    y = y + 0.2 * torch.randn(240, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    machine = KernelMachine(6, 1, 120).double()
    left_out = fitted(machine, x[:120], y[:120, None], NUMBER)
    assert is_turned(machine) is is_sum
    if is_sum:
        error = float((machine(x[120:]).detach()[:, 0] - y[120:]).square().mean())
        assert error < 0.1  # 0.23 with a diagonal metric
        assert 0.8 < float((left_out[:, 0] - y[:120]).square().mean()) / error < 1.25
        norms = machine.metric.norm(dim=1)
        torch.testing.assert_close(machine.relevance[1], norms / norms.max())


def test_of_one_group_alone_single_examples_are_held_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_choice, "FEW", 0)
    x, _ = problem(120, 6)
    y = x.sum(1, keepdim=True).sin()
    part = kernel_choice.Part(x, y - y.mean(), torch.zeros(120, dtype=torch.int64))
    choice = kernel_choice.best_choice(part, 3)
    assert choice.metrics[1].weight.shape == (6, 6)
    assert choice.fit.error == pytest.approx(part.error(choice.fit.left_out))
    assert choice.fit.error > part.choice(choice.metrics).fit.error  # the metric has seen the examples


@pytest.mark.parametrize("n", [49, 50])
def test_the_metric_is_turned_with_enough_examples(n: int) -> None:
    x, _ = problem(n, 6)
    machine = KernelMachine(6, 1, n).double()
    machine.solve(x, (x.sum(1, keepdim=True) / 2).sin())
    assert is_turned(machine) is (n == 50)


def test_the_metric_is_not_turned_without_smaller_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_choice, "FEW", 0)
    x, _ = problem(120, 6)
    y = x.sum(1, keepdim=True).sin()
    for losses, expected in ((None, True), (lambda answers, _: torch.ones(len(answers)), False)):
        machine = KernelMachine(6, 1, 120).double()
        machine.solve(x, y, losses=losses)
        assert is_turned(machine) is expected


def is_turned(machine: KernelMachine) -> bool:
    return bool((machine.metric - machine.metric.diagonal().diag()).any())


def test_relevant_coordinates_are_found() -> None:
    x, y = problem(300, 12)
    machine = KernelMachine(12, 1, 300)
    fitted(machine, x, y[:, None], NUMBER)
    for relevance in machine.relevance:
        assert float(relevance[:2].min()) > 3 * float(relevance[2:].max())
    new, expected = problem(200, 12, seed=1)
    assert float((machine(new).detach()[:, 0] - expected).square().mean()) < 0.05 * float(expected.var())


def test_the_linear_kernel_is_chosen_for_linear_targets() -> None:
    x, _ = problem(60, 4)
    y = x @ torch.tensor([1.0, -2.0, 0.5, 0.0], dtype=torch.float64)
    machine = KernelMachine(4, 1, 60)
    fitted(machine, x, y[:, None], NUMBER)
    assert float(machine.shares[0]) > 0.5
    far = 5 * x[:3]
    torch.testing.assert_close(machine(far)[:, 0].double(), 5 * y[:3], rtol=0.1, atol=0.3)


def test_the_smooth_kernel_is_chosen_for_smooth_targets_but_not_for_jumps() -> None:
    x = 2 * torch.rand(160, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 1
    smooth, jumping = torch.sin(2 * x[:, 0]) + torch.cos(x[:, 1]) * x[:, 0], (x > 0).double().sum(1) % 2
    errors = list[float]()
    for y in (smooth, jumping):
        machine = KernelMachine(2, 1, 120)
        fitted(machine, x[:120], y[:120, None], NUMBER)
        errors.append(float((machine(x[120:]).detach()[:, 0] - y[120:]).square().mean() / y.var()) ** 0.5)
        assert (float(machine.shares[3]) > 0) == (y is smooth)
    assert errors[0] < 0.005  # 0.01 without it


def test_with_few_centres_a_smooth_kernel_keeps_its_precision() -> None:
    x = 2 * torch.rand(400, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 1
    y = torch.sin(2 * x[:, 0]) + torch.cos(x[:, 1]) * x[:, 0]
    machine = KernelMachine(2, 1, 100)
    left_out = fitted(machine, x[:300], y[:300, None], NUMBER)
    assert float(machine.shares[3]) > 0
    for predicted, true in ((left_out[:, 0], y[:300]), (machine(x[300:]).detach()[:, 0], y[300:])):
        assert float((predicted - true).square().mean() / y.var()) ** 0.5 < 2e-3


def test_half_precision_and_autocast_lose_only_the_precision_of_the_inputs() -> None:
    x, y = problem(80)
    machine = KernelMachine(5, 2, 80)
    fitted(machine, x, (y > 0).long(), CLASSES)
    x = x.bfloat16()
    expected = machine(x.float())
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(machine(x.float()).float(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(machine(x).float(), expected, rtol=1e-5, atol=1e-5)


def test_far_from_the_origin_the_fit_uses_centres_in_stored_precision() -> None:
    x, y = problem(60)
    machine = KernelMachine(5, 1, 60)
    far = x + 1e6
    left_out = fitted(machine, far, y[:, None], NUMBER)
    own = (machine(far).detach()[:, 0] - y).square().mean()
    assert float(own) <= 1.1 * float((left_out[:, 0] - y).square().mean())


def test_the_choice_has_the_smallest_left_out_error() -> None:
    x, y = problem(70)
    part = kernel_choice.Part(x, (y - y.mean())[:, None], None)
    for p in (1, 2):
        alike = torch.ones(5, dtype=torch.float64)
        tried = [part._tried(p, alike, (length,)).fit.error for length in kernel_choice.LENGTHS]
        assert part.plain()[p - 1].fit.error == min(tried)
        assert part.learnt(part.plain(), 3)[p - 1].fit.error < min(tried)  # some coordinates are uninformative
    chosen = part.choice(part.learnt(part.plain(), 3))
    assert chosen.fit.error <= min(metric.fit.error for metric in chosen.metrics)


def test_steepness_is_summed_over_outputs() -> None:
    x, y = problem(20)
    both = torch.stack([y, x[:, 4] ** 2], 1)
    both = both - both.mean(0)
    for p in (1, 2):
        whole = kernel_choice.Part(x, both, None)
        metric = whole._tried(p, torch.ones(5, dtype=torch.float64), (2.0,))
        parts = [metric.fit._replace(dual=metric.fit.dual[:, k : k + 1]) for k in range(2)]
        separate = [whole._steepness(p, metric._replace(fit=part)) for part in parts]
        torch.testing.assert_close(whole._steepness(p, metric), separate[0] + separate[1])


def test_coinciding_examples_and_constant_coordinates() -> None:
    x = torch.zeros(6, 3, dtype=torch.float64)
    machine = KernelMachine(3, 1, 6)
    left_out = fitted(machine, x, torch.arange(6.0)[:, None].double(), NUMBER)
    assert bool(left_out.isfinite().all())
    assert bool(machine(x).isfinite().all())
    assert machine(torch.zeros(0, 3)).shape == (0, 1)
    assert math.isclose(float(machine(x).detach()[0]), 2.5, abs_tol=0.3)


def test_of_two_examples_each_is_predicted_by_the_other() -> None:
    x, y = problem(3)
    left_out = fitted(KernelMachine(5, 1, 3), x[:2], y[:2, None], NUMBER)
    torch.testing.assert_close(left_out, y[:2, None].flip(0), rtol=1e-6, atol=1e-6)
    left_out = fitted(KernelMachine(5, 1, 3), x, y[:, None], NUMBER, torch.tensor([0, 1, 0]))
    torch.testing.assert_close(left_out[[0, 2]], y[[1, 1], None], rtol=1e-6, atol=1e-6)


def test_the_same_seed_gives_the_same_fit() -> None:
    x, y = problem(50)
    one, two = (KernelMachine(5, 1, 30, num_chosen=20) for _ in range(2))
    fitted(one, x, y[:, None], NUMBER)
    fitted(two, x, y[:, None], NUMBER)
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True))


class Tripled(Regressand):
    """Numbers whose readout is three times the score plus two."""

    def columns(self, targets: Tensor) -> Tensor:
        return targets.double()

    def readout(self, scores: Tensor, targets: Tensor, weights: Tensor | None = None) -> Readout:
        one = torch.ones(1, dtype=torch.float64)
        return Readout(torch.zeros(1, dtype=torch.int64), 3 * one, 2 * one)


def test_a_second_fit_replaces_the_first_and_outputs_use_the_readout() -> None:
    x, y = problem(40)
    once, twice = KernelMachine(5, 1, 40), KernelMachine(5, 1, 40)
    fitted(twice, x, x[:, 4:], NUMBER)
    left_out = fitted(once, x[:30], y[:30, None], NUMBER)
    torch.manual_seed(1)
    tripled = twice.fit(x[:30], y[:30, None], Tripled())
    assert not twice.dual[30:].any()
    assert not twice.centres[30:].any()
    torch.testing.assert_close(tripled, 3 * left_out + 2, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(twice(x), 3 * once(x) + 2, rtol=1e-3, atol=1e-3)


def test_rows_in_several_parts_give_the_same_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = problem(50)
    one, parts = KernelMachine(5, 1, 20).double(), KernelMachine(5, 1, 20).double()
    expected = fitted(one, x, y[:, None], NUMBER)
    monkeypatch.setattr(kernel_machine, "_ROWS", 7)
    torch.testing.assert_close(fitted(parts, x, y[:, None], NUMBER), expected, rtol=1e-5, atol=1e-6)


def test_bad_arguments_are_refused() -> None:
    machine = KernelMachine(3, 1, 6)
    for x, words in (
        (torch.zeros(1, 3), "fewer than 2 examples"),
        (torch.zeros(4, 2), "expected coordinates (n, 3)"),
        (torch.full((4, 3), torch.nan), "coordinates hold NaN"),
        (torch.full((4, 3), 1e200, dtype=torch.float64), "numbers that torch.float32 does not hold"),
    ):
        with refused(ValueError, words):
            machine.fit(x, torch.zeros(len(x), 1), NUMBER)
    for groups in (torch.zeros(9), torch.arange(8)):
        with refused(ValueError, "models.KernelMachine: groups are", "expected (9,), at least 2"):
            machine.fit(problem(9, 3)[0], torch.zeros(9, 1), NUMBER, groups=groups)
    with refused(ValueError, "has 2 outputs; expected 1"):
        machine.fit(problem(9, 3)[0], torch.arange(9) % 2, CLASSES)
    with refused(ValueError, "num_centres must be at least 1; got 0"):
        KernelMachine(3, 1, 0)


def test_without_rounds_all_coordinates_have_relevance_1() -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(60, 5, generator=draw)
    targets = x[:, :1].double().sin()
    for num_rounds, is_learnt in ((0, False), (3, True)):
        torch.manual_seed(0)
        machine = KernelMachine(5, 1, 60, num_rounds=num_rounds)
        machine.solve(x, targets)
        assert bool((machine.relevance != 1).any()) is is_learnt


@pytest.mark.parametrize("groups", [None, torch.arange(12) // 3])
def test_penalties_tried_together_equal_those_tried_one_by_one(
    groups: Tensor | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = torch.Generator().manual_seed(0)
    root, targets = (torch.randn(12, count, generator=draw).double() for count in (4, 2))
    kernel, centred, members = root @ root.T, targets - targets.mean(0), kernel_fit.members_of(groups)
    together = kernel_fit.best_fit(kernel, centred, members, kernel_fit.PENALTIES)
    monkeypatch.setattr(kernel_fit, "_OUTPUTS", 1)
    apart = kernel_fit.best_fit(kernel, centred, members, kernel_fit.PENALTIES)
    assert apart.penalty == together.penalty
    torch.testing.assert_close(apart.left_out, together.left_out)
    torch.testing.assert_close(apart.dual, torch.linalg.solve(kernel + apart.penalty * torch.eye(12), centred))


@pytest.mark.parametrize(
    ("errors", "start", "tried", "best"),
    [
        ([4, 3, 2, 1], None, [1, 2, 3], 3),
        ([1, 2, 3, 0], None, [1, 2, 0], 0),
        ([0, 2, 3, 1], 0, [0, 1], 0),
        ([5], None, [0], 0),
    ],
    ids=["up", "down", "stays", "one"],
)
def test_candidates_are_tried_until_errors_rise(
    errors: list[float], start: int | None, tried: list[int], best: int
) -> None:
    calls, none = list[int](), torch.zeros(0)

    def fitted(place: float) -> kernel_choice.Smooth:
        calls.append(int(place))
        fit = kernel_fit.KernelFit(errors[int(place)], 1.0, none, none)
        return kernel_choice.Smooth(place, 1.0, none, fit)

    assert kernel_choice._walked(fitted, range(len(errors)), start).length == best
    assert calls == tried
