import dataclasses
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fredholm.encoders import PointBatch
from fredholm.export.format import Graph
from fredholm.models import EdgeConvolution, InfViT, ITNet, LowRankConfig, PointPooling
from fredholm.storage.config_json import from_json, to_json
from fredholm.tasks import PointLearning, Task
from fredholm.tasks.outputs import Outputs
from fredholm.tasks.points import read_cloud
from fredholm.tasks.points.augmentation import CloudAugmentation
from fredholm.tasks.points.turns import principal_turns
from fredholm.tasks.splits.splits import HeldOut
from fredholm.tasks.targets import ClassTarget, ElementTarget
from fredholm.training import Run, TrainingConfig, seed_everything, train
from fredholm.training.scoring import score_split
from tests.refusals import refused
from tests.tasks.points.build import write_folder

CPU = torch.device("cpu")
NONE = torch.Generator()
SMALL = ITNet.Config(
    embed_dim=8, depth=1, num_heads=2, kernel=LowRankConfig(rank=2, width=4, num_frequencies=2, sigma=1.0), dropout=0.0
)


def write_npz(folder: Path, *, points: bool = False, clouds: int = 30, size: int = 9) -> Path:
    """Writes balls and rods of `size` to `size + 3` points with a feature, weights and a split, two thirds to train.

    Points on the right have the class "right".
    """
    drawn = np.random.default_rng(0)
    arrays: dict[str, Any] = {"channels": ["heat"], "classes": ["ball", "rod"], "point_classes": ["left", "right"]}
    third = range(clouds // 3)
    for split, rows in (("train", range(2 * clouds // 3)), ("valid", third), ("test", third)):
        sizes = [size + i % 4 for i in rows]
        pos = [drawn.normal(size=(n, 3)) * ([4, 0.2, 0.2] if i % 2 else [1, 1, 1]) for i, n in enumerate(sizes)]
        x = np.concatenate(pos)
        arrays[f"x_{split}"] = np.concatenate([x, 3 + 2 * drawn.normal(size=(len(x), 1))], 1)
        arrays[f"lengths_{split}"] = np.array(sizes)
        arrays[f"y_{split}"] = np.array(rows) % 2
        arrays[f"weights_{split}"] = drawn.uniform(0.1, 1, len(x))
        if points:
            arrays[f"labels_{split}"] = (x[:, 0] > 0).astype(int)
    path = folder / ("points.npz" if points else "clouds.npz")
    np.savez(path, **arrays)
    return path


def config(folder: Path, *, points: bool = False, **settings: Any) -> PointLearning.Config:
    given = {"data": str(write_npz(folder, points=points)), "model": SMALL, "num_neighbours": 3, **settings}
    return PointLearning.Config(**given)


class Fixed(nn.Module):
    """Logits that are a linear function of each point; the logits of a cloud are their mean."""

    def __init__(self, *, of_points: bool = False) -> None:
        super().__init__()
        self.of_points = of_points
        self.sizes: list[tuple[int, int]] = []

    def forward(self, given: PointBatch) -> Tensor:
        mask = torch.ones(given.pos.shape[:2], dtype=torch.bool) if given.mask is None else given.mask
        self.sizes.append((len(mask), int(mask.sum(1).max())))
        weight = torch.tensor([[1.0, -0.5], [0.3, 0.2], [0.1, -1.0]], dtype=torch.float64)
        logits = given.pos @ weight
        if self.of_points:
            return logits
        return torch.where(mask[..., None], logits, 0.0).sum(1) / mask.sum(1, keepdim=True)


def test_facts_are_the_training_splits(tmp_path: Path) -> None:
    task = config(tmp_path).build()
    heat = task.splits.train.features[:, 0].double()
    assert (task.num_train, task.num_held_out("valid"), task.objective.metric) == (20, 10, "accuracy")
    facts = task.facts
    assert (task.classifies_points, facts.target.names, facts.channels) == (False, ("ball", "rod"), ("heat",))
    assert facts.mean == pytest.approx([float(heat.mean())])
    assert facts.deviation == pytest.approx([float(heat.std(correction=0))])
    found = config(tmp_path, points=True).build()
    assert (found.classifies_points, found.facts.target.names) == (True, ("left", "right"))
    assert found.objective.metric == "mean_iou"
    assert config(tmp_path, points=True, target="cloud").build().facts.target.names == ("ball", "rod")


@pytest.mark.parametrize("split", get_args(HeldOut))
def test_held_out_splits_are_found_by_name(tmp_path: Path, split: HeldOut) -> None:
    task = config(tmp_path).build()
    part = task.held_out(split)
    assert [Path(name).name for name in part.names] == [f"clouds.npz:x_{split}[{i}]" for i in range(10)]
    assert torch.equal(task.held_out_batch(split, torch.tensor([3]))["pos"][0], part.select(torch.tensor([3])).pos)


def test_a_missing_validation_split_is_taken_from_training(tmp_path: Path) -> None:
    write_folder(tmp_path / "two", 20, folders=("train/{label}", "test/{label}"))
    given = PointLearning.Config(data=str(tmp_path / "two"), model=SMALL)
    task = given.build()
    found, labels = task.held_out("valid"), task.held_out("valid").labels
    assert (task.num_train, task.num_held_out("valid")) == (18, 2)
    assert labels is not None
    assert labels.tolist() == [0, 1]
    assert not set(found.names) & set(task.splits.train.names)
    assert all("two/train" in name for name in (*found.names, *task.splits.train.names))
    for seed in range(3):
        third = dataclasses.replace(given, valid_fraction=0.3, split_seed=seed).build().held_out("valid")
        assert third.labels is not None
        assert third.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert dataclasses.replace(given, split_seed=1).build().held_out("valid").names != found.names
    test = task.held_out("test")
    assert len(test) == 20
    assert all("two/test" in name for name in test.names)


def test_a_split_made_by_the_task_does_not_depend_on_the_folder(tmp_path: Path) -> None:
    found = []
    for place in ("here", "over/there"):
        write_folder(tmp_path / place / "clouds", 20)
        x, y = np.arange(180.0).reshape(20, 3, 3), np.arange(20) % 2
        np.savez(tmp_path / place / "clouds.npz", x=x, y=y)
        for name in ("clouds", "clouds.npz"):
            given = PointLearning.Config(data=str(tmp_path / place / name), model=SMALL)
            task = given.build()
            parts = [task.splits.train, task.held_out("valid"), task.held_out("test")]
            assert [len(part) for part in parts] == [14, 2, 4]
            found.append([[name.removeprefix(str(tmp_path / place)) for name in part.names] for part in parts])
            assert len({name for part in found[-1] for name in part}) == 20
    assert found[:2] == found[2:]
    given = PointLearning.Config(data=str(tmp_path / "here" / "clouds"), model=SMALL, test_fraction=0.5)
    assert given.build().num_held_out("test") == 10


def test_normals_keep_their_scale(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    x, y = np.random.default_rng(0).normal(size=(8, 5, 6)), np.arange(8) % 2
    np.savez(folder / "a.npz", x=x, y=y)
    path = str(folder / "a.npz")
    assert PointLearning.Config(data=path).build().facts.mean[0] != 0
    facts = PointLearning.Config(data=path, channels=("nz", "nx", "ny")).build().facts
    assert (facts.mean, facts.deviation) == ((0.0,) * 3, (1.0,) * 3)


def test_batches_are_standardised_padded_and_masked(tmp_path: Path) -> None:
    task = config(tmp_path).build()
    clouds, indices = task.splits.train, torch.tensor([3, 0, 1])
    batch = task.train_batch(indices, NONE)
    assert list(batch) == ["pos", "mask", "features", "weights", "targets"]
    assert batch["mask"].sum(1).tolist() == [12, 9, 10]
    assert batch["targets"].tolist() == [1, 0, 1]
    assert task.num_targets(batch) == 3
    for row, i in enumerate(indices.tolist()):
        own, n = clouds.select(torch.tensor([i])), int(clouds.sizes[i])
        assert own.weights is not None
        assert torch.equal(batch["pos"][row, :n], own.pos)
        assert torch.equal(batch["weights"][row, :n], own.weights)
        mean, deviation = (torch.tensor(each, dtype=torch.float64) for each in (task.facts.mean, task.facts.deviation))
        assert torch.equal(batch["features"][row, :n], ((own.features - mean) / deviation).float())
        for name in ("pos", "features", "weights"):
            assert not batch[name][row, n:].any()
    assert task.train_lengths is not None
    assert task.train_lengths.tolist() == clouds.sizes.tolist()


def test_points_are_sampled_anew_in_training_and_once_for_testing(tmp_path: Path) -> None:
    task = config(tmp_path, num_points=4, augmentation=CloudAugmentation.Config(rotation="all")).build()
    assert task.train_lengths is None
    everything = torch.arange(6)
    one, same, other = (task.train_batch(everything, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(one["pos"], same["pos"])
    assert not torch.equal(one["pos"], other["pos"])
    assert one["pos"].shape == (6, 4, 3)
    plain = config(tmp_path, num_points=4).build()
    drawn = plain.train_batch(everything, torch.Generator().manual_seed(1))
    own = plain.splits.train.select(torch.tensor([5])).pos
    assert all(bool((own == point).all(1).any()) for point in drawn["pos"][5])
    assert len(drawn["pos"][5].unique(dim=0)) == 4
    test = plain.held_out_batch("valid", everything)
    assert torch.equal(test["pos"][2:3], plain.held_out_batch("valid", torch.tensor([2]))["pos"])
    assert torch.equal(test["pos"], task.held_out_batch("valid", everything)["pos"])


def test_alignment_does_not_depend_on_the_orientation_of_clouds(tmp_path: Path) -> None:
    drawn = torch.Generator().manual_seed(0)
    pos = torch.randn(2, 30, 3, generator=drawn).double().exp() * torch.tensor([2.0, 0.3, 1.0])
    turn = torch.linalg.qr(torch.randn(3, 3, generator=drawn).double())[0]
    turn = turn * torch.linalg.det(turn)
    mask = torch.arange(30) < torch.tensor([[30], [20]])
    found, again = (each @ principal_turns(each, mask) for each in (pos, pos @ turn))
    torch.testing.assert_close(found, again)
    for cloud, there in zip(found, mask, strict=True):
        own = cloud[there] - cloud[there].mean(0)
        spread = own.T @ own
        torch.testing.assert_close(spread, spread.diag().diag(), atol=1e-8, rtol=0)
        assert spread.diag().diff().min() > 0
        assert bool((own[:, 1:].pow(3).sum(0) > 0).all())
        assert torch.linalg.det(principal_turns(pos, mask)).allclose(torch.ones(2, dtype=torch.float64))
    task = config(tmp_path, align=True).build()
    batch = task.held_out_batch("test", torch.arange(2))
    aligned = batch["pos"] @ principal_turns(batch["pos"], batch["mask"])
    torch.testing.assert_close(batch["pos"], aligned, atol=1e-5, rtol=1e-5)
    assert not torch.equal(batch["pos"], config(tmp_path).build().held_out_batch("test", torch.arange(2))["pos"])


def test_normals_are_rotated_with_aligned_clouds(tmp_path: Path) -> None:
    x = torch.randn(8, 20, 3, generator=torch.Generator().manual_seed(0)).numpy() * [1, 2, 4]
    names, labels = np.array(["nx", "ny", "nz"]), np.array([0, 1] * 4)
    np.savez(tmp_path / "own.npz", x=np.concatenate([x, x], -1), y=labels, channels=names)
    batch = (
        PointLearning.Config(data=str(tmp_path / "own.npz"), align=True, model=SMALL)
        .build()
        .train_batch(torch.arange(3), torch.Generator().manual_seed(0))
    )
    torch.testing.assert_close(batch["features"], batch["pos"].float(), atol=1e-5, rtol=1e-5)


def test_the_encoder_samples_the_farthest_points(tmp_path: Path) -> None:
    task = config(tmp_path, num_points=10, num_centres=4).build()
    assert int(task.train_batch(torch.arange(4), NONE)["mask"].sum(1).max()) == 10
    model = task.model()
    assert isinstance(model, ITNet)
    batch = task.held_out_batch("valid", torch.arange(2))
    signal, _ = model.encoder(PointBatch(batch["pos"], batch["features"], batch["mask"]))
    assert signal.shape[1] == 4


def test_loss_is_the_smoothed_cross_entropy(tmp_path: Path) -> None:
    task, model = config(tmp_path, label_smoothing=0.2).build(), Fixed()
    batch = task.train_batch(torch.arange(5), NONE)
    logits = model(PointBatch(batch["pos"], mask=batch["mask"]))
    soft = F.one_hot(batch["targets"], 2) * 0.8 + 0.1
    torch.testing.assert_close(task.loss(model, batch), -(logits.log_softmax(-1) * soft).sum().float())


def test_loss_of_points_counts_valid_points(tmp_path: Path) -> None:
    task, model = (
        config(tmp_path, points=True, augmentation=CloudAugmentation.Config(drop=0.5)).build(),
        Fixed(of_points=True),
    )
    batch = task.train_batch(torch.arange(5), torch.Generator().manual_seed(0))
    there = batch["mask"]
    assert int(there.sum()) < int(task.splits.train.sizes[:5].sum())
    assert task.num_targets(batch) == int(there.sum())
    assert torch.equal(batch["targets"] >= 0, there)
    logits = model(PointBatch(batch["pos"]))[there].log_softmax(-1)
    expected = -logits.gather(1, batch["targets"][there][:, None]).sum()
    torch.testing.assert_close(task.loss(model, batch), expected.float())


@pytest.mark.parametrize("points", [False, True])
def test_rare_classes_weigh_as_much_as_frequent_ones(tmp_path: Path, points: bool) -> None:
    plain, built = (config(tmp_path, points=points, class_weights=weights).build() for weights in ("none", "balanced"))
    assert built.objective.metric == ("mean_iou" if points else "balanced_accuracy")
    train = built.splits.train
    labels = train.point_labels if points else train.labels
    assert labels is not None
    weights = len(labels) / (2 * labels.bincount())
    target = built.target
    assert isinstance(target, ElementTarget if points else ClassTarget)
    assert target.weights == pytest.approx(weights.tolist())
    model, batch = Fixed(of_points=points), built.train_batch(torch.arange(5), NONE)
    logits = model(PointBatch(batch["pos"], mask=batch["mask"])).flatten(0, -2).float()
    known = batch["targets"].flatten() >= 0
    own = F.cross_entropy(logits[known], batch["targets"].flatten()[known], reduction="none")
    torch.testing.assert_close(plain.loss(model, batch), own.sum())
    torch.testing.assert_close(
        built.loss(model, batch), (own * weights.float()[batch["targets"].flatten()[known]]).sum()
    )


def test_every_point_is_predicted_once_when_clouds_are_split_into_parts(tmp_path: Path) -> None:
    task, model = config(tmp_path, points=True, num_points=4).build(), Fixed(of_points=True)
    batch = task.held_out_batch("valid", torch.tensor([3, 0]))
    assert batch["cloud"].tolist() == [0, 0, 0, 1, 1, 1]
    assert int(batch["mask"].sum(1).max()) == 4
    for i, size in ((0, 12), (1, 9)):
        points = batch["point"][batch["cloud"] == i][batch["mask"][batch["cloud"] == i]]
        assert points.sort().values.tolist() == list(range(size))
    metrics, whole = task.metrics(), config(tmp_path, points=True, num_points=None).build()
    task.score(model, batch, metrics)
    assert model.sizes == [(2, 4), (2, 4), (2, 3)]
    expected = whole.metrics()
    whole.score(model, whole.held_out_batch("valid", torch.tensor([3, 0])), expected)
    for name in metrics:
        torch.testing.assert_close(metrics[name].compute(), expected[name].compute())


def test_metrics_of_clouds(tmp_path: Path) -> None:
    task, model = config(tmp_path).build(), Fixed()
    found = score_split(task, "valid", model, batch_size=3, device=CPU, dtype=torch.float32)
    test = task.held_out("valid")
    assert test.labels is not None
    logits = torch.cat([model(PointBatch(test.select(torch.tensor([i])).pos[None])) for i in range(10)])
    right = logits.argmax(1) == test.labels
    assert 0 < int(right.sum()) < 10
    assert found["accuracy"] == pytest.approx(float(right.float().mean()))
    by_class = [float(right[test.labels == label].float().mean()) for label in (0, 1)]
    assert found["balanced_accuracy"] == pytest.approx(sum(by_class) / 2)
    assert found["loss"] == pytest.approx(float(F.cross_entropy(logits, test.labels)))


def test_metrics_of_points(tmp_path: Path) -> None:
    task, model = config(tmp_path, points=True).build(), Fixed(of_points=True)
    found = score_split(task, "valid", model, batch_size=3, device=CPU, dtype=torch.float32)
    test = task.held_out("valid")
    logits, labels = model(PointBatch(test.pos[None]))[0], test.point_labels
    assert labels is not None
    predicted = logits.argmax(1)
    assert found["accuracy"] == pytest.approx(float((predicted == labels).float().mean()))
    shares = [
        float(((predicted == k) & (labels == k)).sum() / ((predicted == k) | (labels == k)).sum()) for k in (0, 1)
    ]
    assert found["mean_iou"] == pytest.approx(sum(shares) / 2)
    assert found["loss"] == pytest.approx(float(F.cross_entropy(logits, labels)))


@pytest.mark.parametrize("points", [False, True])
def test_votes_average_the_cloud_and_its_augmented_copies(tmp_path: Path, points: bool) -> None:
    changes = CloudAugmentation.Config(rotation="all")
    task = config(tmp_path, points=points, augmentation=changes, votes=3).build()
    plain = config(tmp_path, points=points).build()
    indices = torch.tensor([1, 2, 5])
    batch = task.held_out_batch("valid", indices)
    assert batch["cloud"].tolist() == [0, 1, 2] * 3
    assert torch.equal(batch["pos"][:3], plain.held_out_batch("valid", indices)["pos"])
    assert not torch.allclose(batch["pos"][3:6], batch["pos"][6:])
    assert torch.equal(batch["pos"], task.held_out_batch("valid", indices)["pos"])
    alone = task.held_out_batch("valid", indices[1:2])["pos"]
    assert torch.equal(alone, batch["pos"][1::3, : alone.shape[1]])
    model, metrics = Fixed(of_points=points), task.metrics()
    task.score(model, batch, metrics)
    predicted = model(PointBatch(batch["pos"], mask=batch["mask"])).softmax(-1)
    mean = (predicted[:3] + predicted[3:6] + predicted[6:]) / 3
    labels = batch["targets"][:3]
    expected = -mean[labels >= 0].log().gather(-1, labels[labels >= 0][:, None]).mean()
    assert float(metrics["loss"].compute()) == pytest.approx(float(expected))


@pytest.mark.parametrize("points", [False, True])
def test_a_run_learns_and_is_reopened(tmp_path: Path, points: bool) -> None:
    task = config(
        tmp_path,
        points=points,
        num_points=8,
        augmentation=CloudAugmentation.Config(jitter=0.01),
        label_smoothing=0.1,
    )
    training = TrainingConfig(
        epochs=14, batch_size=10, learning_rate=1e-2, ema_decay=0.5, device="cpu", tensorboard=False, accumulation=2
    )
    result = train(Run.Config(task=task, training=training), tmp_path / "run")
    assert result.metrics["accuracy"] > 0.75
    rest = Run(tmp_path / "run", device="cpu")
    assert rest.evaluate()["loss"] == pytest.approx(result.metrics["loss"])
    assert rest.task.facts == task.build().facts
    assert rest.evaluate("valid")["loss"] != pytest.approx(result.metrics["loss"])


@pytest.mark.parametrize(
    "model",
    [
        ITNet.Config(**{**vars(SMALL), "pool": "mean"}),
        ITNet.Config(**{**vars(SMALL), "pool": "max"}),
        InfViT.Config(embed_dim=8, depth=1, num_heads=2),
        PointPooling.Config(embed_dim=8, widths=(6, 8)),
        EdgeConvolution.Config(embed_dim=8, widths=(6, 8), num_neighbours=3),
    ],
    ids=lambda model: f"{type(model).__qualname__} {model.pool}",
)
def test_models(tmp_path: Path, model: Any) -> None:
    task = config(tmp_path, model=model).build()
    seed_everything(0)
    built, batch = task.model(), task.train_batch(torch.arange(4), NONE)
    task.loss(built, batch).backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in built.parameters())
    if not isinstance(model, (ITNet.Config, InfViT.Config)):
        found = config(tmp_path, points=True, model=model).build()
        found.loss(found.model(), found.train_batch(torch.arange(4), NONE)).backward()


def test_config_and_facts_survive_json(tmp_path: Path) -> None:
    task = config(tmp_path, augmentation=CloudAugmentation.Config(scale=(0.5, 2.0), rotation="axis", axis="y"))
    parts = (*PointLearning.parts, PointLearning.Config)
    assert from_json(to_json(task), Task.Config, parts) == task
    facts = task.build().facts
    assert from_json(to_json(facts), PointLearning.Facts, PointLearning.parts) == facts


def test_predictions_of_clouds(tmp_path: Path) -> None:
    write_folder(tmp_path / "clouds", 12)
    task = PointLearning.Config(data=str(tmp_path / "clouds"), model=SMALL).build()
    model, files = Fixed(), [tmp_path / "clouds" / "ball" / "0.xyz", tmp_path / "clouds" / "rod" / "1.xyz"]
    rows = task.config.build(task.facts).predict(model, files, CPU)
    for file, row in zip(files, rows, strict=True):
        predicted = model(PointBatch(torch.from_numpy(read_cloud(file).pos)[None])).softmax(-1)[0]
        assert row == {
            "file": str(file),
            "cloud": "",
            "class": task.target.names[int(predicted.argmax())],
            "probability": pytest.approx(float(predicted.max())),
        }
    np.savez(tmp_path / "two.npz", x=np.ones((2, 3, 3)))
    assert [row["cloud"] for row in task.predict(model, [tmp_path / "two.npz"], CPU)] == ["x[0]", "x[1]"]


def test_predictions_of_points(tmp_path: Path) -> None:
    write_folder(tmp_path / "clouds", 4, folders=("all/{label}",))
    files = sorted((tmp_path / "clouds").rglob("*.xyz"))
    for file in files:
        right = read_cloud(file).pos[:, 0] > 0
        file.with_suffix(".seg").write_text("".join(f"{'right' if each else 'left'}\n" for each in right))
    given = PointLearning.Config(data=str(tmp_path / "clouds"), model=SMALL, num_points=5, num_neighbours=3)
    task, model = given.build(), Fixed(of_points=True)
    rows = task.predict(model, files[:2], CPU)
    pos = [read_cloud(file).pos for file in files[:2]]
    assert len(rows) == sum(map(len, pos))
    predicted = model(PointBatch(torch.from_numpy(np.concatenate(pos))[None])).softmax(-1)[0]
    for row, where, each in zip(rows, np.concatenate(pos).tolist(), predicted, strict=True):
        assert [row["x"], row["y"], row["z"]] == where
        assert row["class"] == ("left", "right")[int(each.argmax())]
        assert row["probability"] == pytest.approx(float(each.max()))
    saved = task.predict(model, files[:2], CPU, outputs=Outputs(save=tmp_path / "out"))
    assert [row["points"] for row in saved] == [len(each) for each in pos]
    found = read_cloud(Path(str(saved[1]["saved"])))
    assert found.point_labels is not None
    assert found.point_labels.tolist() == [row["class"] for row in rows[len(pos[0]) :]]
    with refused(ValueError, f"--save: {saved[0]['saved']} exists; name another file"):
        task.predict(model, files[:1], CPU, outputs=Outputs(save=tmp_path / "out"))


def test_bad_settings(tmp_path: Path) -> None:
    for settings, message in (
        ({"target": "parts"}, "target is 'parts'; expected one of cloud, points"),
        ({"num_centres": 0}, "num_centres must be at least 1; got 0"),
        ({"num_points": 9, "num_centres": 9}, "num_centres is 9, of num_points=9; pass fewer, or leave it out"),
        ({"num_points": 0}, "num_points must be at least 1; got 0"),
        ({"votes": 0}, "votes must be at least 1; got 0"),
        (
            {"align": True, "augmentation": CloudAugmentation.Config(rotation="all")},
            "rotation='all' has no effect with align, which undoes it",
        ),
        ({"label_smoothing": 1.0}, "label_smoothing must be in [0, 1); got 1.0"),
        ({"position_frequencies": 0, "position_sigma": 2.0}, "position_sigma=2.0 has no effect with"),
        ({"num_points": None, "votes": 3}, "votes=3 has no effect with nothing drawn or augmented"),
    ):
        with refused(ValueError, message):
            config(tmp_path, **settings)  # pyright: ignore[reportArgumentType]
    for points, settings, message in (
        (False, {"target": "points"}, "target is 'points', but the points of"),
        (
            False,
            {"model": dataclasses.replace(SMALL, pool="none")},
            "model.pool is 'none'; leave it out, since a cloud",
        ),
        (True, {"num_centres": 3}, "num_centres is 3, but each point is to be classified; leave it out"),
        (
            True,
            {"model": dataclasses.replace(SMALL, pool="mean")},
            "model.pool is 'mean', but each point needs an output",
        ),
    ):
        with refused(ValueError, message):
            config(tmp_path, points=points, **settings).build()  # pyright: ignore[reportArgumentType]
    with refused(ValueError, "no clouds are given; pass a folder of meshes or clouds, or an .npz file"):
        PointLearning.Config().build()
    with refused(ValueError, "the facts are of Task.Facts, not of point clouds"):
        config(tmp_path).build(Task.Facts())


def test_misfits_are_refused(tmp_path: Path) -> None:
    own: dict[str, Any] = {"test_fraction": 0.3, "valid_fraction": 0.3, "split_seed": 1}
    for setting, value in own.items():
        with refused(ValueError, f"{setting}={value} has no effect with", "clouds.npz, which has its own split"):
            config(tmp_path, **{setting: value}).build()
    write_folder(tmp_path / "untested", folders=("train/{label}", "val/{label}"))
    untested = PointLearning.Config(data=str(tmp_path / "untested"), model=SMALL)
    assert (untested.build().num_train, untested.build().num_held_out("valid")) == (8, 8)
    with refused(ValueError, "clouds/untested: valid_fraction is 1.5"):
        write_folder(tmp_path / "clouds" / "untested", folders=("train/{label}",))
        PointLearning.Config(data=str(tmp_path / "clouds" / "untested"), valid_fraction=1.5).build()
    with refused(ValueError, "the data have no test split"):
        untested.build().held_out("test")
    write_folder(tmp_path / "one", folders=("ball",))
    with refused(ValueError, "one has the classes ['ball']; expected at least 2"):
        PointLearning.Config(data=str(tmp_path / "one")).build()
    write_folder(tmp_path / "two")
    task = PointLearning.Config(data=str(tmp_path / "two")).build()
    write_folder(tmp_path / "other", folders=("new {label}",))
    other = PointLearning.Config(data=str(tmp_path / "other"))
    with refused(ValueError, "other are new ball, new rod; the run was made with the classes ball, rod"):
        _ = other.build(task.facts).splits
    with refused(ValueError, "target is 'points'; the run was made with 'cloud'"):
        dataclasses.replace(other, target="points").build(task.facts)


@pytest.mark.slow
@pytest.mark.parametrize("num_centres", [None, 5])
def test_a_graph_holds_for_any_number_of_points_above_the_number_of_neighbours(
    tmp_path: Path, num_centres: int | None
) -> None:
    np.savez(tmp_path / "clouds.npz", x=np.random.default_rng(0).normal(size=(30, 9, 3)), y=np.arange(30) % 2)
    settings = PointLearning.Config(data=str(tmp_path / "clouds.npz"), model=SMALL, num_centres=num_centres)
    task = settings.build(settings.build().facts)
    form = task.tensor_form(task.model().eval().requires_grad_(False))
    sizes = {"batch": 2, "points": form.open_axes["points"].tried[0]}
    limits = Graph.of(form, form.example(sizes), set(sizes)).limits(sizes)
    least, most = limits["points"]
    assert least <= 2 * settings.num_neighbours + 1 < 1024 <= (most or 1024)


@pytest.mark.parametrize("points", [False, True])
@pytest.mark.parametrize("offset", [0.0, 1e7])
def test_a_tensor_form_takes_weights_and_features_as_exactly_as_files(
    tmp_path: Path, points: bool, offset: float
) -> None:
    drawn, file = np.random.default_rng(0), tmp_path / "clouds.npz"
    x, weights = drawn.normal((0, 0, 0, offset), size=(30, 9, 4)), drawn.uniform(0.1, 3, (30, 9))
    labels: dict[str, Any] = {"labels": (x[..., 0] > 0).astype(int)} if points else {"y": np.arange(30) % 2}
    np.savez(file, x=x, weights=weights, **labels)
    settings = PointLearning.Config(data=str(file), model=SMALL, num_neighbours=3, num_points=None)
    task = settings.build(settings.build().facts)
    torch.manual_seed(0)
    model = task.model().eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.add_(0.3 * torch.randn_like(parameter))
    predicted = [list(row.probabilities.values()) for row in task.predict(model, [file], CPU)]
    form = task.tensor_form(model)
    given = torch.from_numpy(x).split([3, 1], -1)
    inputs = given[0], torch.ones(30, 9, dtype=torch.bool), given[1], torch.from_numpy(weights).float()
    assert [slot.name for slot in form.inputs] == ["pos", "exists", "features", "weights"]
    assert [each.dtype for each in form.example({"batch": 2, "points": 5})] == [each.dtype for each in inputs]
    found, expected = form.module()(*inputs).flatten(0, -2), torch.tensor(predicted)
    assert float(expected.std(0).max()) > 1e-3
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_weights_must_be_present_exactly_if_they_were_in_training(tmp_path: Path) -> None:
    built = config(tmp_path).build()
    arrays = {"x": np.zeros((2, 4, 4)), "channels": ["heat"]}
    np.savez(tmp_path / "plain.npz", **arrays)  # pyright: ignore[reportArgumentType]
    np.savez(tmp_path / "weighted.npz", **arrays, weights=np.ones((2, 4)))  # pyright: ignore[reportArgumentType]
    assert built._read(tmp_path / "weighted.npz", None).weights is not None
    with refused(ValueError, "plain.npz: points have no weights; in training they had weights: give them weights"):
        built._read(tmp_path / "plain.npz", None)
    built = PointLearning(built.config, dataclasses.replace(built.facts, is_weighted=False))
    with refused(ValueError, "weighted.npz: points have weights; in training they had no weights: leave the"):
        built._read(tmp_path / "weighted.npz", None)


@pytest.mark.parametrize("points", [False, True])
def test_random_draws_for_a_cloud_do_not_depend_on_its_place_in_the_batch(tmp_path: Path, points: bool) -> None:
    changes = CloudAugmentation.Config(rotation="all", jitter=0.1)
    built = config(tmp_path, points=points, num_points=4, votes=2, augmentation=changes).build()
    model, clouds = Fixed(of_points=points), built.held_out("test")
    together = built.probabilities(model, clouds, CPU)
    for i in range(len(clouds)):
        alone = built.probabilities(model, clouds.select(torch.tensor([i])), CPU)[0]
        torch.testing.assert_close(alone, together[i])
    if not points:
        measured = [
            built._measured(model, built.held_out_batch("test", at)) for at in torch.arange(10).flip(0).split(3)
        ]
        found = torch.cat([each for parts in measured for each, _ in parts]).exp()
        torch.testing.assert_close(found, torch.stack(together[::-1]))
