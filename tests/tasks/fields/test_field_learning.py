"""Learning fields: batches follow the config, a small run learns, refines and predicts, and mistakes raise errors."""

import dataclasses
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fredholm import fields
from fredholm.models.fields.neural_field import FieldOperator
from fredholm.tasks import FieldLearning
from fredholm.tasks.fields.answer import Answer
from fredholm.tasks.fields.field_learning import FrameName
from fredholm.tasks.outputs import Outputs
from fredholm.training import Run, TrainingConfig, seed_everything, train
from fredholm.training.scoring import score_split
from tests.refusals import refused

SMALL = FieldOperator.Config(embed_dim=16, depth=1, num_heads=2, num_seeds=2, head_dim=16, num_frequencies=8)
CPU = torch.device("cpu")


def write(folder: Path, *, points: int = 12, of_slopes: bool = False) -> Path:
    """40 waves on a line, each at points of its own, 10 of them for testing; or their slopes, at other points."""
    drawn = np.random.default_rng(0)
    pos, phase = np.sort(drawn.uniform(0, 2, (40, points, 1)), 1), drawn.uniform(0, 6, (40, 1, 1))
    arrays: dict[str, Any] = {"pos": pos, "values": 5 + 3 * np.sin(2 * pos + phase), "is_test": np.arange(40) >= 30}
    if of_slopes:
        elsewhere = drawn.uniform(0, 2, (40, 5, 1))
        arrays |= {"target_pos": elsewhere, "target_values": 6 * np.cos(2 * elsewhere + phase)}
    np.savez(folder / "waves.npz", **arrays, channels=["height"])
    return folder / "waves.npz"


def config(folder: Path, **settings: Any) -> FieldLearning.Config:
    data = str(write(folder, of_slopes=settings.pop("of_slopes", False)))
    return FieldLearning.Config(
        **{"data": data, "valid_fraction": 0.0, "width": 8, "omega_0": 4.0, "model": SMALL, **settings}
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a briefly trained run."""
    folder = tmp_path_factory.mktemp("field")
    training = TrainingConfig(
        epochs=40, batch_size=10, learning_rate=4e-3, evaluate_every=40, device="cpu", tensorboard=False
    )
    train(Run.Config(task=config(folder, shown=9), training=training), folder / "run")
    return folder / "run"


def scored(task: FieldLearning, model: torch.nn.Module) -> dict[str, float]:
    return score_split(task, "test", model, batch_size=4, device=CPU, dtype=torch.float32)


def test_batches_are_standardised_and_drawn_as_configured(tmp_path: Path) -> None:
    task = config(tmp_path, shown=7, target_samples=4).build()
    batch = task.train_batch(torch.arange(30), torch.Generator().manual_seed(0))
    assert batch["pos"].shape == (30, 7, 1)
    assert batch["target_values"].shape == (30, 4, 1)
    everything = config(tmp_path).build().train_batch(torch.arange(30), torch.Generator())
    assert everything["values"].mean().abs() < 1e-5
    assert everything["values"].std() == pytest.approx(1, abs=2e-3)
    again = task.train_batch(torch.arange(30), torch.Generator().manual_seed(1))
    assert not torch.equal(again["pos"], batch["pos"])
    for tensor in (batch["pos"], again["target_pos"]):
        assert bool((tensor[:, :, None] == everything["pos"][:, None]).any(2).all())


def test_samples_shown_of_a_test_function_depend_on_that_function_alone(tmp_path: Path) -> None:
    task = config(tmp_path, shown=7).build()
    together, alone = task.held_out_batch("test", torch.arange(5)), task.held_out_batch("test", torch.tensor([3]))
    assert torch.equal(together["pos"][3:4], alone["pos"])
    assert together["target_pos"].shape[1] == 12
    other = config(tmp_path, shown=7, shown_seed=1)
    assert not torch.equal(other.build().held_out_batch("test", torch.tensor([3]))["pos"], alone["pos"])
    with refused(ValueError, "split_seed=1 has no effect", "which has its own split"):
        config(tmp_path, split_seed=1).build()


def test_the_loss_is_the_mean_square_at_samples_that_exist(tmp_path: Path) -> None:
    task = config(tmp_path).build()
    seed_everything(0)
    model = task.model()
    batch = task.train_batch(torch.arange(4), torch.Generator())
    batch["target_mask"][1, 5:] = False
    placed = model(batch["values"], fields_domain(batch))
    squares = (placed(batch["target_pos"]) - batch["target_values"]).square()[..., 0]
    expected = sum(own[kept].mean() for own, kept in zip(squares, batch["target_mask"], strict=True))
    torch.testing.assert_close(task.loss(model, batch), expected)


def fields_domain(batch: dict[str, Any]) -> Any:
    from fredholm.domains import Points

    return Points(batch["pos"], mask=batch["mask"])


def test_relative_errors_are_in_the_unit_of_the_data(tmp_path: Path) -> None:
    task = config(tmp_path).build()
    seed_everything(0)
    model = task.model()
    given = task.held_out("test").given
    mean, deviation = (torch.tensor(part) for part in (task.facts.mean, task.facts.deviation))
    values = model((given.values - mean) / deviation, fields_domain({"pos": given.pos, "mask": None}))(given.pos)
    error = (values * deviation + mean - given.values).flatten(1).norm(dim=1) / given.values.flatten(1).norm(dim=1)
    assert scored(task, model)["relative_error"] == pytest.approx(error.mean().item(), rel=1e-4)


def test_relative_errors_do_not_change_in_a_unit_whose_squares_underflow_float32(tmp_path: Path) -> None:
    found = []
    for unit in (1.0, 1e25):
        settings = config(tmp_path)
        with np.load(settings.data) as arrays:
            np.savez(tmp_path / "other.npz", **{**arrays, "values": unit * arrays["values"]})
        task = dataclasses.replace(settings, data=str(tmp_path / "other.npz")).build()
        seed_everything(0)
        found.append(scored(task, task.model())["relative_error"])
    assert found[1] == pytest.approx(found[0], rel=1e-3)


def test_functions_of_zeros_are_measured_relative_to_the_deviation(tmp_path: Path) -> None:
    settings = config(tmp_path)
    with np.load(settings.data) as arrays:
        values = np.where(arrays["is_test"][:, None, None], 0.0, arrays["values"])
        np.savez(tmp_path / "zeros.npz", **{**arrays, "values": values})
    task = dataclasses.replace(settings, data=str(tmp_path / "zeros.npz")).build()
    seed_everything(0)
    model, pos, zero = task.model(), task.held_out("test").given.pos, -task.facts.mean[0] / task.facts.deviation[0]
    values = torch.full(pos.shape, zero)
    found = model(values, fields_domain({"pos": pos, "mask": None}))(pos)
    error = (found - zero).square().mean((1, 2)).sqrt()
    assert scored(task, model)["relative_error"] == pytest.approx(error.mean().item(), rel=1e-4)


FRAMES = {
    "identity": fields.Identity(),
    "isotropic": fields.Isotropic(),
    "diagonal": fields.Diagonal(),
    "affine": fields.Affine(proper=True),
    "rotational": fields.Rotational(proper=True),
    "periodic": fields.Periodic(),
}


@pytest.mark.parametrize("name", FRAMES)
def test_frames_have_their_names(name: FrameName) -> None:
    has_axes = name in ("affine", "rotational")
    settings = FieldLearning.Config(frame=name, proper=has_axes)
    assert settings.build_frame() == FRAMES[name]
    if has_axes:
        averaged = dataclasses.replace(FRAMES[name], proper=False, average=True)
        assert FieldLearning.Config(frame=name, average=True).build_frame() == averaged


def test_fields_have_their_names_and_sizes() -> None:
    siren = FieldLearning.Config(width=7, depth=4, omega_0=3.0).build_field(2, 1)
    assert isinstance(siren, fields.SIREN)
    assert ([tuple(shape) for shape in siren.shapes], siren.omega_0) == ([(7, 2), (7, 7), (7, 7), (1, 7)], 3.0)
    given = FieldLearning.Config(field="sinusoidal", width=400, omega_0=5.0).build_field(2, 1)
    assert isinstance(given, fields.SinusoidalField)
    assert given.frequencies.shape == (400, 2)
    assert given.frequencies.std().item() == pytest.approx(5.0, rel=0.1)
    free = FieldLearning.Config(field="free_sinusoidal", width=7, omega_0=3.0).build_field(2, 1)
    assert isinstance(free, fields.FreeSinusoidalField)
    assert (free.num_terms, free.sigma) == (7, 3.0)


@pytest.mark.parametrize("settings", [{"frame": "periodic"}, {"field": "free_sinusoidal"}, {"of_slopes": True}])
def test_every_kind_takes_a_step(tmp_path: Path, settings: dict[str, Any]) -> None:
    task = config(tmp_path, **settings).build()
    model = task.model()
    task.loss(model, task.train_batch(torch.arange(3), torch.Generator())).backward()
    gradients = [p.grad for p in model.parameters()]
    assert all(g is not None and bool(g.isfinite().all()) for g in gradients)


def test_frame_weights_may_follow_the_size_of_the_samples(tmp_path: Path) -> None:
    task = config(tmp_path, weigh_frame=True).build()
    model = task.model()
    assert isinstance(model, FieldOperator)
    batch = task.held_out_batch("test", torch.arange(2))
    task.loss(model, batch)
    size = task.held_out("test").given.values[:2].norm(dim=-1)
    torch.testing.assert_close(batch["frame_weights"], size)


def test_a_run_learns_and_refining_reduces_the_errors_of_its_fields(run: Path) -> None:
    done = Run(run, device="cpu")
    assert isinstance(done.task, FieldLearning)
    model, task = done.model(), done.task
    learned = scored(task, model)
    seed_everything(0)
    untrained = scored(task, task.model())
    refined = dataclasses.replace(task.config, refine_steps=60, refine_rate=0.05).build(task.facts)
    assert isinstance(refined, FieldLearning)
    assert learned["loss"] < 0.6 * untrained["loss"]
    assert scored(refined, model)["loss"] < 0.5 * learned["loss"]


def test_values_that_overflow_fail_only_their_own_file(run: Path, tmp_path: Path) -> None:
    for name, factor in (("good", 1.0), ("large", 1e30), ("largest", 4e37)):
        lines = [f"{x},{factor * height}" for x, height in ((0.1, 5), (1.0, 7), (1.9, -3))]
        (tmp_path / f"{name}.csv").write_text("\n".join(["x,height", *lines]))
    files, failed, done = sorted(tmp_path.glob("*.csv")), dict[str, str](), Run(run, device="cpu")
    assert isinstance(done.task, FieldLearning)
    facts = dataclasses.replace(done.task.facts, deviation=(0.1,))
    task = done.task.config.build(facts)
    rows = task.predict(done.model(), files, CPU, failed=lambda path, error: failed.update({path.name: str(error)}))
    assert {Path(str(row["file"])).name for row in rows} == {"good.csv"}
    assert failed["large.csv"].startswith("large.csv: the answer for it overflows")
    assert failed["largest.csv"].startswith("largest.csv: a value is too far from those of training")


def test_predictions_are_values_at_the_requested_places(run: Path, tmp_path: Path) -> None:
    table = tmp_path / "new.csv"
    table.write_text("field,x,height\na,0.1,5\na,1.0,7\na,1.9,3\nb,0.2,4\nb,1.4,6\n")
    (tmp_path / "at.csv").write_text("x\n0.5\n40\n")
    done = Run(run, device="cpu")
    assert isinstance(done.task, FieldLearning)
    rows = done.predict([table])
    assert [(row["field"], row["x"]) for row in rows] == [("a", 0.1), ("a", 1.0), ("a", 1.9), ("b", 0.2), ("b", 1.4)]
    assert list(rows[0]) == ["file", "field", "x", "height", "far"]
    pos, given = torch.tensor([[[0.1], [1.0], [1.9]]], dtype=torch.float64), torch.tensor([[[5.0], [7.0], [3.0]]])
    mean, deviation = done.task.facts.mean[0], done.task.facts.deviation[0]
    placed = done.model()((given - mean) / deviation, fields_domain({"pos": pos, "mask": None}))
    found = [float(row["height"]) for row in rows[:3]]
    assert found == pytest.approx((placed(pos) * deviation + mean).flatten().tolist(), rel=1e-4)

    own = done.task

    def predict(outputs: Outputs | None = None, **answer: Any) -> Sequence[Mapping[str, str | float]]:
        task = dataclasses.replace(own.config, answer=Answer(**answer)).build(own.facts)
        return task.predict(done.model(), [table], CPU, outputs=outputs)

    at_places = done.predict([table], at=tmp_path / "at.csv")
    assert [(row["x"], row["far"]) for row in at_places] == 2 * [(0.5, ""), (40.0, "far")]
    on_grid = predict(grid=(5,))
    assert [row["x"] for row in on_grid[:5]] == pytest.approx([0.1, 0.55, 1.0, 1.45, 1.9])
    assert on_grid[2]["height"] == pytest.approx(rows[1]["height"], abs=1e-5)
    found = predict(Outputs(save=tmp_path / "out"), grid=(5,))
    assert [row["field"] for row in found] == ["a", "b"]
    assert found[0]["largest height"] == pytest.approx(max(float(row["height"]) for row in on_grid[:5]), abs=1e-6)
    assert found[0]["saved"] == str(tmp_path / "out.npz")
    for name in ("out.npz", "out"):  # the ending is checked first
        with refused(ValueError, "out.npz exists; name another file"):
            predict(Outputs(save=tmp_path / name), grid=(5,))
    for grid in (None, (5, 5, 5)):
        with refused(ValueError, "--picture needs answer.grid with one or two coordinates"):
            predict(Outputs(picture=tmp_path / "p.png"), grid=grid)
    with np.load(tmp_path / "out.npz") as opened:
        saved = dict(opened)
    assert saved["offsets"].tolist() == [0, 5, 10]
    assert saved["values"][:, 0] == pytest.approx([row["height"] for row in on_grid])


@pytest.mark.slow
def test_pictures_have_one_panel_per_field() -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.image import imread

    from fredholm.tasks.fields.answer import Evaluated, draw

    plane = torch.cartesian_prod(torch.arange(3.0), torch.arange(4.0))
    values = (plane[:, 0] == 2).double() * (plane[:, 1] == 0)  # a bright spot at (2, 0)
    found = [Evaluated("one", plane, values[:, None], values > 1)]
    spots = {}
    for coordinates in (("x", "y"), ("y", "x")):
        pixels = imread(io.BytesIO(draw(found, (3, 4), coordinates, "u")))[..., :3]
        bright = (pixels[..., 0] > 0.9) & (pixels[..., 1] > 0.85) & (pixels[..., 2] < 0.3)
        rows, columns = bright[:, : int(0.8 * bright.shape[1])].nonzero()
        spots[coordinates[0]] = (rows.mean() / bright.shape[0], columns.mean() / bright.shape[1])
    assert spots["x"][0] > 0.5  # y = 0 is at the bottom, x = 2 at the right
    assert spots["x"][1] > 0.45
    assert spots["y"][0] > 0.5  # y = 2 is the last row, x = 0 at the left
    assert spots["y"][1] < 0.3
    line = torch.arange(5.0)[:, None]
    named = [Evaluated("costs $1_000 or $2", line, line, line[:, 0] > 9)] * 5  # is no formula
    for kind, start in ((".png", b"\x89PNG"), (".pdf", b"%PDF"), (".svg", b"<?xml")):
        assert draw(named, (5,), ("x",), "u", kind=kind).startswith(start)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"frame": "round"}, "frame is 'round'; expected one of identity"),
        ({"field": "mlp"}, "field is 'mlp'; expected one of siren"),
        ({"shown": 0}, "shown is 0; expected at least one sample"),
        ({"shown": 5, "shown_seed": -1}, "shown_seed is -1; expected an integer from 0"),
        ({"refine_steps": -1}, "refine_steps is -1"),
        ({"proper": True}, "proper=True has no effect with frame='isotropic'; leave it at False, or take the frame"),
        ({"frame": "identity", "weigh_frame": True}, "weigh_frame=True has no effect with frame='identity'"),
        ({"field": "sinusoidal", "depth": 4}, "depth=4 has no effect with field='sinusoidal'"),
        ({"refine_rate": 0.1}, "refine_rate=0.1 has no effect with refine_steps=0"),
        ({"shown_seed": 1}, "shown_seed=1 has no effect with shown=None"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with refused(ValueError, message):
        FieldLearning.Config(**settings)


def test_an_answer_on_an_empty_grid_is_refused() -> None:
    with refused(ValueError, "answer.grid is ()"):
        Answer(grid=())


def test_data_that_do_not_fit_are_refused(tmp_path: Path, run: Path) -> None:
    with refused(ValueError, "no samples are given"):
        FieldLearning.Config().build()
    with refused(ValueError, "these data have other functions as targets"):
        config(tmp_path, of_slopes=True, refine_steps=3).build()
    others = config(tmp_path, of_slopes=True).build()
    with refused(ValueError, "these data have other functions as targets"):  # nor in prediction, which opens no data
        dataclasses.replace(others.config, refine_steps=3).build(others.facts)
    done = Run(run, device="cpu")
    assert isinstance(done.task, FieldLearning)
    (tmp_path / "other.csv").write_text("x,depth\n1,2\n")
    with refused(ValueError, "no column 'height'"):
        done.predict([tmp_path / "other.csv"])
    (tmp_path / "one.csv").write_text("x,height\n1,2\n")
    task = dataclasses.replace(done.task.config, answer=Answer(grid=(4,))).build(done.task.facts)
    with refused(ValueError, "one.csv: its samples have no extent along x; pass --at with places"):
        task.predict(done.model(), [tmp_path / "one.csv"], CPU)
