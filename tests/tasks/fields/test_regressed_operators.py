"""A regression beside a network of functions: its training data, its share, and when there is none."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fredholm import from_pretrained
from fredholm.models import BlendedOperator, FunctionRegression, NeuralOperator, SpectralConfig
from fredholm.storage.config_json import from_json, to_json
from fredholm.tasks import OperatorLearning
from fredholm.training import Run, TaskModel, TrainingConfig, train
from fredholm.training.scoring import score_split
from tests.refusals import refused

CPU = torch.device("cpu")
NETWORK = NeuralOperator.Config(embed_dim=4, depth=1, kernel=SpectralConfig(num_waves_per_axis=2))


def smoothed(count: int, size: int = 8, **more: Any) -> dict[str, Any]:
    """Random functions on a line, and their integrals from the left end."""
    values = 5 + np.random.default_rng(0).normal(size=(count, size))
    return {"values": values, "target_values": 3 * values.cumsum(1) / size, **more}


def task_of(folder: Path, arrays: dict[str, Any], **settings: Any) -> OperatorLearning:
    np.savez(folder / "pairs.npz", **arrays)
    given = {"data": str(folder / "pairs.npz"), "model": NETWORK, "regression": 30, **settings}
    return OperatorLearning.Config(**given).build()


def fitted(task: OperatorLearning) -> BlendedOperator:
    torch.manual_seed(0)
    model = task.model()
    assert isinstance(model, BlendedOperator)
    task.initialise(model, CPU)
    return model.eval()


def relative_error(task: OperatorLearning, model: torch.nn.Module) -> float:
    dtype = torch.float32
    return score_split(task, "valid", model, batch_size=4, device=CPU, dtype=dtype)["relative_l2"]


def test_a_linear_operator_is_learnt_at_once(tmp_path: Path) -> None:
    config = OperatorLearning.Config(data=str(tmp_path / "pairs.npz"), model=NETWORK)
    np.savez(tmp_path / "pairs.npz", **smoothed(30))
    config = config.recommended("small").config
    assert isinstance(config, OperatorLearning.Config)
    assert config.regression == config.build().num_train
    run = Run.Config(task=config, training=TrainingConfig(epochs=1, tensorboard=False))
    result = train(run, tmp_path / "run")
    assert result.metrics["relative_l2"] < 1e-4
    model = Run(tmp_path / "run").model()
    assert isinstance(model, BlendedOperator)
    assert float(model.share) == 0
    found = list[list[float]]()
    for dtype in (torch.float32, torch.bfloat16):
        read = from_pretrained(tmp_path / "run", dtype=dtype)
        assert isinstance(read, TaskModel)
        found.append([float(row["value"]) for row in read.predict([tmp_path / "pairs.npz"])])
    np.testing.assert_allclose(*found, rtol=1e-6)  # sums of large terms that cancel stay in full precision


@pytest.mark.parametrize("settings", [{}, {"loss": "h1"}])
def test_the_share_with_the_smallest_error_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    values = smoothed(20)["values"]
    task = task_of(tmp_path, {"values": values, "target_values": values}, **settings)
    model = fitted(task)

    def measure(score: Any, metrics: Any) -> dict[str, float]:
        for indices in torch.arange(task.num_held_out("valid")).split(2):
            score(model, task.held_out_batch("valid", indices), metrics)
        return {name: float(metric.compute()) for name, metric in metrics.items()}

    def errors() -> dict[float, float]:
        found = dict[float, float]()
        for share in (0.0, 0.25, 0.5, 0.75, 1.0):
            model.share.fill_(share)
            found[share] = relative_error(task, model)
        return found

    # errors of the regression and of the network
    for apart, best in (((0.0, 1.0), 0.0), ((1.0, -3.0), 0.25), ((1.0, 0.0), 1.0)):
        for part, off in zip((model.fitted, model.network), apart, strict=True):
            monkeypatch.setattr(part, "forward", lambda inputs, at=None, off=off: inputs.values + off)
        task.choose_by_validation(model, measure)
        settled, found = float(model.share), errors()
        assert settled == min(found, key=lambda share: found[share]) == best

    assert set(task.metrics()) == {"relative_l2", "loss", *(["relative_h1"] if settings else [])}


def test_training_and_the_loss_use_the_network_alone(tmp_path: Path) -> None:
    task = task_of(tmp_path, smoothed(20))
    model = fitted(task)
    model.share.fill_(0.0)
    found = score_split(task, "valid", model, batch_size=4, device=CPU, dtype=torch.float32)
    alone = score_split(task, "valid", model.network, batch_size=4, device=CPU, dtype=torch.float32)
    assert found["loss"] == pytest.approx(alone["loss"])
    assert found["relative_l2"] < 0.1 * alone["relative_l2"]
    batch = task.train_batch(torch.arange(4), torch.Generator())
    torch.testing.assert_close(task.loss(model.train(), batch), task.loss(model.network, batch))


def test_trajectories_are_predicted_step_by_step(tmp_path: Path) -> None:
    drawn = np.random.default_rng(0)
    states = [drawn.normal(size=(12, 6))]
    turn = np.linalg.qr(drawn.normal(size=(6, 6)))[0]
    for _ in range(3):
        states.append(states[-1] @ turn)
    task = task_of(tmp_path, {"trajectories": np.stack(states, 1)}, regression=20)
    assert task.max_regression_functions == 3 * task.num_train
    model = fitted(task)
    assert model.fitted.functions.any(1).sum() == 20
    model.share.fill_(0.0)
    assert relative_error(task, model) < 1e-4
    model.share.fill_(1.0)
    assert relative_error(task, model) > 0.1
    shares = (0.0, 0.5)
    batch = task.held_out_batch("valid", torch.arange(1))
    for share, found in zip(shares, task._blends(model, batch, shares), strict=True):
        model.share.fill_(share)
        torch.testing.assert_close(task.preparation.answers(model, batch), found)


def test_steps_of_a_single_trajectory_are_left_out_one_by_one(tmp_path: Path) -> None:
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(6, 6)))[0]
    states = np.stack([np.linalg.matrix_power(turn, k)[0] for k in range(15)])[None]
    parts = {f"{part}_trajectories": states for part in ("train", "valid", "test")}
    assert fitted(task_of(tmp_path, parts, regression=14)).fitted.functions.any(1).all()


def test_a_regression_that_overflows_gets_no_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_of(tmp_path, smoothed(20))
    model = fitted(task)
    monkeypatch.setattr(model.fitted, "forward", lambda inputs, at=None: inputs.values * torch.nan)

    def measure(score: Any, metrics: Any) -> dict[str, float]:
        score(model, task.held_out_batch("valid", torch.arange(2)), metrics)
        return {name: float(metric.compute()) for name, metric in metrics.items()}

    task.choose_by_validation(model, measure)
    assert float(model.share) == 1


def test_steps_of_a_trajectory_are_left_out_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # each trajectory is constant at a value of its own
    states = np.repeat(np.arange(12.0)[:, None, None], 4, 1).repeat(6, 2)
    seen = list[tuple[torch.Tensor, torch.Tensor]]()
    monkeypatch.setattr(FunctionRegression, "fit", lambda _, given, found, **more: seen.append((given, more["groups"])))
    fitted(task_of(tmp_path, {"trajectories": states}, regression=20))
    ((given, groups),) = seen
    value = given[:, 0, 0]
    assert torch.equal(value[:, None] == value, groups[:, None] == groups)
    assert len(given) == 20


def test_groups_are_left_out_together(tmp_path: Path) -> None:
    """Each function occurs twice: unless its group is left out with it, the copy predicts it."""
    arrays = smoothed(10)
    arrays["target_values"] = np.random.default_rng(1).normal(size=(10, 8))
    twice = {name: np.repeat(array, 2, 0) for name, array in arrays.items()}
    together = {"groups": np.repeat(np.arange(10), 2)}
    errors = [float(fitted(task_of(tmp_path, twice | more, test_fraction=0.1)).fitted.error) for more in ({}, together)]
    assert errors[0] < 0.75
    assert errors[1] > 0.9


def test_scattered_points_are_used_directly_where_all_functions_share_them(tmp_path: Path) -> None:
    pos, target_pos = (np.random.default_rng(seed).uniform(0, 5, (8, 2)) for seed in (2, 3))
    task = task_of(tmp_path, smoothed(30, pos=pos, target_pos=target_pos))
    model = fitted(task)
    assert (model.fitted.config.given, model.fitted.config.target) == (8, 8)
    model.share.fill_(0.0)
    assert relative_error(task, model) < 1e-4


@pytest.mark.parametrize("is_mesh", [False, True])
@pytest.mark.parametrize("name", ["values", "target_values"])
def test_functions_with_missing_samples_share_their_points(tmp_path: Path, name: str, *, is_mesh: bool) -> None:
    pos = np.random.default_rng(2).uniform(0, 5, (8, 2))
    places: dict[str, Any] = {"pos": pos, "target_pos": pos} if is_mesh else {}
    whole = smoothed(30, **places)
    gaps = whole | {name: whole[name].copy()}
    gaps[name][0, 2] = gaps[name][::5, 4] = np.nan
    tasks = [task_of(tmp_path, arrays) for arrays in (whole, gaps)]
    assert tasks[0].facts.grid == tasks[1].facts.grid
    assert tasks[0].facts.target_at == tasks[1].facts.target_at
    assert tasks[0].repeats == tasks[1].repeats
    model = fitted(tasks[1])
    assert model.fitted.config.given == (8 if is_mesh else tasks[0].facts.grid)
    model.share.fill_(0.0)
    assert relative_error(tasks[1], model) < 0.1
    if name == "target_values":  # missing targets change no prediction, and count in no error
        before, after = (task.train_batch(torch.arange(20), torch.Generator()) for task in tasks)
        assert (before["target_mask"] & ~after["target_mask"]).any()
        found = [tasks[1].preparation.answers(model.network, batch) for batch in (before, after)]
        torch.testing.assert_close(*found, rtol=0, atol=0)
        wrong = {**after, "target_values": torch.where(after["target_mask"][..., None], after["target_values"], 1e6)}
        assert float(tasks[1].loss(model, wrong)) == float(tasks[1].loss(model, after))


def test_there_is_no_regression_without_validation_data_or_shared_points(tmp_path: Path) -> None:
    shared, pos = smoothed(30), np.random.default_rng(0).uniform(size=(30, 8, 1))
    own = smoothed(30, pos=pos[0], target_pos=pos)
    assert task_of(tmp_path, shared).max_regression_functions > 20
    assert task_of(tmp_path, shared, valid_fraction=0.0).max_regression_functions == 0
    assert task_of(tmp_path, smoothed(8)).max_regression_functions == 0, "too few functions"
    with refused(ValueError, "regression is 30, whose share is chosen by a validation split, and there is none"):
        fitted(task_of(tmp_path, shared, valid_fraction=0.0))
    task = task_of(tmp_path, own)
    assert task.max_regression_functions == 0
    assert from_json(to_json(task.facts), OperatorLearning.Facts, ()) == task.facts, "as a run folder keeps them"
    with refused(ValueError, "regression is 30, and functions have input or target points of their own; leave it"):
        task.model()
    with refused(ValueError, "regression"):
        task_of(tmp_path, shared, regression=1)


def test_zero_turns_the_regression_off(tmp_path: Path) -> None:
    np.savez(tmp_path / "pairs.npz", **smoothed(30))
    config = OperatorLearning.Config(data=str(tmp_path / "pairs.npz"), model=NETWORK, regression=0)
    config = config.recommended("small").config
    assert isinstance(config, OperatorLearning.Config)
    assert config.regression == 0
    assert isinstance(config.build().model(), NeuralOperator)
    assert dataclasses.replace(config, regression=20).with_stack(NETWORK).regression == 0


def test_large_sets_are_regressed_on_some_of_their_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fredholm.tasks.fields.regression.MOST_VALUES", 16 * 12)
    assert task_of(tmp_path, smoothed(30)).max_regression_functions == 12
    monkeypatch.setattr("fredholm.tasks.fields.regression.MOST_FUNCTIONS", 9)
    task = task_of(tmp_path, smoothed(30))
    assert task.max_regression_functions == 9
    model = fitted(dataclasses.replace(task.config, regression=9).build())
    assert model.fitted.functions.any(1).all()
