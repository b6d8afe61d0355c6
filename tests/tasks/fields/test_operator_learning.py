"""Learning operators: batches, losses and roll-outs match their definitions, runs learn, and mistakes raise errors."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from fredholm.domains import Grid, Points
from fredholm.encoders.function import Function, FunctionBatch, interpolate
from fredholm.models import AttentionConfig, ITNet, SpectralConfig
from fredholm.tasks import OperatorLearning
from fredholm.tasks.fields import operator_learning
from fredholm.tasks.fields.answer import Answer
from fredholm.tasks.fields.batches import row_major
from fredholm.tasks.fields.unit_box import seem_to_repeat
from fredholm.tasks.outputs import Outputs
from fredholm.training import Run, TrainingConfig, train
from fredholm.training.scoring import score_split
from tests.refusals import refused

SIZES = {"embed_dim": 12, "depth": 2, "expansion": 1, "dropout": 0.0, "drop_path": 0.0}
SMALL = ITNet.Config(**SIZES, kernel=SpectralConfig(num_waves_per_axis=3))
CPU = torch.device("cpu")


def waves(count: int, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Functions on the unit box, their positions, and the same functions shifted by a quarter of a wave."""
    drawn = np.random.default_rng(0)
    pos = Grid(*shape).pos.numpy()
    phase = drawn.uniform(0, 6, (count, 1, len(shape)))
    values, moved = (np.sin(2 * np.pi * pos + phase + shift).sum(-1) for shift in (0, np.pi / 2))
    return values.reshape(count, *shape), pos, 2 + 3 * moved.reshape(count, *shape)


def write(folder: Path, shape: tuple[int, ...] = (8, 6), **more: Any) -> Path:
    values, _, targets = waves(40, shape)
    arrays = {"values": values, "target_values": targets, "is_test": np.arange(40) >= 30} | more
    np.savez(folder / "waves.npz", **{name: array for name, array in arrays.items() if array is not None})
    return folder / "waves.npz"


def trajectories(folder: Path, steps: int = 3) -> Path:
    """Waves on a circle that move by a sixteenth of it per step."""
    pos, phase = Grid(16).pos.numpy()[:, 0], np.random.default_rng(0).uniform(0, 6, (40, 1, 1))
    moved = pos - np.arange(steps + 1)[:, None] / 16
    np.savez(folder / "moving.npz", trajectories=np.sin(2 * np.pi * moved + phase), is_test=np.arange(40) >= 30)
    return folder / "moving.npz"


def config(data: Path, **settings: Any) -> OperatorLearning.Config:
    return OperatorLearning.Config(**{"data": str(data), "position_frequencies": 2, "model": SMALL, **settings})


def scored(task: OperatorLearning, model: torch.nn.Module) -> dict[str, float]:
    return score_split(task, "valid", model, batch_size=4, device=CPU, dtype=torch.float32)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a briefly trained run."""
    folder = tmp_path_factory.mktemp("operator")
    training = TrainingConfig(epochs=40, batch_size=9, learning_rate=1e-2, evaluate_every=40, device="cpu")
    task = config(write(folder))
    train(Run.Config(task=task, training=dataclasses.replace(training, tensorboard=False)), folder / "run")
    return folder / "run"


def changed(run: Path, **settings: Any) -> OperatorLearning:
    """The run's task with changed settings."""
    task = Run(run, device="cpu").task
    assert isinstance(task, OperatorLearning)
    return dataclasses.replace(task.config, **settings).build(task.facts)


def test_a_small_run_learns_and_the_operator_transfers_to_a_finer_grid(run: Path, tmp_path: Path) -> None:
    model = Run(run, device="cpu").model()
    learned = scored(changed(run), model)["relative_l2"]
    assert learned < 0.05
    finer = scored(changed(run, data=str(write(tmp_path, (16, 12)))), model)["relative_l2"]
    assert finer < 1.5 * learned + 0.01
    # the same samples as inputs, and outputs on the finer grid
    coarse, fine = waves(40, (8, 6)), waves(40, (16, 12))
    values, pos = coarse[0].reshape(40, -1), coarse[1]
    given: dict[str, Any] = {
        "values": values,
        "pos": pos,
        "target_pos": fine[1],
        "target_values": fine[2].reshape(40, -1),
    }
    between = scored(changed(run, data=str(write(tmp_path, (8, 6), **given))), model)["relative_l2"]
    assert between < 0.3


def test_batches_are_standardised_and_drawn_as_configured(tmp_path: Path) -> None:
    task = config(write(tmp_path), shown=0.5, target_samples=10, fill_in=False).build()
    batch = task.train_batch(torch.arange(27), torch.Generator().manual_seed(0))
    assert batch["pos"].shape == (27, 24, 2)
    assert batch["target_values"].shape == (27, 10, 1)
    again = task.train_batch(torch.arange(27), torch.Generator().manual_seed(0))
    assert all(torch.equal(batch[name], again[name]) for name in batch)
    whole = config(write(tmp_path)).build().train_batch(torch.arange(27), torch.Generator())
    assert abs(float(whole["target_values"].mean())) < 1e-5
    assert float(whole["target_values"].std()) == pytest.approx(1, abs=0.01)
    some = [
        task.held_out_batch("valid", torch.tensor([1, 2]))["pos"],
        task.held_out_batch("valid", torch.tensor([2]))["pos"],
    ]
    assert torch.equal(some[0][1], some[1][0])
    least = config(write(tmp_path), min_shown=0.25, fill_in=False).build()
    counts = {least.train_batch(torch.arange(3), torch.Generator().manual_seed(i))["pos"].shape[1] for i in range(9)}
    assert min(counts) >= 12
    assert len(counts) > 3


def test_samples_off_the_grid_are_interpolated_onto_the_training_grid(tmp_path: Path) -> None:
    path = write(tmp_path)
    half, unfilled = (config(path, shown=0.5, fill_in=on).build() for on in (True, False))
    assert half.facts.grid is not None
    assert (half.facts.grid.shape, half.facts.grid.origin) == ((8, 6), (1 / 16, 1 / 12))
    for found, shown in (
        [task.held_out_batch("valid", torch.arange(3)) for task in (half, unfilled)],
        [task.train_batch(torch.arange(5), torch.Generator().manual_seed(0)) for task in (half, unfilled)],
    ):
        given = FunctionBatch(shown["values"], Points(shown["pos"]))
        torch.testing.assert_close(found["values"], interpolate(given, Grid(8, 6)))
        torch.testing.assert_close(found["pos"], Grid(8, 6).pos.expand(len(found["pos"]), -1, -1))
        assert shown["pos"].shape[1] == 24
    # samples keep their values, and a grid of its own is no business of the training split's
    whole = config(path).build().held_out_batch("valid", torch.arange(1))["values"]
    found = half.held_out_batch("valid", torch.arange(1))["values"]
    assert ((found - whole).abs() < 1e-6).sum() >= 24
    values, _, targets = waves(20, (5, 7))
    np.savez(tmp_path / "finer.npz", values=values, target_values=targets)
    finer = config(tmp_path / "finer.npz").build(half.facts)
    assert finer.held_out_batch("valid", torch.arange(1))["pos"].shape[1] == 35


def test_functions_with_points_of_their_own_get_a_grid_and_shared_points_get_none(tmp_path: Path) -> None:
    def mesh(name: str, *, shared: bool) -> OperatorLearning.Config:
        lines = [
            f"{f},{10 * x:.3f},{5 + y:.3f},{x},1"
            for f in range(12)
            for x, y in np.random.default_rng(0 if shared else f).random((30, 2))
        ]
        (tmp_path / name).write_text("\n".join(["field,x,y,force,bend", *lines]))
        return config(tmp_path / name, targets=("bend",))

    alike = mesh("alike.csv", shared=True)
    assert alike.build().facts.grid is None
    with refused(ValueError, "fill_in", "functions that share places which are no grid"):
        dataclasses.replace(alike, fill_in=False).build()
    apart = mesh("apart.csv", shared=False).build()
    grid = apart.facts.grid
    assert grid is not None
    assert grid.shape == (24, 2)  # ten times as long as high, with about 2 * 30 points
    for axis, longest in enumerate((1.0, 0.1)):
        first, last = grid.origin[axis], grid.origin[axis] + (grid.shape[axis] - 1) * grid.spacing[axis]
        assert 0 <= first <= last <= longest
        assert last - first > 0.45 * longest
    assert apart.held_out_batch("valid", torch.arange(1))["pos"].shape == (1, 48, 2)
    model = apart.model()
    assert torch.isfinite(apart.loss(model, apart.train_batch(torch.arange(4), torch.Generator())))


def test_the_validation_split_is_taken_from_training(tmp_path: Path) -> None:
    path = write(tmp_path)
    task = config(path).build()
    assert (task.num_train, task.num_held_out("valid"), task.num_held_out("test")) == (27, 3, 10)
    with np.load(path) as arrays:
        own = torch.from_numpy(arrays["target_values"][30:]).float().flatten(1)
    found = task.held_out_batch("test", torch.arange(10))["target_values"][..., 0]
    mean, deviation = task.facts.target_mean[0], task.facts.target_deviation[0]
    torch.testing.assert_close(found * deviation + mean, own)


def test_errors_are_relative_in_the_unit_of_the_data(tmp_path: Path) -> None:
    task = config(write(tmp_path), loss="h1").build()
    batch = task.held_out_batch("valid", torch.arange(3))
    answers = batch["target_values"] + 0.1 * torch.randn_like(batch["target_values"])
    mean, deviation = task.facts.target_mean[0], task.facts.target_deviation[0]
    truth, predicted = (part * deviation + mean for part in (batch["target_values"], answers))
    expected = (predicted - truth).flatten(1).norm(dim=1) / truth.flatten(1).norm(dim=1)
    torch.testing.assert_close(task._errors(answers, batch, "l2"), expected)
    slopes = []
    for values in (predicted - truth, truth):
        image = values.double().reshape(3, 8, 6)
        along = torch.gradient(image, spacing=1 / 8, dim=1) + torch.gradient(image, spacing=1 / 6, dim=2)
        slopes.append(image.square().sum((1, 2)) + sum(part.square().sum((1, 2)) for part in along))
    torch.testing.assert_close(task._errors(answers, batch, "h1"), (slopes[0] / slopes[1]).sqrt().float())


class Shift(torch.nn.Module):
    """Predicts the same change everywhere."""

    def forward(self, inputs: Any, at: Any = None) -> Tensor:
        return 0.5 * inputs.values if at is None else torch.full((len(inputs.values), at.num_points, 1), 7.0)


def test_a_trajectory_is_rolled_out_from_its_first_state(tmp_path: Path) -> None:
    task = config(trajectories(tmp_path)).build()
    assert task.facts.num_steps == 3
    batch = task.held_out_batch("test", torch.arange(2))
    predicted = task.preparation.answers(Shift(), batch)
    torch.testing.assert_close(predicted, batch["values"] * torch.tensor([1.5, 1.5**2, 1.5**3]))
    with np.load(tmp_path / "moving.npz") as arrays:
        own = torch.from_numpy(arrays["trajectories"][30:32, 1:]).float().mT
    deviation, mean = task.facts.target_deviation[0], task.facts.target_mean[0]
    torch.testing.assert_close(batch["target_values"] * deviation + mean, own)


def test_training_starts_at_any_time_step_and_unrolls(tmp_path: Path) -> None:
    task = config(trajectories(tmp_path, steps=5), unroll=2).build()
    batch = task.train_batch(torch.arange(27), torch.Generator().manual_seed(0))
    assert batch["target_values"].shape == (27, 16, 2)
    # each step moves a wave by one point of the circle
    torch.testing.assert_close(batch["target_values"][..., 0], batch["values"][..., 0].roll(1, 1), rtol=0, atol=1e-4)
    torch.testing.assert_close(batch["target_values"][..., 1], batch["values"][..., 0].roll(2, 1), rtol=0, atol=1e-4)
    assert torch.isfinite(task.loss(task.model(), batch))


def test_symmetries_move_inputs_and_targets_alike(tmp_path: Path) -> None:
    task = config(write(tmp_path, (8, 8)), symmetries=("mirror", "exchange")).build()
    plain = config(write(tmp_path, (8, 8))).build().train_batch(torch.arange(4), torch.Generator())
    image = plain["values"].reshape(4, 8, 8)
    seen = set()
    for seed in range(40):
        batch = task.train_batch(torch.arange(4), torch.Generator().manual_seed(seed))
        torch.testing.assert_close(batch["pos"], plain["pos"])  # cell centres go to cell centres, in order
        turned = batch["values"].reshape(4, 8, 8)
        for name, flip in {"": [], "down": [1], "across": [2], "both": [1, 2]}.items():
            for exchanged in (False, True):
                other = image.flip(flip).mT if exchanged else image.flip(flip)
                if torch.equal(turned, other):
                    seen.add((name, exchanged))
                    targets = plain["target_values"].reshape(4, 8, 8).flip(flip)
                    targets = targets.mT if exchanged else targets
                    assert torch.equal(batch["target_values"].reshape(4, 8, 8), targets)
    assert len(seen) == 8
    pos = torch.tensor([[[1.0, 0.0], [0.0, 2.0], [0.0, 1.0], [1.0, -1.0]]])
    assert row_major(pos).tolist() == [[2, 1, 3, 0]]


def test_positions_outside_the_unit_box_are_scaled_into_it(tmp_path: Path) -> None:
    values, pos, targets = waves(40, (8, 6))
    flat = {"values": values.reshape(40, -1), "target_values": targets.reshape(40, -1)}
    path = write(tmp_path, (8, 6), **flat, pos=10 * pos - 3, target_pos=10 * pos - 3)
    task = config(path).build()
    assert task.facts.extent == pytest.approx(10 * float(np.ptp(pos, 0).max()))
    batch = task.held_out_batch("valid", torch.arange(2))
    assert float(batch["pos"].min()) == 0
    assert float(batch["pos"].max()) == pytest.approx(1)
    with refused(ValueError, "is_periodic is True, and coordinates run from", "0 to 1"):
        config(path, is_periodic=True).build()


@pytest.mark.parametrize(("side", "is_moved"), [(0.01, True), (0.49, True), (0.51, False)])
def test_positions_in_a_small_part_of_the_unit_box_are_scaled_to_fill_it(
    side: float, is_moved: bool, tmp_path: Path
) -> None:
    pos = 0.3 + side * np.linspace(0, 1, 6)[:, None]
    values = np.random.default_rng(0).normal(size=(40, 6))
    path = write(tmp_path, values=values, target_values=values, pos=pos, target_pos=pos)
    found = config(path).build().held_out_batch("valid", torch.arange(2))["pos"][0].numpy()
    np.testing.assert_allclose(found, (pos - 0.3) / side if is_moved else pos, atol=1e-9)


def test_values_that_overflow_fail_only_their_own_file(run: Path, tmp_path: Path) -> None:
    values = waves(2, (8, 6))[0]
    for name, factor in (("good", 1.0), ("large", 1e38)):
        np.savez(tmp_path / f"{name}.npz", values=factor * values)
    files, failed, done = sorted(tmp_path.glob("*.npz")), dict[str, str](), Run(run, device="cpu")
    assert isinstance(done.task, OperatorLearning)
    task = done.task.config.build(dataclasses.replace(done.task.facts, deviation=(0.01,)))
    rows = task.predict(done.model(), files, CPU, failed=lambda path, error: failed.update({path.name: str(error)}))
    assert {Path(str(row["file"])).name for row in rows} == {"good.npz"}
    assert "the answer for it overflows" in failed["large.npz"]


@pytest.mark.slow
def test_predictions_are_written_to_files_and_pictures(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator_learning, "DRAWN", 2)
    values, _, targets = waves(2, (8, 6))
    np.savez(tmp_path / "two.npz", values=values, target_values=targets)
    np.savez(tmp_path / "given.npz", values=values)
    done = Run(run, device="cpu")
    rows = done.predict([tmp_path / "two.npz"])
    assert len(rows) == 2 * 48
    assert list(rows[0]) == ["file", "field", "x", "y", "value"]
    assert [row["value"] for row in rows] == pytest.approx(targets.reshape(-1).tolist(), abs=0.5)

    def predict(file: str, outputs: Outputs | None = None, **settings: Any) -> Sequence[Mapping[str, str | float]]:
        return changed(run, **settings).predict(done.model(), [tmp_path / file], CPU, outputs=outputs)

    on_grid = predict("given.npz", answer=Answer(grid=(5, 4)))
    assert len(on_grid) == 2 * 20
    np.savez(tmp_path / "places.npz", pos=np.array([[0.25, 0.5], [0.75, 0.5], [0.5, 0.5]]))
    at_places = done.predict([tmp_path / "two.npz"], at=tmp_path / "places.npz")
    assert [(row["x"], row["y"]) for row in at_places] == 2 * [(0.25, 0.5), (0.75, 0.5), (0.5, 0.5)]
    picture, save = tmp_path / "c.png", tmp_path / "a.npz"
    found = predict("two.npz", Outputs(comparison=picture, save=save))
    assert [list(row) for row in found] == 2 * [["file", "field", "saved", "least value", "largest value"]]
    assert picture.stat().st_size > 10_000
    with np.load(save) as arrays:
        assert arrays["values"].shape == (96, 1)
        assert "is_far" not in arrays
    with refused(ValueError, "--comparison", "exists"):
        predict("two.npz", Outputs(comparison=picture))
    with refused(ValueError, "--picture and --comparison name one file"):
        predict("two.npz", Outputs(picture=tmp_path / "e", comparison=tmp_path / "e.png"), answer=Answer(grid=(3, 3)))
    heights = []
    for count in (2, 3):
        arrays = waves(count, (8, 6))
        np.savez(tmp_path / f"{count}.npz", values=arrays[0], target_values=arrays[2])
        predict(f"{count}.npz", Outputs(comparison=tmp_path / f"{count}.png"))
        with Image.open(tmp_path / f"{count}.png") as drawn:
            heights.append(drawn.height)
    assert heights[0] == heights[1]  # the third is not drawn
    with refused(ValueError, "comes without value", "leave --comparison out"):
        predict("given.npz", Outputs(comparison=tmp_path / "d.png"))


def test_tables_hold_both_functions_or_come_in_pairs_of_files(tmp_path: Path) -> None:
    drawn = np.random.default_rng(0)
    lines = [
        f"{f},{x:.2f},{y:.3f},{2 * y:.3f}"
        for f in range(12)
        for x, y in zip(np.arange(5) / 5, drawn.normal(size=5), strict=True)
    ]
    (tmp_path / "both.csv").write_text("\n".join(["field,x,force,bend", *lines]))
    task = config(tmp_path / "both.csv", targets=("bend",)).build()
    assert (task.facts.channels, task.facts.target_channels) == (("force",), ("bend",))
    folder = tmp_path / "apart"
    folder.mkdir()
    (folder / "given.csv").write_text("\n".join(["field,x,force", *(line.rpartition(",")[0] for line in lines)]))
    elsewhere = [f"{f},{x:.2f},1" for f in reversed(range(12)) for x in (0.3, 0.7)]
    (folder / "target.csv").write_text("\n".join(["field,x,bend", *elsewhere]))
    apart = config(folder).build()
    assert apart.held_out_batch("valid", torch.arange(2))["target_pos"].shape == (2, 2, 1)
    model = apart.model()
    assert torch.isfinite(apart.loss(model, apart.train_batch(torch.arange(4), torch.Generator())))
    message = apart.predict(model, [folder], torch.device("cpu"))
    assert [row["x"] for row in message] == 12 * [0.3, 0.7]
    for arrays, message in (
        ({"targets": ()}, "has no target functions"),
        ({"targets": ("bent",)}, "no column 'bent' with values; the columns are force, bend"),
        ({"targets": ("force", "bend")}, "all columns with values are targets"),
        ({"targets": ("bend",), "problem": "burgers"}, "problem"),
    ):
        with refused(ValueError, message):
            config(tmp_path / "both.csv", **arrays).build()
    (folder / "target.csv").write_text("field,x,bend\n0,0.5,1\n")
    with refused(ValueError, "has no field 1, which the other file has"):
        config(folder).build()
    (folder / "target.csv").unlink()
    with refused(ValueError, "has no target.csv"):
        config(folder).build()


def test_positions_are_model_inputs_unless_functions_are_periodic(tmp_path: Path) -> None:
    path = write(tmp_path)
    for settings, expected in (({}, 1 + 2 * 16), ({"is_periodic": True}, 1)):
        model = config(path, position_frequencies=None, **settings).build().model()
        assert isinstance(model, ITNet)
        assert isinstance(model.encoder, Function)
        assert model.encoder.lift.in_features == expected


def test_a_single_function_has_no_deviation_between_functions(tmp_path: Path) -> None:
    task = config(write(tmp_path, (16, 12))).build()
    one, box = task.splits.train.select(torch.tensor([0])), task.preparation.box
    assert seem_to_repeat(task.splits.train, box)
    assert seem_to_repeat(one, box)  # and no warning about the deviation of one number


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss": "l1"}, "loss is 'l1'; expected one of l2, h1"),
        ({"symmetries": ("shift",)}, "symmetries has 'shift'"),
        ({"shown": 0.0}, "shown is 0.0; expected a share"),
        ({"shown": 0.5, "min_shown": 0.5}, "min_shown is 0.5 and shown 0.5"),
        ({"target_samples": 0}, "target_samples"),
        ({"target_samples": 4, "loss": "h1"}, "target_samples draws scattered samples"),
        ({"position_frequencies": 0, "position_sigma": 2.0}, "position_frequencies=0"),
        ({"is_periodic": True, "position_sigma": 2.0}, "is_periodic=True"),
        ({"model": dataclasses.replace(SMALL, pool="mean")}, "model.pool is 'mean'"),
        ({"unroll": 0}, "unroll"),
    ],
)
def test_settings_without_effect_are_refused(settings: dict[str, Any], message: str) -> None:
    with refused(ValueError, message):
        config(Path("waves.npz"), **settings)


def test_data_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path)
    with refused(ValueError, "no functions are given"):
        OperatorLearning.Config().build()
    with refused(ValueError, "unroll"):
        config(path, unroll=2).build()
    with refused(ValueError, "unroll is 4; the trajectories have 3 steps"):
        config(trajectories(tmp_path), unroll=4).build()
    with refused(ValueError, "a trajectory goes on from all of them"):
        config(trajectories(tmp_path), target_samples=3).build()
    with refused(ValueError, "has no target functions"):
        config(write(tmp_path, target_values=None)).build()
    twice = np.array([[0.0, 0.0], [1.0, 0.5], [0.0, 0.0]])
    drawn = np.random.default_rng(0).normal(size=(40, 3))
    doubled = write(tmp_path, values=drawn, target_values=drawn, pos=twice, target_pos=twice[:3])
    with refused(ValueError, "samples 1 and 3 lie at one place"):
        config(doubled).build()
    run = config(write(tmp_path)).build()
    with refused(ValueError, "channels", "the run was made with"):
        _ = config(write(tmp_path, channels=["height"], values=waves(40, (8, 6))[0][..., None])).build(run.facts).splits


def test_attention_predicts_at_scattered_points_too(tmp_path: Path) -> None:
    values, pos, _ = waves(40, (8, 6))
    elsewhere = np.random.default_rng(1).uniform(size=(40, 7, 2))
    path = write(tmp_path, values=values.reshape(40, -1), pos=pos, target_pos=elsewhere, target_values=np.ones((40, 7)))
    task = config(path, model=dataclasses.replace(SMALL, kernel=AttentionConfig())).build()
    model = task.model()
    assert torch.isfinite(task.loss(model, task.train_batch(torch.arange(5), torch.Generator())))
    assert scored(task, model)["relative_l2"] > 0
