"""Kernels under one protocol, in this process."""

import dataclasses
import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fredholm.comparison import Comparison, Request, compare, job, protocol, read_comparison, workers
from fredholm.comparison.budget import seconds
from fredholm.comparison.comparison import COMPARISON, Row
from fredholm.comparison.protocol import Protocol
from fredholm.models import AttentionConfig, ImageBank, ITNet, LowRankConfig
from fredholm.tasks import FieldLearning, ImageLearning
from fredholm.training import InterruptedRunError, Run, TrainingConfig
from fredholm.training.step_cost import StepCost
from tests.comparison.build import request, stripes
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("few_rates")
KERNELS = ("low-rank", "attention", "mamba")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stripes(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Comparison, Path]:
    """A complete comparison and its folder."""
    folder = tmp_path_factory.mktemp("whole") / "comparison"
    return compare(request(data, *KERNELS), folder, processes=1), folder


def untimed(found: Comparison) -> Comparison:
    def row(each: Row) -> Row:
        return dataclasses.replace(each, seconds_per_step=0.0, examples_per_second=0.0, memory_bytes=0)

    baselines = tuple(dataclasses.replace(each, seconds=0.0) for each in found.baselines)
    return dataclasses.replace(found, created="", rows=tuple(map(row, found.rows)), baselines=baselines)


def test_rows_differ_only_in_the_kernel(whole: tuple[Comparison, Path]) -> None:
    found, folder = whole
    assert [row.name for row in found.rows] == ["low-rank", "attention"]
    configs = []
    for row in found.rows:
        assert abs(row.parameters / found.target_parameters - 1) < 0.05
        assert [run.seed for run in row.runs] == [0, 1]
        for run in row.runs:
            opened = Run(folder / run.folder)
            assert opened.evaluate("test")["accuracy"] == pytest.approx(run.test, abs=1e-6)
            assert opened.evaluate("valid")["accuracy"] == pytest.approx(run.valid, abs=1e-6)
            assert sum(p.numel() for p in opened.model().parameters()) == row.parameters
            configs.append(opened.config)
            assert isinstance(opened.config.task, ImageLearning.Config)
            assert opened.config.task.stack.kernel == row.kernel
    same = {"kernel": AttentionConfig(), "embed_dim": 16, "expansion": 4.0}
    stacks = [config.task.with_stack(dataclasses.replace(config.task.stack, **same)) for config in configs]
    assert stacks == stacks[:1] * 4
    rates = {config.training.learning_rate for config in configs}
    assert rates == {row.learning_rate for row in found.rows}
    assert len({dataclasses.replace(config.training, learning_rate=1.0) for config in configs}) == 1


def test_kernels_that_cannot_run_are_left_out_with_the_reason(whole: tuple[Comparison, Path]) -> None:
    left_out = {each.name: each.reason for each in whole[0].left_out}
    assert left_out.keys() == {"mamba", "default"}
    assert "integrates over the past, which Grid(2, 2) does not order" in left_out["mamba"]
    assert left_out["default"] == "not requested"


@pytest.mark.slow
@pytest.mark.parametrize(("leave_out_slow", "expected"), [(True, ["attention", "linear-attention"]), (False, None)])
def test_slow_kernels_are_left_out_on_request(
    data: Path, monkeypatch: pytest.MonkeyPatch, leave_out_slow: bool, expected: list[str] | None
) -> None:
    measured = protocol.step_cost

    def step_cost(task: ImageLearning, *given: Any, **settings: Any) -> StepCost:
        seconds = 31.0 if isinstance(task.config.stack.kernel, LowRankConfig) else 10.0
        return measured(task, *given, **settings)._replace(seconds=seconds, steps_per_epoch=1, evaluation_seconds=0.0)

    monkeypatch.setattr(protocol, "step_cost", step_cost)
    names = ("low-rank", "attention", "linear-attention")
    protocol_request = dataclasses.replace(request(data, *names), leave_out_slow=leave_out_slow)
    found, left_out = Protocol(protocol_request, None).rows(names)
    assert [each.row.name for each in found] == (expected or list(names))
    slow = [each.reason for each in left_out if each.name == "low-rank"]
    reason = "an epoch takes 31 s, 3.1 times the median of all kernels; name it with --kernels"
    assert slow == ([reason] if expected else [])


def test_explicit_settings_stay_even_if_they_equal_a_default(data: Path) -> None:
    usual = request(data, "low-rank", "attention", position_frequencies=64)
    usual = dataclasses.replace(usual, default=usual.run)
    names = ("task.position_frequencies", "training.learning_rate", "training.ema_decay")
    given = dataclasses.replace(usual, given=names)
    for each, frequencies, rate, decay in ((usual, 16, 2e-3, 0.5), (given, 64, 1e-3, TrainingConfig().ema_decay)):
        protocol = Protocol(each, None)
        assert (protocol.training(2).learning_rate, protocol.training(2).ema_decay) == (rate, decay)
        assert isinstance(protocol.default, Run.Config)
        for config in (protocol.config, protocol.default.task):
            assert isinstance(config, ImageLearning.Config)
            assert config.position_frequencies == frequencies


@pytest.mark.parametrize("epochs", [None, 1])
def test_the_default_model_of_the_task_is_fitted_in_closed_form_for_any_epochs(data: Path, epochs: int | None) -> None:
    own = Run.Config(task=ImageLearning.Config(data=str(data)), training=TrainingConfig(tensorboard=False))
    changed = dataclasses.replace(request(data, "low-rank", "attention"), default=own)
    default = Protocol(changed, epochs).default
    assert isinstance(default, Run.Config)
    assert isinstance(default.task, ImageLearning.Config)
    assert isinstance(default.task.model, ImageBank.Config)
    assert default.training.epochs == 0


def test_averaging_and_checkpoints_follow_an_explicit_batch_size(data: Path) -> None:
    small = request(data, "low-rank", "attention")
    usual = dataclasses.replace(small, run=dataclasses.replace(small.run, training=TrainingConfig()))
    typed = dataclasses.replace(usual, given=("training.batch_size",))  # though it equals the default
    for each, size in ((small, 16), (usual, 8), (typed, TrainingConfig().batch_size)):
        protocol = Protocol(each, None)
        training = protocol.training(200)
        steps_per_epoch = -(-protocol.task.num_train // size)
        assert (training.batch_size, training.checkpoint_every) == (size, steps_per_epoch)
        assert training.ema_decay == pytest.approx(1 - 50 / (200 * steps_per_epoch), abs=1e-4)


def test_few_epochs_use_no_dropout_and_smaller_batches_except_with_a_time_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured, sizes = protocol.step_cost, list[int]()

    def step_cost(task: ImageLearning, training: TrainingConfig, *given: Any, **settings: Any) -> StepCost:
        sizes.append(training.batch_size)
        found = measured(task, training, *given, **settings)
        return found._replace(seconds=10 / found.steps_per_epoch, evaluation_seconds=0.0)

    monkeypatch.setattr(protocol, "step_cost", step_cost)
    monkeypatch.setattr(importlib.import_module("fredholm.comparison.compare"), "FACTORS", (1.0,))
    few, usual = stripes(tmp_path, count=340), TrainingConfig(tensorboard=False, device="cpu")
    minutes = seconds(2, 1, [10.0, 10.0], 1) / 60 + 1e-6
    for name, budget in {"minutes": {"epochs": None, "minutes": minutes}, "epochs": {"epochs": 2}}.items():
        small = request(few, "low-rank", "attention", **budget)
        stack = dataclasses.replace(small.run.task.stack, dropout=ITNet.Config().dropout)
        run = dataclasses.replace(small.run, task=small.run.task.with_stack(stack), training=usual)
        small = dataclasses.replace(small, run=run, seeds=(0,))
        sizes.clear()
        found = compare(small, tmp_path / name, processes=1)
        assert found.budget.epochs == 2
        size = 16 if name == "minutes" else 8
        assert sizes == [size, size]
        for row in found.rows:
            config = Run(tmp_path / name / row.name / "seed-0").config
            assert (config.training.batch_size, config.task.stack.dropout) == (size, 0.0)
        assert compare(small, tmp_path / name, processes=1, resume=True) == found


def test_no_tried_rate_is_below_its_final_rate(data: Path) -> None:
    small = request(data, "attention", "linear-attention")
    training = dataclasses.replace(small.run.training, learning_rate=1e-3, final_learning_rate=5e-4)
    protocol = Protocol(dataclasses.replace(small, run=dataclasses.replace(small.run, training=training)), 2)
    row = protocol.rows(["attention", "linear-attention"])[0][0].row
    runs = [protocol.run(row, 0, 2, rate).training for rate in (2.5e-4, 4e-3, None)]
    assert [run.final_learning_rate for run in runs] == [2.5e-4, 5e-4, 5e-4]


def test_the_file_holds_the_results(whole: tuple[Comparison, Path]) -> None:
    found, folder = whole
    assert read_comparison(folder) == found
    assert found.is_complete
    assert found.best in ("low-rank", "attention")
    best = found.row(found.best)
    assert best.valid_mean == max(row.valid_mean or 0.0 for row in found.rows)
    assert best.differs_from_best is None
    assert all(row.differs_from_best in (True, False) for row in found.rows if row is not best)
    assert all(row.seconds_per_step and row.memory_bytes and row.examples_per_second for row in found.rows)
    assert (found.num_train, found.num_valid, found.num_test) == (33, 5, 10)


def test_rates_are_searched_by_halving_and_runs_of_the_search_are_removed(whole: tuple[Comparison, Path]) -> None:
    found, folder = whole
    for row in found.rows:
        assert {epochs for _, epochs, _ in row.tried} == set(found.budget.rungs) == {1}
        assert sorted(rate for rate, _, _ in row.tried) == sorted(found.budget.rates)
        assert row.learning_rate == row.tried[0][0]
        values = [value or 0.0 for _, _, value in row.tried]
        assert values == sorted(values, reverse=True)
        assert sorted(path.name for path in (folder / row.name).iterdir()) == ["seed-0", "seed-1"]


@pytest.mark.slow
def test_the_test_split_is_read_once_for_each_final_run(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, taken = list[str](), ImageLearning.held_out_batch

    def held_out_batch(self: ImageLearning, split: Any, indices: Any) -> Any:
        read.append(split)
        return taken(self, split, indices)

    monkeypatch.setattr(ImageLearning, "held_out_batch", held_out_batch)
    found = compare(request(data, "linear-attention", "attention"), tmp_path, processes=1)
    assert read.count("test") == 4
    log = tmp_path / found.rows[0].runs[0].folder / "metrics.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["unix_time"] > 1.6e9 for line in lines if line["kind"] == "test"] == [True]


@pytest.mark.slow
def test_a_resumed_comparison_ends_with_the_same_table(
    whole: tuple[Comparison, Path], data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [3, 4, 2, 100]

    def carry_out(*given: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            left.pop(0)
            raise InterruptedRunError(15, "stopped")
        return job.carry_out(*given)

    monkeypatch.setattr(workers, "carry_out", carry_out)
    for _ in range(3):
        with pytest.raises(InterruptedRunError, match="with --resume goes on"):
            compare(request(data, *KERNELS), tmp_path, resume=True, processes=1)
        assert not read_comparison(tmp_path).is_complete
        assert read_comparison(tmp_path).best is None
    found = compare(request(data, *KERNELS), tmp_path, resume=True, processes=1)
    assert untimed(found) == untimed(whole[0])
    assert untimed(compare(request(data, *KERNELS), tmp_path, resume=True, processes=1)) == untimed(found)


def test_ctrl_c_outside_of_a_run_also_says_how_to_go_on(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*given: Any) -> Any:
        raise KeyboardInterrupt(15)

    for module, name in (
        (importlib.import_module("fredholm.comparison.compare"), "baseline_rows"),
        (workers, "carry_out"),
    ):
        monkeypatch.setattr(module, name, interrupt)
        with pytest.raises(InterruptedRunError) as caught:
            compare(request(data, "low-rank", "attention"), tmp_path, resume=True, processes=1)
        monkeypatch.undo()
        assert caught.value.signal_number == 15
        assert str(caught.value) == (
            "interrupted; 0 of 2 kernels are done, all runs are saved as of their last checkpoints in "
            f"{tmp_path}, and the same command with --resume goes on"
        )


def test_a_kernel_without_a_result_has_a_row_with_the_reason(data: Path, tmp_path: Path) -> None:
    small = request(data, "attention", "low-rank")
    training = dataclasses.replace(small.run.training, learning_rate=1e30, warmup_fraction=0.0, gradient_clip=1e30)
    found = compare(
        dataclasses.replace(small, run=dataclasses.replace(small.run, training=training)), tmp_path, processes=1
    )
    for row in found.rows:
        assert row.reason.startswith("no learning rate had a result: the usual one diverged: ")
        assert row.runs == ()
        assert [value for _, _, value in row.tried] == [None] * 3
    assert found.is_complete
    assert found.best is None


@pytest.mark.slow
def test_the_default_model_has_a_row_and_a_single_seed_gives_no_significance(data: Path, tmp_path: Path) -> None:
    small = request(data, "attention", "linear-attention", epochs=1)
    own = Run.Config(task=ImageLearning.Config(data=str(data), stem_depth=1), training=small.run.training)
    found = compare(dataclasses.replace(small, default=own, seeds=(5,)), tmp_path, processes=1)
    row = found.row("default")
    assert row.is_default
    assert (row.title, row.kernel, row.embed_dim) == ("the bare fredholm train images", None, None)
    assert [[run.seed for run in each.runs] for each in found.rows] == [[5], [5], [5]]
    assert [each.differs_from_best for each in found.rows] == [None, None, None]
    assert [each.test_deviation for each in found.rows] == [None, None, None]
    assert Run(tmp_path / row.runs[0].folder).config.task == own.task.recommended("small", epochs=1).config


def test_folders_with_other_content_are_refused(whole: tuple[Comparison, Path], data: Path, tmp_path: Path) -> None:
    found, folder = whole
    with refused(ValueError, f"{folder} holds a comparison", "--resume"):
        compare(request(data, *KERNELS), folder, processes=1)
    with refused(ValueError, "holds another comparison", "epochs was 2, is 3"):
        compare(request(data, *KERNELS, epochs=3), folder, resume=True, processes=1)
    (tmp_path / "notes.txt").touch()
    with refused(ValueError, "is not empty and holds no comparison.json"):
        compare(request(data, *KERNELS), tmp_path, resume=True, processes=1)
    with refused(ValueError, "is a file"):
        compare(request(data, *KERNELS), tmp_path / "notes.txt", processes=1)
    with pytest.raises(PermissionError, match="no folder can be made here"):
        compare(request(data, *KERNELS), Path("/proc/nowhere"), processes=1)
    assert read_comparison(folder) == found


def test_a_damaged_file_is_reported_and_left_alone(whole: tuple[Comparison, Path], data: Path, tmp_path: Path) -> None:
    content = (whole[1] / COMPARISON).read_bytes().replace(b'"attention"', b'"attentive"')
    (tmp_path / COMPARISON).write_bytes(content)
    with refused(ValueError, "comparison.json is damaged"):
        compare(request(data, *KERNELS), tmp_path, resume=True, processes=1)
    assert (tmp_path / COMPARISON).read_bytes() == content


def test_changed_data_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*given: Any) -> Any:
        raise InterruptedRunError(15, "stopped")

    monkeypatch.setattr(workers, "carry_out", stopped)
    own, folder = stripes(tmp_path), tmp_path / "found"
    with pytest.raises(InterruptedRunError):
        compare(request(own, "attention", "linear-attention"), folder, resume=True, processes=1)
    assert capsys.readouterr().out.startswith(f"{folder} holds no comparison to go on with; a new one begins\n")
    stripes(tmp_path, seed=1)
    with refused(ValueError, "is not as the comparison in", "read it"):
        compare(request(own, "attention", "linear-attention"), folder, resume=True, processes=1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda data: request(data, "attention", "yat", valid_fraction=0.0), ["validation split", "valid_fraction"]),
        (lambda data: request(data, "attention", "mamba"), ["1 of these kernels can run", "mamba"]),
        (lambda data: request(data, "attention", "yat", epochs=None, minutes=1e-6), ["is too little", "need about"]),
        (lambda data: request(data.with_name("absent.npz"), "attention", "yat"), ["absent.npz"]),
    ],
    ids=["no validation split", "one kernel is left", "too short", "no data"],
)
def test_a_comparison_that_cannot_be_made_leaves_nothing_behind(
    make: Callable[[Path], Request], message: list[str], data: Path, tmp_path: Path
) -> None:
    with refused(ValueError, *message):
        compare(make(data), tmp_path / "found", processes=1)
    assert not (tmp_path / "found").exists()


@pytest.mark.slow
def test_a_class_with_one_example_is_allowed(tmp_path: Path) -> None:
    with np.load(stripes(tmp_path)) as given:
        x, y = given["x"], given["y"].copy()
    y[y == "none"] = "lying"
    y[0] = "none"
    np.savez(tmp_path / "rare.npz", x=x, y=y)
    with pytest.warns(UserWarning, match="no image of 'none' is in the test set"):
        found = compare(request(tmp_path / "rare.npz", "attention", "yat", epochs=1), tmp_path / "found", processes=1)
    assert found.is_complete


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"minutes": None, "epochs": None}, ValueError, "neither minutes nor epochs are given"),
        ({"minutes": "a"}, TypeError, "comparison.Request: minutes must be a number; got 'a'"),
        ({"minutes": -1.0}, ValueError, "minutes is -1.0; expected a finite number above 0"),
        ({"epochs": 1.5}, TypeError, "comparison.Request: epochs must be a whole number; got 1.5"),
        ({"epochs": 0}, ValueError, "comparison.Request: epochs must be at least 1; got 0"),
        ({"kernels": ("atention", "yat")}, ValueError, "no kernel is called 'atention'; did you mean attention"),
        ({"kernels": ("yat", "yat")}, ValueError, "the kernel yat is named twice; name each once"),
        ({"preset": "large"}, ValueError, "preset is 'large'; expected one of small, base"),
        ({"run": None}, TypeError, "run is of type NoneType; expected a Run.Config"),
        ({"default": None}, TypeError, "default is of type NoneType; expected a Run.Config, or why not, a text"),
    ],
)
def test_bad_requests_are_refused(data: Path, changes: dict[str, Any], kind: type[Exception], message: str) -> None:
    with refused(kind, message):
        dataclasses.replace(request(data, "attention", "yat"), **changes)


@pytest.mark.parametrize("processes", [0, -1])
def test_bad_numbers_of_processes_are_refused(data: Path, tmp_path: Path, processes: int) -> None:
    with refused(ValueError, f"comparison.compare: processes must be at least 1; got {processes}"):
        compare(request(data, "attention", "yat"), tmp_path / "found", processes=processes)
    assert not (tmp_path / "found").exists()


def test_seeds_and_fields_are_checked() -> None:
    task = ImageLearning.Config()
    with refused(ValueError, "names a seed twice: 1 1"):
        Request(run=Run.Config(task=task, training=TrainingConfig()), default="", kernels=("yat", "mlp"), seeds=(1, 1))
    with refused(ValueError, "no kernel can be chosen", "operator"):
        _ = FieldLearning.Config().stack
