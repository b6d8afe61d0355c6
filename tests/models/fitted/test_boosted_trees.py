"""Boosted trees: predictions by loops, growth by exhaustive search, and left-out scores by their folds."""

from pathlib import Path

import pytest
import torch
import torch._inductor.config as inductor
from torch import Tensor

from fredholm.models import BoostedTrees
from fredholm.models.fitted import boosted_trees
from fredholm.models.fitted.boosted_trees import BINS, FOLDS, LEAVES, PENALTY, RATE, _Binned, _Growth
from fredholm.models.fitted.ridge_head import dealt
from fredholm.tasks.targets import ClassTarget, NumberTarget
from tests.refusals import refused

NUMBER = NumberTarget(names=("y",), mean=(0.0,), deviation=(1.0,))
CLASSES = ClassTarget(names=("a", "b", "c"))


def problem(n: int = 150, d: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Coordinates, the last with few values, and targets made of thresholds on the first two."""
    drawn = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=drawn)
    x[:, -1] = x[:, -1].round()
    found = ((x[:, 0] > 0.3) ^ (x[:, 1] < -0.2)).float() + 0.1 * torch.randn(n, generator=drawn)
    return x, found[:, None]


def predicted_by_loop(model: BoostedTrees, x: Tensor, fold: int) -> Tensor:
    """The sum of the trees of a fold, by descending each of them."""
    rows = []
    for row in x:
        total = torch.zeros_like(model.bias)
        for t in range(model.leaves.shape[1]):
            box = 0
            for k, b in zip(model.coordinate[fold, t].tolist(), model.threshold[fold, t].tolist(), strict=True):
                box = 2 * box + int(float(row[k]) > b)
            total = total + model.leaves[fold, t, box]
        for t in range(int(model.counts[1])):
            box, places = 0, (slice(None), fold, t)
            splits = [
                each[places].tolist() for each in (model.split_box, model.split_coordinate, model.split_threshold)
            ]
            for i, (of, k, b) in enumerate(zip(*splits, strict=True)):
                if box == of and float(row[k]) > b:
                    box = i + 1
            total = total + model.leaves[fold, t, 64 + box]
        rows.append(total)
    return torch.stack(rows)


def test_outputs_and_gradients_are_sums_over_trees() -> None:
    torch.manual_seed(0)
    model = BoostedTrees(3, 2, 5)
    with torch.no_grad():
        model.leaves.normal_()
        model.bias.normal_()
        model.threshold.normal_()
        model.coordinate.random_(0, 3)
        model.split_threshold.normal_()
        model.split_coordinate.random_(0, 3)
        model.split_box.copy_((torch.rand(LEAVES - 1, FOLDS, 5) * torch.arange(1, LEAVES)[:, None, None]).long())
        model.counts.fill_(5)
    x, weight = torch.randn(7, 3), torch.randn(7, 2)
    found = model(x)
    expected = model.bias + torch.stack([predicted_by_loop(model, x, fold) for fold in range(FOLDS)]).sum(0)
    torch.testing.assert_close(found, expected)
    own = torch.autograd.grad((found * weight).sum(), [model.leaves, model.bias])
    other = torch.autograd.grad((expected * weight).sum(), [model.leaves, model.bias])
    torch.testing.assert_close(own, other)
    assert model(x[:0]).shape == (0, 2)


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("depth", [1, 3])
def test_a_tree_takes_the_best_splits_and_is_an_integral_operator_with_its_kernel(outputs: int, depth: int) -> None:
    x, found = problem()
    targets = torch.cat([found, found.square(), x[:, 2:3]], 1)[:, :outputs].double()
    fold = torch.arange(len(x)) % FOLDS
    growth, again = (_Growth(_Binned.of(x), targets, fold) for _ in range(2))
    torch.manual_seed(3)
    growth.grow(2)  # so that the residuals differ between folds
    before, state = growth.rest.clone(), torch.get_rng_state()
    trees = growth.grow(depth)
    torch.set_rng_state(state)
    drawn = torch.stack([boosted_trees._some(known, growth.num_drawn) for known in growth.known])
    direction = torch.randn(outputs) if outputs > 1 else torch.ones(1)
    assert growth.num_drawn == int(0.8 * 120)
    for k in range(FOLDS):
        assert not (fold[drawn[k]] == k).any()
        rest = before[k, drawn[k]].double()
        along, mine = rest @ direction.double(), x[drawn[k]]
        box = torch.zeros(len(mine), dtype=torch.int64)

        def gained(box: Tensor, along: Tensor = along) -> float:
            boxes = range(int(box.max()) + 1)
            return sum(float(along[box == each].sum() ** 2 / (PENALTY + (box == each).sum())) for each in boxes)

        for level in range(depth):
            best = max(
                gained(2 * box + (mine[:, c] > b).long())
                for c in range(x.shape[1])
                for b in again.edges[c][again.edges[c].isfinite()]
            )
            c, b = int(trees.coordinate[k, level]), trees.threshold[k, level]
            before_it, box = gained(box), 2 * box + (mine[:, c] > b).long()
            assert gained(box) == pytest.approx(best, rel=1e-4)
            assert float(trees.gains[k, level]) == pytest.approx(best - before_it, rel=1e-2, abs=1e-3)
        splits = list(zip(trees.coordinate[k, :depth].tolist(), trees.threshold[k, :depth].tolist(), strict=True))
        same = torch.ones(len(x), len(mine), dtype=torch.bool)  # κ of all examples and of those sampled
        for c, b in splits:
            same &= (x[:, None, c] > b) == (mine[None, :, c] > b)
        kernel = same.double()
        step = RATE * (kernel @ rest) / (PENALTY + kernel.sum(1, keepdim=True))
        torch.testing.assert_close(growth.rest[k].double(), before[k] - step, rtol=1e-4, atol=1e-5)


def test_a_leaf_wise_tree_divides_the_boxes_that_gain_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boosted_trees, "AT_ONCE", 2)
    x, found = problem()
    growth = _Growth(_Binned.of(x), found.double(), torch.arange(len(x)) % FOLDS)
    before, state = growth.rest.clone(), torch.get_rng_state()
    trees = growth.grow_leafwise()
    torch.set_rng_state(state)
    drawn = torch.stack([boosted_trees._some(known, growth.num_drawn) for known in growth.known])
    for k in range(2):
        rest, mine = before[k, drawn[k], 0].double(), x[drawn[k]]

        def score(some: Tensor, rest: Tensor = rest) -> float:
            return float(rest[some].sum() ** 2 / (PENALTY + some.sum()))

        def best(some: Tensor, mine: Tensor = mine, k: int = k) -> float:
            splits = ((c, b) for c in range(x.shape[1]) for b in growth.edges[c][growth.edges[c].isfinite()])
            parts = ((some & (mine[:, c] > b), some & (mine[:, c] <= b)) for c, b in splits)
            return max(score(one) + score(other) for one, other in parts) - score(some)

        boxes, everywhere, known = [torch.ones(len(mine), dtype=torch.bool)], torch.zeros(len(x)).long(), [1.0]
        known[0] = best(boxes[0])
        for first in (0, 1, 3, 5):  # 1, then 2 boxes at once
            width = min(2, len(boxes))
            expected = sorted(known)[-width:]
            places = [int(trees.box[k, first + j]) for j in range(width)]
            assert sorted(known[at] for at in places) == pytest.approx(expected, rel=1e-3)
            for j, at in enumerate(places):
                split, own = first + j, boxes[at]
                c, b = int(trees.coordinate[k, split]), float(trees.threshold[k, split])
                assert float(trees.gains[k, split]) == pytest.approx(known[at], rel=1e-3, abs=1e-3)
                boxes[at], other = own & (mine[:, c] <= b), own & (mine[:, c] > b)
                assert score(boxes[at]) + score(other) - score(own) == pytest.approx(known[at], rel=1e-3, abs=1e-3)
                everywhere = torch.where((everywhere == at) & (x[:, c] > b), split + 1, everywhere)
                boxes.append(other)
                known.append(0.0)
            for at in (*places, *range(len(boxes) - width, len(boxes))):
                known[at] = best(boxes[at])
        for number in range(2):  # values, of boxes that no later split divides
            if number not in trees.box[k, 7:].tolist():
                some = boxes[number]
                step = RATE * float(rest[some].sum()) / (PENALTY + int(some.sum()))
                own = everywhere == number
                torch.testing.assert_close(growth.rest[k, own].double(), before[k, own].double() - step)


def nested(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Coordinates, and a target that changes sign at each of ten conditions, within the one before."""
    x = torch.rand(n, 4, generator=torch.Generator().manual_seed(seed))
    y, inside = torch.ones(n), torch.ones(n, dtype=torch.bool)
    for level in range(10):
        inside = inside & (x[:, level % 4] > (0.2, 0.36, 0.49)[level // 4])
        y = torch.where(inside, -y, y)
    return x, y[:, None]


def test_leaf_wise_trees_are_weighed_against_oblivious_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = nested(300)
    monkeypatch.setattr(boosted_trees, "SHARES", (0.0, 0.6))
    found = list[Tensor]()
    for few in (300, 299):
        monkeypatch.setattr(boosted_trees, "FEW", few)
        torch.manual_seed(0)
        model = BoostedTrees(4, 1, 15)
        left_out = model.fit(x, y, NUMBER)
        found.append((left_out - y).square().mean())
        with torch.no_grad():
            some = torch.arange(0, 300, 20)
            torch.manual_seed(0)
            fold = dealt(len(x), None, FOLDS, x.device)
            alone = torch.stack([model.bias + FOLDS * predicted_by_loop(model, x[some], k) for k in range(FOLDS)])
            torch.testing.assert_close(left_out[some].float(), alone[fold[some], torch.arange(len(some))])
            torch.testing.assert_close(model(x[some]), alone.mean(0))
        assert (int(model.counts[1]) > 0) == (few < 300)
        assert float(model.gains.max()) == 1
    assert found[1] < 0.9 * found[0]


def test_thresholds_lie_between_values_or_at_quantiles_of_many_values() -> None:
    few = torch.tensor([3.0, 1.0, 1.0, 2.0, 7.0])
    assert boosted_trees._edges(few)[:4].tolist() == [1.5, 2.5, 5.0, torch.inf]
    assert bool(boosted_trees._edges(torch.ones(9)).isinf().all())
    many = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    edges = boosted_trees._edges(many)
    below = (many[:, None] < edges).sum(0)
    assert edges.shape == (BINS - 1,)
    assert bool(((below - torch.arange(1, BINS) * 1000 / BINS).abs() <= 1).all())
    mostly = torch.cat([torch.zeros(900), torch.arange(1.0, 101.0)])
    found = boosted_trees._edges(mostly)
    found = found[found.isfinite()]
    assert float(found[0]) == 0.5  # 0 is separated from other values
    assert len(found) == 7


@pytest.mark.parametrize("groups", [None, 40])
def test_left_out_scores_come_from_the_trees_of_the_other_folds(groups: int | None) -> None:
    x, found = problem()
    members = None if groups is None else torch.arange(len(x)) % groups
    model = BoostedTrees(4, 1, 40)
    torch.manual_seed(1)
    left_out = model.fit(x, found, NUMBER, groups=members)
    torch.manual_seed(1)
    fold = dealt(len(x), members, FOLDS, x.device)
    assert fold.bincount(minlength=FOLDS).min() >= (30 if groups is None else 16)
    if members is not None:
        assert all(len(fold[members == each].unique()) == 1 for each in range(40))
    with torch.no_grad():
        alone = torch.stack([model.bias + FOLDS * predicted_by_loop(model, x, each) for each in range(FOLDS)])
        torch.testing.assert_close(left_out.float(), alone[fold, torch.arange(len(x))], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(model(x), alone.mean(0), rtol=1e-4, atol=1e-4)
    assert float((left_out - found).square().mean()) < 0.4 * float(found.var())
    assert float((model(x).detach() - found).square().mean()) < float((left_out - found).square().mean())


def test_few_trees_are_grown_on_noise_and_none_on_constant_targets() -> None:
    x, _ = problem()
    noise = torch.randn(150, 1, generator=torch.Generator().manual_seed(7))
    model = BoostedTrees(4, 1, 80)
    torch.manual_seed(0)
    left_out = model.fit(x, noise, NUMBER)
    used = model.leaves[0].flatten(1).any(1)
    assert int(used.sum()) < 15
    assert float((left_out - noise).square().mean()) <= float(noise.var(correction=0)) * 1.0001
    assert not used[int(used.sum()) :].any()
    assert not model.leaves.isnan().any()


def test_shallow_and_deep_trees_alternate_until_they_no_longer_help(monkeypatch: pytest.MonkeyPatch) -> None:
    x, found = problem()
    depths, grow = list[int](), _Growth.grow
    monkeypatch.setattr(_Growth, "grow", lambda growth, depth: depths.append(depth) or grow(growth, depth))
    monkeypatch.setattr(boosted_trees, "PATIENCE", 7)
    torch.manual_seed(0)
    model = BoostedTrees(4, 1, 300)
    model.fit(x, found, NUMBER)
    used = int(model.leaves[0].flatten(1).any(1).sum())
    assert depths == [(4, 6)[t % 2] for t in range(used + 7)]
    num_splits = (model.threshold[:, :used] < 1e30).sum(2)
    assert num_splits[:, ::2].max() == 4
    assert num_splits[:, 1::2].max() == 6


def test_gains_of_splits_show_which_coordinates_matter() -> None:
    x, found = problem(600)
    model = BoostedTrees(4, 1, 60)
    torch.manual_seed(0)
    model.fit(x, found, NUMBER)
    assert float(model.gains.max()) == 1
    assert float(model.gains[:2].min()) > 3 * float(model.gains[2:].max())


def test_classes_are_predicted_and_a_fraction_can_be_read() -> None:
    x, _ = problem(400)
    y = ((x[:, 0] > 0.3).long() + (x[:, 1] > 0).long()) % 3
    model = BoostedTrees(4, 3, 60)
    torch.manual_seed(0)
    left_out = model.fit(x, y, CLASSES)
    assert float((left_out.argmax(1) == y).float().mean()) > 0.95
    whole = model(x)
    torch.manual_seed(0)
    solution = model.solve(x, CLASSES.columns(y))
    readout = CLASSES.readout(solution.left_out, y)
    torch.testing.assert_close(readout(solution.left_out), left_out)
    model.read(solution, readout, share=0.25)
    torch.testing.assert_close(model(x), 0.25 * whole)
    with refused(ValueError, "models.BoostedTrees: the regressand has 3 outputs; expected 2"):
        BoostedTrees(4, 2, 5).fit(x, y, CLASSES)


@pytest.mark.parametrize("n", [2, 3, 9])
def test_few_examples_and_constant_coordinates(n: int) -> None:
    for x in (torch.ones(n, 3), torch.randn(n, 3, generator=torch.Generator().manual_seed(0))):
        torch.manual_seed(0)
        model = BoostedTrees(3, 1, 10)
        left_out = model.fit(x, torch.arange(float(n))[:, None], NUMBER)
        assert left_out.shape == (n, 1)
        assert bool(left_out.isfinite().all())
        assert bool(model(x).isfinite().all())
        assert all(bool(tensor.isfinite().all()) for tensor in model.state_dict().values())


def test_dtypes_graphs_and_autocast() -> None:
    x, got = problem()
    torch.manual_seed(0)
    model = BoostedTrees(4, 1, 20)
    model.fit(x, got, NUMBER)
    found = model(x)
    graph = torch.export.export(model, (x[:5],), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)).module()
    torch.testing.assert_close(graph(x), found)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(model(x), found)
    torch.testing.assert_close(model.double()(x.double()), found.double())
    torch.manual_seed(0)
    other = BoostedTrees(4, 1, 20)
    other.fit(x.double(), got.double(), NUMBER)
    torch.testing.assert_close(other(x), found)


def test_the_highest_of_few_values_can_be_split_off() -> None:
    x = (torch.arange(60.0) % 4)[:, None]
    trees = BoostedTrees(1, 1, 2)
    trees.fit(x, (x == 3).float(), NUMBER)
    assert trees.threshold[:, 0, 0].tolist() == [2.5] * FOLDS


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_compiled_packages_give_the_same_boxes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(200, 5)
    trees = BoostedTrees(5, 2, 8)
    trees.fit(x, (x[:, 0] > 0).long(), ClassTarget(names=("a", "b")))
    trees.requires_grad_(False)
    graph = torch.export.export(trees, (x[:5],), dynamic_shapes=({0: torch.export.Dim("batch", min=1)},))
    # precompiled headers, and processes that import torch, cost more than they save for one package
    with inductor.patch({"compile_threads": 1, "aot_inductor.precompile_headers": False}):
        path = torch._inductor.aoti_compile_and_package(graph, package_path=str(tmp_path / "trees.pt2"))
    torch.testing.assert_close(torch._inductor.aoti_load_package(path)(x[:7]), trees(x[:7]))


def test_a_tree_considers_coordinates_with_gains_and_a_sample_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boosted_trees, "READ", 0)
    x = torch.randn(60, 200, generator=torch.Generator().manual_seed(0))
    growth = _Growth(_Binned.of(x), x[:, :1].double(), torch.arange(60) % FOLDS)
    gained = torch.zeros(200)
    gained[torch.arange(0, 100, 2)] = torch.arange(1.0, 51.0)  # fifty of them, with growing gains
    first, second = (growth._candidates(gained).tolist() for _ in range(2))
    for candidates in (first, second):
        assert len(set(candidates)) == len(candidates) == 64
        assert set(range(36, 100, 2)) <= set(candidates)  # the best 32
    assert len(set(first) ^ set(second)) > 20
    assert len(growth._candidates(gained[:64])) == 64
    gained[4:] = 0
    third, fourth = (set(growth._candidates(gained).tolist()) for _ in range(2))
    assert {0, 2} <= third & fourth
    assert len(third & fourth) < 45  # coordinates without gain are sampled from everywhere
    monkeypatch.setattr(boosted_trees, "READ", growth.num_drawn * 150)
    assert len(growth._candidates(gained)) == 150
    monkeypatch.setattr(boosted_trees, "READ", growth.num_drawn * 900)
    assert len(growth._candidates(torch.zeros(700))) == 512


def test_targets_with_another_number_of_outputs_are_refused_and_change_nothing() -> None:
    x, found = problem()
    model = BoostedTrees(4, 1, 20)
    torch.manual_seed(0)
    model.fit(x, found, NUMBER)
    before = model(x)
    with refused(ValueError, "the regressand has 3 outputs; expected 1"):
        model.fit(x.flip(0), (x[:, 0] > 0).long(), CLASSES)
    torch.testing.assert_close(model(x), before, rtol=0, atol=0)


def test_trees_are_equal_under_autocast_and_infinity_is_above_all_thresholds() -> None:
    x, found = problem(400)
    targets = torch.cat([found, -found, found.square()], 1)
    target = NumberTarget(names=("a", "b", "c"), mean=(0.0,) * 3, deviation=(1.0,) * 3)
    models = [BoostedTrees(4, 3, 20) for _ in range(2)]
    for model, on in zip(models, (False, True), strict=True):
        torch.manual_seed(0)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=on):
            model.fit(x, targets, target)
    torch.testing.assert_close(models[0](x), models[1](x), rtol=0, atol=0)
    torch.testing.assert_close(models[0](torch.full((1, 4), torch.inf)), models[0](torch.full((1, 4), 1e30)))


def test_each_fold_considers_the_coordinates_with_gains_in_that_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boosted_trees, "READ", 0)
    x = torch.randn(90, 70, generator=torch.Generator().manual_seed(0))
    growth = _Growth(_Binned.of(x), x[:, :1].double(), torch.arange(90) % FOLDS)
    torch.manual_seed(0)
    trees = [growth.grow(2) for _ in range(5)]
    for k in range(FOLDS):
        expected = torch.zeros(70)
        for tree in trees:
            expected.index_add_(0, tree.coordinate[k], tree.gains[k])
        torch.testing.assert_close(growth.gains[k], expected)


def test_a_wide_table_with_few_relevant_columns() -> None:
    x = torch.randn(300, 400, generator=torch.Generator().manual_seed(0))
    y = ((x[:, :1] > 0.2) ^ (x[:, 1:2] > 0)).float() + x[:, 2:3].sign()
    torch.manual_seed(0)
    model = BoostedTrees(400, 1, 60)
    model.fit(x, y, NUMBER)
    assert set(model.gains.topk(3).indices.tolist()) == {0, 1, 2}


def test_bad_arguments_are_refused() -> None:
    x, found = problem()
    model = BoostedTrees(4, 1, 5)
    with refused(ValueError, "models.BoostedTrees: expected coordinates (n, 4) and n targets; got (150, 3)"):
        model.fit(x[:, :3], found, NUMBER)
    with refused(ValueError, "models.BoostedTrees: there are fewer than 2 examples"):
        model.fit(x[:1], found[:1], NUMBER)
    with refused(ValueError, "coordinates hold NaN"):
        model.fit(torch.where(x > 2, torch.nan, x), found, NUMBER)
    with refused(ValueError, "models.BoostedTrees: groups are (150,), 1 of them"):
        model.fit(x, found, NUMBER, groups=torch.zeros(150, dtype=torch.int64))
    with refused(ValueError, "models.BoostedTrees: num_trees must be at least 1; got 0"):
        BoostedTrees(4, 1, 0)
