"""Baselines equal those of scikit-learn, are chosen on validation data and read the test split once."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from fredholm.comparison.compare import baseline_rows
from fredholm.tasks import ImageLearning, PointLearning, Segmentation, SeriesLearning, baselines
from fredholm.tasks.baselines import (
    BaselineData,
    BaselineExamples,
    Constant,
    Linear,
    Neighbours,
    baseline_pixels,
    baselines_on,
    drawn_elements,
)
from fredholm.tasks.images import ImageDataset
from fredholm.tasks.splits.split_files import Split
from fredholm.tasks.splits.splits import HeldOut
from fredholm.tasks.targets.target import Kind
from fredholm.tasks.text.counts import NGrams, TwoSidedNGrams
from tests.refusals import refused

pytest.importorskip("sklearn")


def test_pixels_are_the_features_of_images() -> None:
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.preprocessing import StandardScaler

    def known(part: ImageDataset) -> np.ndarray:
        assert part.answers is not None
        return part.answers.values.numpy()

    task = ImageLearning.Config(data="digits").build()
    splits = task.splits
    assert splits.valid is not None
    assert splits.test is not None
    found = {row.name: row for row in baseline_rows(task)}
    x, p, q = (
        part.images(torch.arange(len(part))).flatten(1).numpy() for part in (splits.train, splits.valid, splits.test)
    )
    y, v, t = (known(part) for part in (splits.train, splits.valid, splits.test))
    scale = StandardScaler().fit(x)
    models = [KNeighborsClassifier(int(k)).fit(scale.transform(x), y) for k in Neighbours.settings]
    best = max(models, key=lambda model: model.score(scale.transform(p), v))
    row = found["nearest neighbours"]
    assert row.valid == pytest.approx(best.score(scale.transform(p), v), abs=1e-6)
    assert row.test == pytest.approx(best.score(scale.transform(q), t), abs=1e-6)
    assert 0.93 < (found["logistic regression"].test or 0.0) < 0.99
    commonest = np.bincount(y).argmax()
    assert found["commonest class"].valid == pytest.approx((v == commonest).mean(), abs=1e-6)
    assert found["commonest class"].test == pytest.approx((t == commonest).mean(), abs=1e-6)


def test_numbers_are_predicted_in_their_unit(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    values = draw.normal(size=(80, 64, 1)).astype(np.float32)
    np.savez(tmp_path / "series.npz", values=values, labels=3 + 100 * values[:, 0, 0] + 50 * values[:, 63, 0])
    default = SeriesLearning.Config(data=str(tmp_path / "series.npz"), target="number")
    found = {row.name: row for row in baseline_rows(default.with_stack(default.stack).build())}
    ridge, near = (found[name].test for name in ("ridge regression", "nearest neighbours"))
    assert ridge is not None
    assert near is not None
    assert 5 < ridge < 0.6 * near < 100


@pytest.mark.filterwarnings("ignore::UserWarning")  # scikit-learn warns too
def test_labels_without_examples_are_predicted_as_absent() -> None:
    inputs = np.array([[0.0], [1.0], [2.0], [3.0]])
    labels = torch.tensor([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 1.0, 0.0]])
    found = list[torch.Tensor]()

    def value(outputs: torch.Tensor, split: HeldOut) -> float:
        found.append(outputs)
        return 0.0

    for baseline in baselines_on(BaselineData("labels", 3, lambda part: BaselineExamples(inputs, labels), value)):
        baseline.fitted(baseline.settings[-1])("valid")
        assert found[-1].shape == (4, 3)
        assert bool(found[-1].isfinite().all())
        assert bool((found[-1][:, 2] < 0).all())


def test_a_constant_predicts_shares_and_means() -> None:
    targets = {
        "class": torch.tensor([0, 2, 2, 2]),
        "labels": torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0], [1.0, 0.0]]),
        "number": torch.tensor([[1.0, -1.0], [3.0, 1.0], [5.0, 2.0], [7.0, 2.0]]),
    }
    expected = {"class": [0.25, 1e-6, 0.75], "labels": [0.75, 0.25], "number": [4.0, 4.0, 1.0, 1.0]}
    found = list[torch.Tensor]()
    kinds: list[Kind] = ["class", "labels", "number"]
    for kind in kinds:

        def plain(part: Split, kind: Kind = kind) -> BaselineExamples:
            return BaselineExamples(np.zeros((3, 1)), targets[kind] if part == "train" else targets[kind][:3])

        def value(outputs: torch.Tensor, split: HeldOut) -> float:
            found.append(outputs)
            return 0.0

        Constant(BaselineData(kind, len(expected[kind]), plain, value)).fitted(0.0)("test")
        chances = {"class": torch.exp, "labels": torch.sigmoid, "number": torch.clone}[kind](found[-1])
        torch.testing.assert_close(chances, torch.tensor(expected[kind]).expand(3, -1))


def test_too_many_features_are_refused() -> None:
    data = BaselineData(
        "class", 2, lambda part: BaselineExamples(np.zeros((3, 5000)), torch.tensor([0, 1, 0])), lambda *_: 0.0
    )
    with refused(ValueError, "5,000 plain features, more than 4,096"):
        baselines_on(data)[0].fitted(1.0)


def test_large_images_are_averaged() -> None:
    images = torch.arange(64 * 64, dtype=torch.float32).view(1, 1, 64, 64).div(64).to(torch.uint8)
    found = baseline_pixels(images)
    assert found.shape == (1, 1024)
    assert found[0, 1] == pytest.approx(images[0, 0, :2, 2:4].float().mean() / 255)


def test_n_grams_follow_the_formula() -> None:
    model = NGrams(lambda: [0, 1, 0, 1, 2], lambda split: [0, 1], 4)
    # p(1) = (2 + 3 / 4) / (5 + 3), p(1 | 0) = (2 + 1 p(1)) / (2 + 1)
    unigram = (2 + 3 / 4) / (5 + 3)
    assert model.fitted(1)("test") == pytest.approx(1 / unigram)
    assert model.fitted(2)("test") == pytest.approx(1 / ((2 + unigram) / 3))


def test_hidden_tokens_are_predicted_from_both_neighbours() -> None:
    tokens = [0, 1, 2, 0, 1, 2, 0, 3, 2]
    model = TwoSidedNGrams(lambda: tokens, lambda split: [(0, 1, 2)], hidden=9, vocab_size=10)
    base = (2 + 1) / (9 + 10)
    either = ((2 + base) / (3 + 1) + (2 + base) / (3 + 1)) / 2
    assert model.fitted(1.0)("test") == pytest.approx((3 + 1) / (2 + either))
    alone = TwoSidedNGrams(lambda: tokens, lambda split: [(9, 1, 9)], hidden=9, vocab_size=10)
    assert alone.fitted(1.0)("test") == pytest.approx(1 / base)


def test_probabilities_between_two_neighbours_sum_to_one() -> None:
    tokens = [0, 1, 2, 0, 1, 3, 2, 1, 0]

    def chance(*places: int) -> float:
        model = TwoSidedNGrams(lambda: tokens, lambda split: [(places[0], places[1], places[2])], 4, 5)
        return 1 / model.fitted(2.0)("valid")

    for before, after in ((1, 1), (1, 4), (4, 1), (4, 4), (3, 3)):
        assert sum(chance(before, token, after) for token in range(5)) == pytest.approx(1)


def test_elements_are_sampled_evenly_from_all_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    every = drawn_elements([3, 0, 5], "train")
    assert [part.tolist() for part in every] == [[0, 1, 2], [], [0, 1, 2, 3, 4]]
    monkeypatch.setattr(baselines, "MOST_EXAMPLES", 300)
    counts = [1000, 0, 1, 3000]
    some = drawn_elements(counts, "train")
    assert sum(map(len, some)) == 300
    for part, count in zip(some, counts, strict=True):
        assert sorted(set(part.tolist())) == part.tolist()
        assert all(0 <= i < count for i in part)
    assert 45 < len(some[0]) < 105
    assert sum(map(len, drawn_elements(counts, "test"))) == 4001


def test_pixels_and_points_have_baselines(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (12, 16, 16), dtype=np.uint8)
    masks = np.where(images > 128, 1, 0).astype(np.uint8)
    masks[:, 0] = 255  # unlabelled
    np.savez(tmp_path / "pixels.npz", images=images, masks=masks, classes=np.array(["dark", "light"]))
    found = {row.name: row for row in baseline_rows(Segmentation.Config(data=str(tmp_path / "pixels.npz")).build())}
    assert (found["logistic regression"].test or 0.0) > 0.95
    clouds = draw.normal(size=(12, 60, 3)).astype(np.float32)
    np.savez(tmp_path / "points.npz", x=clouds, labels=(clouds[..., 2] > 0).astype(np.int64))
    found = {row.name: row for row in baseline_rows(PointLearning.Config(data=str(tmp_path / "points.npz")).build())}
    assert (found["logistic regression"].test or 0.0) > 0.9
    assert (found["nearest neighbours"].test or 0.0) > 0.75


def test_a_solver_that_stops_early_is_scored_without_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    from sklearn.linear_model import LogisticRegression

    monkeypatch.setattr(Linear, "_model", lambda self, setting: LogisticRegression(max_iter=1))
    inputs, classes = np.random.default_rng(0).normal(size=(60, 8)), torch.arange(60) % 3
    model = Linear(
        BaselineData(
            "class", 3, lambda part: BaselineExamples(inputs, classes), lambda outputs, split: outputs.shape[1]
        )
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert model.fitted(1.0)("valid") == 3
