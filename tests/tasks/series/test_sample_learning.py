"""The task of series where the class of each sample is predicted."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fredholm.models import (
    BlendedSamples,
    FilterBank,
    ITNet,
    ITNetSeriesConfig,
    LowRankConfig,
    SampleMachine,
    SamplePyramid,
    SeriesMachine,
    SeriesSampling,
)
from fredholm.models.series.ckcnn import CKCNN
from fredholm.tasks import SeriesLearning
from fredholm.tasks.outputs import Outputs
from fredholm.tasks.series import SeriesSet, npz_file, series_learning
from fredholm.tasks.series.sample_labels import SampleLabels
from fredholm.tasks.series.sample_rows import SampleRows
from fredholm.tasks.targets import UNKNOWN, ElementTarget
from fredholm.tasks.views import SeriesView
from tests.refusals import refused

SMALL = CKCNN.Config(embed_dim=6, depth=1, kernel_width=8, dropout=0.0, is_causal=False)
STACK = ITNet.Config(embed_dim=4, depth=1, num_heads=1, kernel=LowRankConfig(rank=2, width=4, num_frequencies=4))
MACHINE = SampleMachine.Config(num_samples=300, num_trees=6)
SAMPLING = SeriesSampling(channels=1, spacing=1.0, extent=20.0)
CPU = torch.device("cpu")


def write(folder: Path, *, irregular: bool = False, **others: Any) -> Path:
    """Writes 18 series of 20 to 40 samples, whose level is 1 where a machine runs; 12 to train, 6 to test."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(20, 36, 18)
    lengths[:12:4] = 40  # no test series is longer than those of training
    labels = np.concatenate([np.arange(n) // 7 % 2 for n in lengths])
    values = labels[:, None] + 0.3 * rng.normal(size=(len(labels), 2))
    offsets = np.cumsum([0, *lengths])
    arrays: dict[str, Any] = {"values": values, "labels": labels, "offsets": offsets, "is_test": np.arange(18) >= 12}
    if irregular:
        arrays["times"] = np.concatenate([np.cumsum(rng.uniform(0.5, 1.5, n)) for n in lengths])
    arrays |= {"classes": ["idle", "runs"]} | others
    np.savez(folder / "runs.npz", **arrays)
    return folder / "runs.npz"


def config(folder: Path, **settings: Any) -> SeriesLearning.Config:
    path = write(folder, **settings.pop("arrays", {}))
    return SeriesLearning.Config(**{"data": str(path), "model": SMALL, "valid_fraction": 0.0, **settings})


def series_of(lengths: list[int]) -> SeriesSet:
    """Series whose values are the numbers of their samples, of class a but for the last one, whose class is unknown."""
    labels = torch.full((len(lengths), max(lengths)), UNKNOWN)
    for i, length in enumerate(lengths):
        labels[i, : length - 1] = 0
    return SeriesSet.pack(
        [np.arange(length, dtype=np.float64)[:, None] for length in lengths],
        sample_labels=SampleLabels(names=("a", "b"), values=labels),
        channels=("v",),
        names=tuple(map(str, lengths)),
    )


def test_the_target_is_that_of_samples(tmp_path: Path) -> None:
    task = config(tmp_path).build()
    assert task.facts.target == ElementTarget(names=("idle", "runs"))
    assert task.objective.metric == "mean_iou"
    assert (task.num_train, task.num_held_out("test")) == (12, 6)
    batch = task.held_out_batch("test", torch.arange(6))
    lengths = task.splits.held_out("test").lengths
    assert task.num_targets(batch) == int(lengths.sum())
    assert bool((batch["targets"][~batch["mask"]] == UNKNOWN).all())


def test_drawn_parts_hold_a_known_sample() -> None:
    series = series_of([40, 3])
    assert series.sample_labels is not None
    labels = torch.full_like(series.sample_labels.values, UNKNOWN)
    labels[0, 17] = 1
    series = dataclasses.replace(series, sample_labels=SampleLabels(names=("a", "b"), values=labels))
    rows, generator = SampleRows(8), torch.Generator().manual_seed(0)
    places = rows.places(series)
    assert places.tolist() == [[0, 16, 24]]
    starts = set()
    for _ in range(40):
        part = rows.drawn(series, places, generator)
        assert part.sample_labels is not None
        assert int(part.sample_labels.is_known.sum()) == 1
        starts.add(int(part.values[0, 0, 0]))
    assert starts == set(range(10, 18))


PYRAMID = SamplePyramid.Config(embed_dim=8, strides=(2, 3))
MODELS = [SMALL, ITNetSeriesConfig(stack=STACK), MACHINE, PYRAMID]


@pytest.mark.parametrize("irregular", [False, True])
@pytest.mark.parametrize("model", MODELS, ids=["ckcnn", "itnet", "machine", "pyramid"])
def test_padding_changes_nothing(model: Any, irregular: bool, tmp_path: Path) -> None:
    task = config(tmp_path, model=model, arrays={"irregular": irregular}).build()
    torch.manual_seed(0)
    built = task.model()
    task.initialise(built, CPU)
    built.eval().requires_grad_(False)
    batch = task.held_out_batch("test", torch.arange(6))
    whole = task._outputs(built, batch)
    assert float(whole[batch["mask"]].std()) > 0
    for i, length in enumerate(task.splits.held_out("test").lengths.tolist()):
        alone = task._outputs(built, task.held_out_batch("test", torch.tensor([i])))[0]
        torch.testing.assert_close(whole[i, :length], alone, atol=1e-5, rtol=1e-4)


def test_unknown_classes_do_not_count(tmp_path: Path) -> None:
    plain = config(tmp_path).build()
    labels = np.load(plain.config.data)["labels"].astype(float)
    labels[::2] = -1
    task = config(tmp_path, arrays={"labels": labels}).build()
    batch, full = (each.train_batch(torch.arange(4), torch.Generator()) for each in (task, plain))
    assert task.num_targets(batch) == int((batch["targets"] != UNKNOWN).sum()) < plain.num_targets(full)
    torch.manual_seed(0)
    model = task.model().eval()
    known = batch["targets"] != UNKNOWN
    expected = task.target.losses(model_outputs := task._outputs(model, batch)[known], batch["targets"][known]).sum()
    assert len(model_outputs) == task.num_targets(batch)
    torch.testing.assert_close(task.loss(model, batch), expected)


def test_series_without_any_label_are_not_drawn(tmp_path: Path) -> None:
    plain = write(tmp_path)
    arrays = np.load(plain)
    labels = arrays["labels"].copy()
    labels[: arrays["offsets"][3]] = -1
    assert config(tmp_path, arrays={"labels": labels}).build().num_train == 9


@pytest.mark.parametrize("window", [None, 12])
def test_a_machine_learns_and_predicts_rows(window: int | None, tmp_path: Path) -> None:
    given = config(tmp_path, model=MACHINE if window is None else SMALL, window=window)
    task = given.build()
    torch.manual_seed(0)
    model = task.model()
    task.initialise(model, CPU)
    model.eval()
    outputs, targets, _ = task.outputs_and_targets(model, "test", torch.arange(6))
    assert window is not None or float((outputs.argmax(-1) == targets).float().mean()) > 0.9
    found = task.predict(model, [Path(given.data)], CPU, part="test")
    assert len(found) == len(targets)
    assert list(found[0]) == ["file", "series", "time", "class", "probability"]
    expected = [task.target.names[k] for k in outputs.argmax(-1).tolist()]
    assert [row["class"] for row in found] == expected
    first = int(task.splits.held_out("test").lengths[0])
    assert [row["time"] for row in found[: first + 1]] == [*range(first), 0]


def test_saved_tables(tmp_path: Path) -> None:
    task = config(tmp_path, model=MACHINE).build()
    model = task.model()
    lines = ["time,channel_0,channel_1", *(f"2026-01-01 00:00:{k:02d},{k % 2},0" for k in range(5))]
    (tmp_path / "new.csv").write_text("\n".join(lines))
    (tmp_path / "to").mkdir()
    [row] = task.predict(model, [tmp_path / "new.csv"], CPU, outputs=Outputs(save=tmp_path / "to"))
    assert row["samples"] == 5
    head, first, *_ = (tmp_path / "to" / "new.csv").read_text().splitlines()
    assert head == "time,label,probability of idle,probability of runs"
    assert first.startswith("2026-01-01 00:00:00,idle,0.5,0.5")


def test_the_form_of_a_network_gives_the_probabilities_of_samples(tmp_path: Path) -> None:
    task = config(tmp_path).build()
    torch.manual_seed(0)
    model = task.model().eval().requires_grad_(False)
    form, test = task.tensor_form(model), task.splits.held_out("test").in_memory()
    found = form.call(model, torch.where(test.exists[..., None], test.values, 0.0), test.exists)
    assert [axis.name for axis in form.output.axes] == ["batch", "samples", "classes"]
    for own, expected in zip(found, task.probabilities(model, test, CPU), strict=True):
        torch.testing.assert_close(own[: len(expected)], expected, atol=1e-5, rtol=1e-4)
    with refused(ValueError, "models.SampleMachine: each series is read by itself, which no graph holds"):
        torch.export.export(SampleMachine.Config(num_trees=2).build(SAMPLING, 2), (torch.zeros(1, 9, 1),), strict=False)


def test_views_show_the_known_and_the_predicted_classes(tmp_path: Path) -> None:
    task = config(tmp_path, model=MACHINE).build()
    channels, classes = task.shown_example("test", 0, task.model()).views
    assert isinstance(channels, SeriesView)
    assert isinstance(classes, SeriesView)
    assert classes.title == "class: 0 idle, 1 runs"
    known, predicted = classes.lines
    labels = task.splits.held_out("test").in_memory().sample_labels
    assert labels is not None
    assert known.y.tolist() == labels.values[0, : len(known.y)].tolist()
    assert len(predicted.y) == len(known.y)


def test_recommended_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(write(tmp_path))
    config, schedule, notes = SeriesLearning.Config(data=path).recommended("small")
    assert isinstance(config, SeriesLearning.Config)
    assert (config.model, config.target, schedule.epochs) == (SampleMachine.Config(), "samples", 0)
    assert notes == ("labels change within series, so the class of each sample is learnt",)
    monkeypatch.setattr(series_learning, "LEAST_OF_NETWORK", 12)
    config, schedule, notes = SeriesLearning.Config(data=path).recommended("small")
    assert isinstance(config, SeriesLearning.Config)
    assert (config.model, config.target, config.sample_machine) == (SamplePyramid.Config(), "samples", 10_000)
    assert schedule.patience is None
    monkeypatch.setattr(series_learning, "MOST_PARTS", 4)
    assert SeriesLearning.Config(data=path).recommended("small")[1].batch_size == 4 < schedule.batch_size
    assert notes == ("labels change within series, so the class of each sample is learnt",)
    config, schedule, notes = SeriesLearning.Config(data=path, valid_fraction=0.0).recommended("small")
    assert isinstance(config, SeriesLearning.Config)
    assert (config.model, config.sample_machine) == (SampleMachine.Config(), None)
    assert (schedule.epochs, len(notes)) == (0, 1)
    config, schedule, _ = SeriesLearning.Config(data=path, window=16).recommended("small")
    assert isinstance(config, SeriesLearning.Config)
    assert (config.model, config.window) == (SamplePyramid.Config(), 16)
    assert schedule.num_train == config.build().num_train > 9
    config, _, _ = SeriesLearning.Config(data=path, model=CKCNN.Config(depth=1)).recommended("small")
    assert isinstance(config, SeriesLearning.Config)
    assert (config.model, config.window) == (CKCNN.Config(depth=1, is_causal=False), None)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"permute_seed": 0}, "permute_seed reorders samples, and each is to be classified where it is; leave it out"),
        ({"quantiles": (0.5,)}, "quantiles=(0.5,) has no effect with classes"),
        ({"model": MACHINE, "window": 8}, "window=8 has no effect with model=SampleMachine, which reads whole series"),
        ({"window": 3}, "series: window must be at least 4; got 3"),
        (
            {"model": FilterBank.Config()},
            "model is FilterBank, which has one output for a whole series, but each sample",
        ),
        ({"model": SeriesMachine.Config()}, "take sample-machine, sample-pyramid, ckcnn or itnet-series"),
        ({"model": dataclasses.replace(SMALL, pool="mean")}, "model.pool is 'mean', but each sample needs an output"),
        (
            {"model": ITNetSeriesConfig(stack=dataclasses.replace(STACK, pool="max"))},
            "model.stack.pool is 'max', but each sample needs an output; leave it out",
        ),
        ({"target": "class"}, "expected one of each of the 18 series, or labels of the shape"),
        ({"arrays": {"labels": np.zeros(1)}}, "labels is float64 (1,)"),
    ],
)
def test_settings_that_do_not_suit_samples(settings: Any, message: Any, tmp_path: Path) -> None:
    with refused(ValueError, message):
        config(tmp_path, **settings).build().model()


@pytest.mark.parametrize(("known", "classes"), [(0, "[]"), (5, "['idle']")])
def test_training_needs_two_classes(known: int, classes: str, tmp_path: Path) -> None:
    labels = np.full(np.load(write(tmp_path))["labels"].shape, -1)
    labels[:known] = 0
    with refused(ValueError, f"runs.npz: the training samples have the classes {classes}; expected at least 2"):
        config(tmp_path, arrays={"labels": labels}).build()


def test_one_recording_cannot_be_split(tmp_path: Path) -> None:
    rows = "".join(f"{t},{t % 3},{'ab'[t // 4 % 2]}\n" for t in range(20))
    (tmp_path / "one.csv").write_text(f"time,v,label\n{rows}")
    with refused(ValueError, "one.csv: there is one series, and splits leave whole series out; cut it into several"):
        SeriesLearning.Config(data=str(tmp_path / "one.csv")).recommended("small")


def test_labels_of_arrays_that_may_stay_in_their_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npz_file, "LARGE", 10)
    labels = np.arange(360).reshape(12, 30) // 10 % 3
    np.savez(tmp_path / "mapped.npz", values=labels.astype(np.float32), labels=labels)
    train = SeriesLearning.Config(data=str(tmp_path / "mapped.npz")).build().splits.train.in_memory()
    assert train.sample_labels is not None
    assert train.sample_labels.values.tolist() == train.values[..., 0].tolist()


def test_only_samples_are_saved(tmp_path: Path) -> None:
    arrays = {"labels": np.arange(18) % 2}
    task = config(tmp_path, arrays=arrays).build()
    with refused(ValueError, "--save has no effect where there is one answer for a whole series; leave it out"):
        task.predict(task.model(), [Path(task.config.data)], CPU, part="test", outputs=Outputs(save=tmp_path))


def test_baselines_read_windows_around_known_samples(tmp_path: Path) -> None:
    labels = np.load(write(tmp_path))["labels"].astype(float)
    labels[::3] = -1
    task = config(tmp_path, arrays={"labels": labels}).build()
    inputs, targets = task._baseline_examples("train")
    train = task.splits.train.in_memory()
    assert train.sample_labels is not None
    assert targets.tolist() == train.sample_labels.values[train.sample_labels.is_known].tolist()
    assert inputs.shape == (len(targets), 4 * 2 * 2)
    known, length = train.sample_labels.is_known[0].nonzero()[:, 0], int(train.lengths[0])
    own = train.values[0].double().numpy()
    np.testing.assert_allclose(inputs[0, :2], own[known[0]], atol=1e-9)
    middle = int((known >= 2).nonzero()[0, 0])
    np.testing.assert_allclose(inputs[middle, 4:6], own[known[middle] - 2 : known[middle] + 3].mean(0), atol=1e-9)
    np.testing.assert_allclose(inputs[middle, -2:], own[: min(length, int(known[middle]) + 33)].std(0), atol=1e-9)


def test_a_machine_beside_a_network(tmp_path: Path) -> None:
    arrays = {"is_test": np.arange(18) >= 14}
    task = config(tmp_path, model=PYRAMID, window=12, sample_machine=300, valid_fraction=0.3, arrays=arrays).build()
    torch.manual_seed(0)
    model = task.model()
    assert isinstance(model, BlendedSamples)
    task.initialise(model, CPU)
    model.eval()
    whole = [task.held_out_batch("valid", torch.tensor([i])) for i in range(task.num_held_out("valid"))]
    assert len({batch["values"].shape for batch in whole}) == 1  # kept outputs of the machine have one shape
    assert set(task.entry_names(model)) == {f"network.{name}" for name in task.entry_names(model.network)}

    def measure(score: Any, metrics: Any) -> dict[str, float]:
        for batch in whole:
            score(model, batch, metrics)
        return {name: float(metric.compute()) for name, metric in metrics.items()}

    with torch.no_grad():
        task.choose_by_validation(model, measure)
        assert float(model.share) == 0.0  # the network has learnt nothing
        outputs, targets, _ = task.outputs_and_targets(model, "test", torch.arange(4))
        assert isinstance(model.network, SamplePyramid)
        model.network.head.weight.zero_()
        model.network.head.bias.copy_(torch.tensor([9.0, -9.0]))
        model.share.fill_(0.75)
        metrics = task.metrics()
        task.score(model, task.held_out_batch("test", torch.arange(4)), metrics)
    assert float((outputs.argmax(-1) == targets).float().mean()) > 0.9
    assert float(metrics["loss"].compute()) == pytest.approx(18 * float(targets.float().mean()), rel=1e-3)


def test_a_machine_beside_a_network_needs_a_validation_split(tmp_path: Path) -> None:
    with refused(ValueError, "sample_machine is 300, whose share is chosen by a validation split, and there is none"):
        config(tmp_path, sample_machine=300).build()
    with refused(ValueError, "objective='loss' is of the network alone, beside sample_machine=300; leave one out"):
        config(tmp_path, sample_machine=300, objective="loss", valid_fraction=0.2)
    with refused(ValueError, "sample_machine=300 has no effect with model=SampleMachine"):
        config(tmp_path, model=MACHINE, sample_machine=300).build()


def test_drawn_parts_start_evenly() -> None:
    series = series_of([12])
    assert series.sample_labels is not None
    labels = torch.zeros_like(series.sample_labels.values)
    series = dataclasses.replace(series, sample_labels=SampleLabels(names=("a", "b"), values=labels))
    rows, generator = SampleRows(9), torch.Generator().manual_seed(0)
    place = torch.tensor([[0, 0, 9]])
    starts = [int(rows.drawn(series, place, generator).values[0, 0, 0]) for _ in range(400)]
    counts = torch.tensor(starts).bincount(minlength=4)
    assert int(counts.min()) > 40  # of windows that lie before a sample by chance, most would begin at 0
