import dataclasses
import json
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fredholm.encoders.series import SeriesBatch
from fredholm.models import (
    AttentionConfig,
    ConvolutionConfig,
    FilterBank,
    ITNet,
    ITNetSeriesConfig,
    KernelConfig,
    LowRankConfig,
    MLPConfig,
    RecurrenceConfig,
    SampleMachine,
    SeriesMachine,
    SeriesSampling,
    SumConfig,
    SummaryBank,
)
from fredholm.models.fitted import boosted_trees
from fredholm.models.series.ckcnn import CKCNN
from fredholm.storage.config_json import from_json, to_json
from fredholm.tasks import SeriesLearning, Task
from fredholm.tasks.series import Preparation
from fredholm.tasks.series.batches import series_of
from fredholm.tasks.splits.splits import Splits
from fredholm.tasks.targets import TARGETS, ClassTarget, LabelTarget, NumberTarget
from fredholm.training import Run, TrainingConfig, seed_everything, train
from fredholm.training.scoring import score_split
from tests.refusals import refused

SMALL = CKCNN.Config(embed_dim=6, depth=1, kernel_width=8, dropout=0.0)
BANK = FilterBank.Config(num_thresholds=8, num_groups=8)
CPU = torch.device("cpu")
NONE = torch.Generator()


def write_npz(folder: Path, *, classes: int = 2, irregular: bool = False, longest: int = 12) -> Path:
    """Writes waves of 6 to `longest` samples at random phases, with a frequency per class; 40 to train, 20 to test."""
    rng = np.random.default_rng(0)
    values, times, labels, offsets = [], [], [], [0]
    for i in range(60):
        n, label = int(rng.integers(6, longest + 1)), i % classes
        stamps = np.arange(n) * 0.5 + (rng.uniform(0, 0.4, n) if irregular else 0)
        phase = rng.uniform(0, 2 * np.pi)
        wave = np.sin(stamps * (1 + 2 * label) + phase)
        values.append(np.stack([3 + 2 * wave, -wave], 1))
        times.append(stamps)
        labels.append(label)
        offsets.append(offsets[-1] + n)
    path = folder / "waves.npz"
    np.savez(
        path,
        values=np.concatenate(values),
        offsets=offsets,
        labels=labels,
        times=np.concatenate(times),
        classes=["slow", "fast", "faster"][:classes],
        channels=["up", "down"],
        is_test=np.arange(60) >= 40,
    )
    return path


def config(folder: Path, *, classes: int = 2, irregular: bool = False, **settings: Any) -> SeriesLearning.Config:
    path = write_npz(folder, classes=classes, irregular=irregular)
    return SeriesLearning.Config(**{"data": str(path), "valid_fraction": 0.0, "model": SMALL, **settings})


class Fixed(nn.Module):
    """Logits that are a linear function of the first sample alone."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.weight = torch.randn(2, classes, generator=torch.Generator().manual_seed(3))

    def forward(self, given: SeriesBatch) -> Tensor:
        return given.values[:, 0, :2] @ self.weight


def test_facts_are_the_training_splits(tmp_path: Path) -> None:
    task = config(tmp_path).build()
    train = task.splits.train
    assert (task.num_train, task.num_held_out("test")) == (40, 20)
    assert task.facts == SeriesLearning.Facts(
        target=ClassTarget(names=("slow", "fast")),
        channels=("up", "down"),
        preparation=Preparation.learn(train),
        spacing=0.5,
        extent=0.5 * (int(train.lengths.max()) - 1),
        is_regular=True,
    )
    slower = config(tmp_path, train_every=3).build().facts
    assert slower.spacing == 1.5
    assert slower.extent == 1.5 * ((int(train.lengths.max()) - 1) // 3)
    irregular = config(tmp_path, irregular=True).build()
    times = irregular.splits.train.in_memory().times
    assert times is not None
    gaps = [row[: int(n)].diff() for row, n in zip(times, irregular.splits.train.lengths, strict=True)]
    assert irregular.facts.spacing == pytest.approx(float(torch.cat(gaps).mean()))
    assert irregular.facts.extent == pytest.approx(max(float(gap.sum()) for gap in gaps))


def test_the_limit_is_stored_in_the_facts(tmp_path: Path) -> None:
    task = config(tmp_path, limit=0.5).build()
    assert task.facts.preparation.limit == 0.5
    assert task.train_batch(torch.arange(9), NONE)["values"].abs().max() == 0.5
    assert task.config.build(task.facts).num_train == 40


def test_batches_are_prepared_padded_and_masked(tmp_path: Path) -> None:
    task = config(tmp_path).build()
    train, indices = task.splits.train.in_memory(), torch.tensor([4, 0, 7])
    batch = task.train_batch(indices, NONE)
    lengths = train.lengths[indices]
    assert batch["values"].shape == (3, int(lengths.max()), 2)
    assert torch.equal(batch["mask"].sum(1), lengths)
    assert batch["spacing"].tolist() == [0.5] * 3
    assert "times" not in batch
    assert train.answers is not None
    assert torch.equal(batch["targets"], train.answers.values[indices])
    for row, i in enumerate(indices.tolist()):
        n = int(lengths[row])
        expected = task.facts.preparation.apply(train.values[i, :n])
        assert torch.equal(batch["values"][row, :n], expected)
        assert not batch["values"][row, n:].any()
    assert "mask" not in task.held_out_batch("test", torch.tensor([3]))
    assert len(task.train_batch(indices, NONE)["values"]) == task.num_targets(batch) == 3
    late = config(tmp_path, irregular=True).build()
    batch = late.train_batch(indices, NONE)
    times = late.splits.train.in_memory().times
    assert times is not None
    assert torch.equal(batch["times"], times[indices, : batch["times"].shape[1]])
    assert "spacing" not in batch


def test_each_split_is_thinned_by_its_own_settings(tmp_path: Path) -> None:
    whole = config(tmp_path).build().splits
    task = config(tmp_path, train_every=2, test_every=3, train_drop=0.5).build()
    assert task.splits.train.in_memory().values.shape[1] == 6
    assert (task.splits.train.spacing, task.held_out("test").spacing) == (1.0, 1.5)
    assert torch.equal(
        task.held_out("test").in_memory().values.nan_to_num(9),
        whole.held_out("test").in_memory().values[:, ::3].nan_to_num(9),
    )
    assert task.facts.preparation.observation == (0,)
    batch = task.held_out_batch("test", torch.arange(4))
    assert batch["values"].shape[2] == 3
    assert batch["values"][..., 2][batch.get("mask", torch.ones_like(batch["values"][..., 0]).bool())].all()
    absent = config(tmp_path, test_drop=0.5, dropped="absent").build()
    assert absent.splits.train.in_memory().times is None
    assert absent.held_out("test").in_memory().times is not None
    with pytest.warns(UserWarning, match="values are missing in up, down, but none were in training"):
        dropped = config(tmp_path, test_drop=0.5).build().held_out("test").in_memory()
    assert dropped.values[dropped.exists].isnan().any()


def test_bins_make_irregular_series_regular_also_in_prediction(tmp_path: Path) -> None:
    task = config(tmp_path, irregular=True, bin=1.0).build()
    assert (task.splits.train.in_memory().times, task.facts.spacing) == (None, 1.0)
    (tmp_path / "new.csv").write_text("time,up,down\n0.1,1,1\n0.9,3,1\n1.2,4,2\n")
    (tmp_path / "binned.csv").write_text("time,up,down\n0,2,1\n1,4,2\n")
    model = task.model().eval()
    one, other = task.predict(model, [tmp_path / "new.csv", tmp_path / "binned.csv"], CPU)
    assert one["probability"] == other["probability"]


def test_predictions_use_the_order_of_samples_in_training_or_are_refused(tmp_path: Path) -> None:
    values = torch.randn(8, 7, 2, generator=torch.Generator().manual_seed(0))
    arrays = {"values": values.numpy(), "labels": np.arange(8) % 2, "is_test": np.arange(8) > 5}
    np.savez(tmp_path / "even.npz", channels=np.array(["up", "down"]), **arrays)
    task = SeriesLearning.Config(data=str(tmp_path / "even.npz"), model=SMALL, permute_seed=3).build()
    order = torch.randperm(7, generator=torch.Generator().manual_seed(3))
    assert torch.equal(task.held_out("test").in_memory().values, values[6:, order])
    model, file = task.model().eval(), tmp_path / "new.csv"
    rows = [f"{k},{up},{down}" for k, (up, down) in enumerate(values[6].tolist())]
    file.write_text("\n".join(["time,up,down", *rows]))
    (found,) = task.predict(model, [file], CPU)
    with torch.no_grad():
        logits = model(SeriesBatch(task.held_out_batch("test", torch.tensor([0]))["values"]))
    assert found["probability"] == pytest.approx(logits.softmax(-1).max().item(), abs=1e-5)
    file.write_text("\n".join(["time,up,down", *rows[:5]]))
    with refused(ValueError, "has 5 samples; permute_seed needs 7"):
        task.predict(model, [file], CPU)


def test_the_loss_is_summed_cross_entropy(tmp_path: Path) -> None:
    task = config(tmp_path, classes=3).build()
    model, batch = Fixed(3), task.train_batch(torch.arange(8), NONE)
    logits = batch["values"][:, 0] @ model.weight
    torch.testing.assert_close(
        task.loss(model, batch), F.cross_entropy(logits, batch["targets"], reduction="none").sum()
    )


def test_metrics_are_of_the_whole_test_split(tmp_path: Path) -> None:
    for classes in (2, 3):
        task = config(tmp_path, classes=classes).build()
        model = Fixed(classes)
        batch = task.held_out_batch("test", torch.arange(20))
        logits, labels = batch["values"][:, 0] @ model.weight, batch["targets"]
        found = score_split(task, "test", model, batch_size=7, device=CPU, dtype=torch.float32)
        assert found["accuracy"] == pytest.approx(float((logits.argmax(1) == labels).float().mean()))
        assert found["loss"] == pytest.approx(float(F.cross_entropy(logits, labels)), rel=1e-5)
        assert found.keys() == {"accuracy", "balanced_accuracy", "macro_f1", "matthews", "auroc", "loss"}
        if classes == 2:
            score = logits.softmax(-1)[:, 1]
            pairs = score[labels == 1][:, None] - score[labels == 0]
            expected = ((pairs > 0).float() + 0.5 * (pairs == 0)).mean()
            assert found["auroc"] == pytest.approx(float(expected), abs=1e-6)


def test_the_model_is_built_from_the_facts(tmp_path: Path) -> None:
    task = config(tmp_path, train_drop=0.3, model=dataclasses.replace(SMALL, lift=5)).build()
    model = task.model()
    assert isinstance(model, CKCNN)
    assert (model.stack.extent, model.stack.spacing) == (task.facts.extent, 0.5)
    assert isinstance(model.encoder.get_submodule("embedding"), nn.Linear)
    batch = task.train_batch(torch.arange(5), NONE)
    assert task.loss(model, batch).isfinite()
    plain = config(tmp_path).build().model()
    assert isinstance(plain, CKCNN)
    assert plain.encoder.embed_dim == 2


@pytest.mark.parametrize(
    "kernel",
    [
        MLPConfig(width=4, num_frequencies=2),
        ConvolutionConfig(),
        RecurrenceConfig(state_dim=2),
        SumConfig(first=LowRankConfig(width=4, num_frequencies=2, rank=2), second=AttentionConfig()),
    ],
)
def test_an_itnet_takes_any_kernel(tmp_path: Path, kernel: KernelConfig) -> None:
    stack = ITNet.Config(embed_dim=4, depth=2, kernel=kernel, pool="mean")
    task = config(tmp_path, model=ITNetSeriesConfig(stack=stack)).build()
    model = task.model().eval()
    assert isinstance(model, ITNet)
    batch, short = task.train_batch(torch.arange(5), NONE), int(task.splits.train.lengths[0])
    together = model(SeriesBatch(batch["values"], batch["mask"], None, batch["spacing"]))
    alone = model(SeriesBatch(batch["values"][:1, :short], None, None, batch["spacing"][:1]))
    torch.testing.assert_close(alone[0], together[0], rtol=1e-4, atol=1e-5)
    task.loss(model, batch).backward()
    assert all(parameter.grad is not None for parameter in model.head.parameters())


@pytest.mark.parametrize("irregular", [False, True])
def test_a_filter_bank_is_computed_from_the_training_split(tmp_path: Path, irregular: bool) -> None:
    task = config(tmp_path, classes=3, irregular=irregular, model=BANK).build()
    torch.manual_seed(0)
    model = task.model()
    assert isinstance(model, FilterBank)
    assert model.sampling == SeriesSampling(channels=2, spacing=task.facts.spacing, extent=task.facts.extent)
    task.initialise(model, CPU)
    scores = score_split(task, "test", model, batch_size=7, device=CPU, dtype=torch.float32)
    assert task.num_held_out("valid") == 0
    assert scores["accuracy"] >= 0.9
    assert scores["loss"] < 0.5
    torch.manual_seed(0)
    same, given = task.model(), task.train_batch(torch.arange(40), NONE)
    assert isinstance(same, FilterBank)
    same.fit([(series_of(given), given["targets"])], task.target)
    torch.testing.assert_close(same.thresholds, model.thresholds)
    torch.testing.assert_close(same.head.weight, model.head.weight, rtol=1e-3, atol=1e-5)


def test_initialise_leaves_networks_unchanged(tmp_path: Path) -> None:
    task = config(tmp_path).build()
    model = task.model()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    task.initialise(model, CPU)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.slow
@pytest.mark.parametrize("irregular", [False, True])
def test_it_learns(tmp_path: Path, irregular: bool) -> None:
    made = config(tmp_path, irregular=irregular)
    training = TrainingConfig(
        epochs=12, batch_size=10, learning_rate=2e-2, ema_decay=0.5, weight_decay=0.0, tensorboard=False
    )
    result = train(Run.Config(task=made, training=training), tmp_path / "run")
    assert result.metrics["accuracy"] >= 0.9
    run = Run(tmp_path / "run")
    assert run.evaluate()["accuracy"] == result.metrics["accuracy"]
    run.task = dataclasses.replace(made, test_every=2).build(run.task.facts)
    assert run.evaluate()["accuracy"] >= 0.7


def test_prediction_needs_no_data(tmp_path: Path) -> None:
    task = config(tmp_path).build()
    facts = from_json(json.loads(json.dumps(to_json(task.facts))), Task.Facts, [SeriesLearning.Facts, *TARGETS])
    assert facts == task.facts
    moved = dataclasses.replace(task.config, data=str(tmp_path / "gone.npz")).build(facts)
    seed_everything(0)
    model = moved.model().eval()
    series = task.held_out("test").read(torch.tensor([2, 5]))
    lines = ["down,series,time,up,label"]
    for i in range(2):
        for k, (up, down) in enumerate(series.values[i, : int(series.lengths[i])].tolist()):
            lines.append(f"{down},no {i},{0.5 * k},{up},unknown")
    (tmp_path / "new.csv").write_text("\n".join(lines))
    found = moved.predict(model, [tmp_path / "new.csv"], CPU)
    batch = task.held_out_batch("test", torch.tensor([2, 5]))
    with torch.no_grad():
        given = SeriesBatch(batch["values"], batch.get("mask"), None, batch["spacing"])
        probabilities = model(given).softmax(-1)
    for i, row in enumerate(found):
        best = int(probabilities[i].argmax())
        assert row == {
            "file": str(tmp_path / "new.csv"),
            "series": f"no {i}",
            "class": ("slow", "fast")[best],
            "probability": pytest.approx(float(probabilities[i, best]), abs=1e-5),
        }
    with refused(ValueError, "no series at"):
        moved.num_train  # noqa: B018 - reads the data


def test_a_file_that_lacks_channels_is_refused(tmp_path: Path) -> None:
    task = config(tmp_path).build()
    (tmp_path / "new.csv").write_text("time,up\n0,1\n")
    with refused(ValueError, "new.csv, line 1: no column 'down'; the columns are time, up"):
        task.predict(task.model(), [tmp_path / "new.csv"], CPU)


def test_one_warning_reports_a_series_longer_than_in_training(tmp_path: Path) -> None:
    task = config(tmp_path).build()
    model = task.model().eval()
    longer = "time,up,down\n" + "".join(f"{0.5 * k},{k % 3},1\n" for k in range(40))
    (tmp_path / "new.csv").write_text(longer)
    with pytest.warns(UserWarning, match=r"new\.csv: lasts 19\.5, longer than any series in training \(5\.5\)"):
        (row,) = task.predict(model, [tmp_path / "new.csv"], CPU)
    probability = row["probability"]
    assert isinstance(probability, float)
    assert math.isfinite(probability)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        task.predict(model, [tmp_path / "new.csv"], CPU)


def test_irregular_single_and_missing_samples_are_predicted(tmp_path: Path) -> None:
    task = config(tmp_path).build()
    model = task.model().eval()
    (tmp_path / "new.csv").write_text(
        "series,time,up,down\none,7,1,1\ntwo,0,1,1\ntwo,0.1,,\ntwo,3,2,2\nthree,0,,1\nthree,4,,2\n"
    )
    with pytest.warns(UserWarning, match="values are missing in up, down"):
        rows = task.predict(model, [tmp_path / "new.csv"], CPU)
    assert [row["series"] for row in rows] == ["one", "two", "three"]
    assert all(0.5 <= float(row["probability"]) <= 1 for row in rows)


def test_classes_that_changed_since_training_are_refused(tmp_path: Path) -> None:
    made = config(tmp_path)
    facts = made.build().facts
    write_npz(tmp_path, classes=3)
    with refused(ValueError, "slow, fast, faster; the run was made with the classes slow, fast"):
        made.build(facts).num_train  # noqa: B018 - reads the data


def test_at_least_two_classes_are_required(tmp_path: Path) -> None:
    with refused(ValueError, "has the classes ['slow']; expected at least 2"):
        config(tmp_path, classes=1).build()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"target": "regression"},
            "target is 'regression'; expected one of (None, 'class', 'labels', 'number', 'samples')",
        ),
        ({"fill": "zero"}, "fill is 'zero'; expected one of (None, 'mean', 'last', 'linear')"),
        ({"dropped": "gone"}, "dropped is 'gone'; expected one of"),
        ({"permute_seed": 0, "train_every": 2}, "permute_seed orders whole series"),
        ({"permute_seed": 10**20}, "permute_seed is 100000000000000000000; expected an integer from 0"),
        ({"drop_seed": -1}, "drop_seed is -1; expected an integer from 0"),
        ({"train_every": 0}, "train_every is 0; expected at least 1"),
        ({"test_every": -1}, "test_every is -1; expected at least 1"),
        ({"train_drop": 1.0}, "train_drop is 1.0; expected a share from 0 to below 1"),
        ({"test_drop": -0.1}, "test_drop is -0.1; expected a share"),
        ({"bin": -1.0}, "bin is -1.0; expected a finite duration above 0"),
        ({"limit": 0.0}, "limit is 0.0; expected a number above 0"),
        ({"model": BANK, "valid_fraction": 0.2}, "valid_fraction=0.2 has no effect with model=FilterBank"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    with refused(ValueError, message):
        SeriesLearning.Config(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": CKCNN.Config(pool="none")}, "model.pool is 'none'; expected 'last' or 'mean'"),
        ({"model": ITNetSeriesConfig(stack=ITNet.Config(pool="none"))}, "model.stack.pool is 'none'; leave it out"),
        ({"model": SampleMachine.Config()}, "model is SampleMachine, which has an output for each sample"),
        (
            {"window": 16},
            "window=16 has no effect with target='class', one answer for a whole series of the data; leave it",
        ),
        ({"target": "samples"}, "target 'samples' expects one of each sample"),
    ],
)
def test_settings_that_do_not_suit_whole_series(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with refused(ValueError, message):
        dataclasses.replace(config(tmp_path), **settings).build()


def test_missing_data_are_refused() -> None:
    with refused(ValueError, "no series are given; pass a .ts, .tsv, .csv or .npz file, or a folder of"):
        SeriesLearning.Config().build()


def several(folder: Path, **arrays: Any) -> Path:
    """60 waves of one channel, each with a level, an amplitude and a frequency, 45 to train and 15 to test."""
    rng = np.random.default_rng(1)
    level, amplitude, rate = rng.normal(size=60), rng.uniform(0.2, 2, 60), rng.uniform(0.5, 3, 60)
    values = level[:, None] + amplitude[:, None] * np.sin(
        rate[:, None] * np.arange(24) / 2 + rng.uniform(0, 6, (60, 1))
    )
    found = {"levels": level, "amplitudes": amplitude, "rates": rate}
    path = folder / "several.npz"
    np.savez(path, values=values, is_test=np.arange(60) >= 45, **{name: made(found) for name, made in arrays.items()})
    return path


def test_numbers_are_predicted_in_their_unit(tmp_path: Path) -> None:
    path = several(
        tmp_path,
        targets=lambda found: np.stack([found["levels"], 10 * found["amplitudes"] + 100], 1),
        target_names=lambda _: ["level", "amplitude"],
    )
    result = train(
        Run.Config(task=SeriesLearning.Config(data=str(path), model=BANK), training=TrainingConfig(epochs=0)),
        tmp_path / "run",
    )
    assert isinstance(result.metrics["r2"], float)
    assert result.metrics["r2"] > 0.8
    run = Run(tmp_path / "run")
    assert isinstance(run.task, SeriesLearning)
    assert isinstance(run.task.target, NumberTarget)
    assert run.task.objective.metric == "r2"
    with np.load(path) as arrays:
        np.savez(tmp_path / "new.npz", values=arrays["values"][45:])
        expected = arrays["targets"][45:]
    rows = run.predict([tmp_path / "new.npz"])
    assert [list(row) for row in rows] == [["file", "series", "level", "amplitude"]] * 15
    found = np.array([[row["level"], row["amplitude"]] for row in rows], np.float64)
    assert np.abs(found - expected).mean() == pytest.approx(result.metrics["mean_absolute_error"], rel=1e-4)


def test_quantiles_are_calibrated(tmp_path: Path) -> None:
    path = several(tmp_path, targets=lambda got: got["levels"])
    task = SeriesLearning.Config(data=str(path), model=BANK, quantiles=(0.1, 0.5, 0.9)).build()
    torch.manual_seed(0)
    model = task.model()
    task.initialise(model, CPU)
    found = score_split(task, "test", model, batch_size=7, device=CPU, dtype=torch.float32)
    assert found["coverage"] >= 0.6
    assert found["r2"] > 0.8
    (row, *_) = task.predict(model, [path], CPU, part="test")
    assert list(row) == ["file", "series", "target", "target at 0.1", "target at 0.5", "target at 0.9"]
    low, middle, high = (float(row[f"target at {level}"]) for level in (0.1, 0.5, 0.9))
    assert low < middle == float(row["target"]) < high


def test_several_labels_of_a_series(tmp_path: Path) -> None:
    path = several(
        tmp_path,
        labels=lambda got: np.stack([got["levels"] > 0, got["amplitudes"] > 1], 1),
        classes=lambda _: ["high", "loud"],
    )
    task = SeriesLearning.Config(data=str(path), model=BANK).build()
    assert isinstance(task.target, LabelTarget)
    torch.manual_seed(0)
    model = task.model()
    task.initialise(model, CPU)
    found = score_split(task, "test", model, batch_size=7, device=CPU, dtype=torch.float32)
    assert found["average_precision"] > 0.9
    assert found["loss"] < 0.5
    (row, *_) = task.predict(model, [path], CPU, part="test")
    assert list(row) == ["file", "series", "labels", "probability of high", "probability of loud"]


def test_a_network_learns_numbers_by_gradient_descent(tmp_path: Path) -> None:
    path = several(tmp_path, targets=lambda found: found["levels"])
    task = SeriesLearning.Config(data=str(path), model=SMALL).build()
    batch = task.train_batch(torch.arange(5), NONE)
    outputs = task.model()(series_of(batch))
    torch.testing.assert_close(task.loss(lambda _: outputs, batch), (outputs - batch["targets"]).square().sum())  # pyright: ignore[reportArgumentType]


def test_groups_are_left_out_together(tmp_path: Path) -> None:
    """Groups of three nearly equal series: if left out one by one, each is predicted from its twins."""
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(24), 3)
    values = rng.normal(size=(24, 1, 16)).repeat(3, 0).reshape(72, 16) + 0.01 * rng.normal(size=(72, 16))
    np.savez(tmp_path / "twins.npz", values=values, targets=rng.normal(size=24)[group], groups=group)
    penalties = []
    for name in ("twins.npz", "alone.npz"):
        task = SeriesLearning.Config(data=str(tmp_path / name), model=BANK).build()
        assert set(task.splits.train.marks.groups or ()).isdisjoint(task.held_out("test").marks.groups or ())
        torch.manual_seed(0)
        model = task.model()
        task.initialise(model, CPU)
        assert isinstance(model, FilterBank)
        penalties.append(float(model.head.penalty))
        kept = task.splits.train.in_memory()
        assert kept.answers is not None
        np.savez(
            tmp_path / "alone.npz",
            train_values=kept.values,
            train_targets=kept.answers.values[:, 0],
            test_values=task.held_out("test").in_memory().values,
            test_targets=np.arange(len(task.held_out("test"))) / 2,
        )
    assert penalties[0] > 1000 * penalties[1]  # without groups each series is predicted from its twins


def test_settings_that_do_not_fit_the_kind_of_target_are_refused(tmp_path: Path) -> None:
    path = str(several(tmp_path, targets=lambda found: found["levels"]))
    with refused(ValueError, "class_weights='balanced' has no effect with numbers"):
        SeriesLearning.Config(data=path, class_weights="balanced").build()
    with refused(ValueError, "objective is 'accuracy'; expected one of mean_absolute_error"):
        SeriesLearning.Config(data=path, objective="accuracy").build()
    with refused(ValueError, "quantiles=(0.5,) has no effect with classes"):
        config(tmp_path, quantiles=(0.5,)).build()
    fitted = config(tmp_path, class_weights="balanced", model=BANK).build()
    assert fitted.objective.metric == "balanced_accuracy"


def test_the_shared_letters_are_balanced(shared_data: Path) -> None:
    made = SeriesLearning.Config(data=str(shared_data / "character_trajectories"), valid_fraction=0.0)
    splits = made.build().splits
    assert isinstance(splits, Splits)
    assert (len(splits.train), len(splits.held_out("test"))) == (1001, 428)


@pytest.mark.parametrize(("missing", "kind"), [(0.3, SeriesMachine.Config), (0.8, SummaryBank.Config)])
def test_summaries_are_used_where_most_values_are_missing(tmp_path: Path, missing: float, kind: type) -> None:
    path = write_npz(tmp_path)
    arrays = dict(np.load(path))
    arrays["values"][np.random.default_rng(1).random(arrays["values"].shape) < missing] = np.nan
    np.savez(path, **arrays)
    chosen, schedule, _ = SeriesLearning.Config(data=str(path)).recommended("small")
    assert isinstance(chosen, SeriesLearning.Config)
    assert (type(chosen.model), schedule.epochs) == (kind, 0)
    given, *_ = SeriesLearning.Config(data=str(path), model=BANK).recommended("small")
    assert isinstance(given, SeriesLearning.Config)
    assert given.model == BANK


@pytest.mark.parametrize(("channels", "kind"), [(18, SeriesMachine.Config), (65, FilterBank.Config)])
def test_for_very_many_channels_filters_alone_are_used(tmp_path: Path, channels: int, kind: type[Any]) -> None:
    values = np.random.default_rng(0).normal(size=(20, 12, channels))
    np.savez(tmp_path / "wide.npz", values=values, labels=np.arange(20) % 2)
    chosen: Any = SeriesLearning.Config(data=str(tmp_path / "wide.npz")).recommended("small")[0]
    assert chosen.model == kind()


def test_with_many_outputs_there_are_fewer_trees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).normal(size=(20, 12, 2))
    np.savez(tmp_path / "five.npz", values=values, labels=np.arange(20) % 5)
    monkeypatch.setattr(boosted_trees, "MOST_BOXES", 60)

    def recommended(model: SeriesMachine.Config) -> Any:
        found: Any = SeriesLearning.Config(data=str(tmp_path / "five.npz"), model=model).recommended("small").config
        return found.model

    assert recommended(SeriesMachine.Config()) == SeriesMachine.Config(num_trees=12)
    assert recommended(SeriesMachine.Config(num_places=3)) == SeriesMachine.Config(num_places=3, num_trees=12)
    assert recommended(SeriesMachine.Config(num_trees=70)).num_trees == 70


def test_closed_form_models_interpolate_missing_values_but_not_towards_padding(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(20, 10, 2))
    values[:, 6:8, 0] = np.nan
    lengths = np.where(np.arange(20) % 3 == 0, 8, 10)  # some series end with missing values
    path = tmp_path / "gaps.npz"
    np.savez(path, values=values, labels=np.arange(20) % 2, lengths=lengths)
    fills = list[str]()
    few = FilterBank.Config(num_thresholds=2, num_groups=1)
    for settings in ({"model": SMALL}, {"model": few, "fill": "mean"}, {"model": few}):
        task = SeriesLearning.Config(**{"data": str(path), **settings}).build()
        fills.append(task.facts.preparation.fill)
    assert fills == ["mean", "mean", "linear"]
    net, series = task.model(), task.splits.train.in_memory()
    task.initialise(net, CPU)
    given = torch.where(series.exists[..., None], series.values, 0.0)
    expected = task.target.answers(task.outputs(net, series, CPU))
    torch.testing.assert_close(task.tensor_form(net).call(net, given, series.exists), expected)


def test_a_summary_bank_uses_the_observation_channels(tmp_path: Path) -> None:
    path = write_npz(tmp_path)
    arrays = dict(np.load(path))
    arrays["values"][np.random.default_rng(1).random(arrays["values"].shape) < 0.5] = np.nan
    np.savez(path, **arrays)
    task = SeriesLearning.Config(data=str(path), model=SummaryBank.Config()).build()
    model = task.model()
    assert isinstance(model, SummaryBank)
    assert model.sampling.observation == task.facts.preparation.observation == (0, 1)
    task.initialise(model, CPU)
    train, values = task.splits.train.in_memory(), task.train_batch(torch.arange(40), NONE)
    found = model.summaries(series_of(values)).unflatten(1, (2, 9))
    torch.testing.assert_close(found[..., 6], (~train.values.isnan()).sum(1).float())
    standard = (train.values[0, :, 0].double() - task.facts.preparation.mean[0]) / task.facts.preparation.deviation[0]
    assert float(found[0, 0, 3]) == pytest.approx(float(standard[~standard.isnan()].max()), rel=1e-5)
