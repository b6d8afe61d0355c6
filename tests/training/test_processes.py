"""A run on several processes gives the numbers of the same run on one process."""

import dataclasses
import itertools
import json
import math
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast, final

import pytest
import torch
from torch import Tensor, nn
from torchmetrics import MeanMetric, Metric
from torchmetrics.classification import BinaryAUROC
from torchmetrics.metric import CompositionalMetric

from fredholm.distributed.parallel_model import CalledModel, own_part, sharded
from fredholm.distributed.processes import OtherProcessError, Processes, current, is_of_loss
from fredholm.quadrature import monte_carlo
from fredholm.quadrature.nodes import SharedNodes
from fredholm.storage.tensors import model_tensors
from fredholm.tasks import Batch, Task
from fredholm.tasks.splits.splits import HeldOut
from fredholm.tasks.targets.agreement import R2, Spearman
from fredholm.tasks.targets.ranking import AreaUnderROC
from fredholm.training import InterruptedRunError, Learner, Run, train
from fredholm.training.batches import Share
from fredholm.training.progress import muted
from fredholm.training.scoring import score_split
from tests.processes import on_processes
from tests.training.test_learner import CONFIG, even_levels, sampled_learner
from tests.training.toy_task import ToyTask, toy_run

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "no parts": {"accumulation": 1},  # one of three processes has none of the last batch of two examples
    "more parts than examples a process": {"accumulation": 3, "num_examples": 49},
    "clipped": {"gradient_clip": 0.05},
    "patience": {"ema_decay": 0.5, "patience": 1, "epochs": 8, "learning_rate": 0.3},
}


def config(*, dropout: float = 0.0, num_examples: int = 50, **training: Any) -> Run.Config:
    run = toy_run()
    task = ToyTask.Config(dropout=dropout, num_examples=num_examples)
    return dataclasses.replace(run, task=task, training=dataclasses.replace(run.training, **training))


def trained(path: Path, run: Run.Config, **arguments: Any) -> dict[str, Any]:
    """The final metrics and weights of a run on all processes."""
    with muted():
        result = train(run, path, tasks=[ToyTask], processes=current(), **arguments)
    model = Run(path, tasks=[ToyTask], device="cpu").model("last")
    return {"metrics": result.metrics, "weights": model_tensors(model)}


def log(path: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    times = ("examples_per_second", "unix_time")
    return [{name: value for name, value in line.items() if name not in times} for line in lines]


def check_alike(path: Path, whole: Path) -> None:
    """Asserts that two runs logged the same numbers, and have the same weights."""
    assert len(log(path)) == len(log(whole)) > 5
    for line, expected in zip(log(path), log(whole), strict=True):
        assert line.pop("kind") == expected.pop("kind")
        assert line == pytest.approx(expected, rel=1e-5, abs=1e-5)
    model, other = (model_tensors(Run(each, tasks=[ToyTask], device="cpu").model("last")) for each in (path, whole))
    torch.testing.assert_close(model, other, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder of runs on one process, and their final metrics and weights."""
    path = tmp_path_factory.mktemp("alone")
    return path, trained_each(path, {name: config(**settings) for name, settings in CASES.items()})


def trained_each(path: Path, runs: dict[str, Run.Config]) -> dict[str, Any]:
    return {name: trained(path / name, run) for name, run in runs.items()}


@pytest.mark.parametrize(
    ("size", "shard", "names"),
    [
        (2, False, CASES),
        pytest.param(3, False, CASES, marks=pytest.mark.long),
        pytest.param(3, True, CASES, marks=pytest.mark.long),
        pytest.param(3, True, ("no parts", "clipped", "patience"), marks=pytest.mark.slow),
    ],
)
def test_runs_on_several_processes_equal_those_on_one(
    tmp_path: Path, size: int, shard: bool, names: Iterable[str], alone: tuple[Path, dict[str, Any]]
) -> None:
    runs = {name: config(**CASES[name], shard=shard) for name in names}
    found = on_processes(size, trained_each, tmp_path / "shared", runs)
    for name in runs:
        check_alike(tmp_path / "shared" / name, alone[0] / name)
        for each in found:
            assert each[name]["metrics"] == pytest.approx(alone[1][name]["metrics"], rel=1e-5)
            assert each[name]["metrics"] == found[0][name]["metrics"]


def test_patience_ends_a_run_early(tmp_path: Path) -> None:
    trained(tmp_path, config(**CASES["patience"]))
    assert log(tmp_path)[-1]["epoch"] < 8  # so that the case above tests early stopping


@pytest.mark.slow
@pytest.mark.parametrize(("size", "shard"), [pytest.param(3, False, marks=pytest.mark.long), (2, True)])
def test_curves_agree_over_fifty_steps(tmp_path: Path, size: int, shard: bool) -> None:
    run = config(epochs=8, log_every=1, evaluate_every=4)
    on_processes(
        size,
        trained,
        tmp_path / "shared",
        dataclasses.replace(run, training=dataclasses.replace(run.training, shard=shard)),
    )
    trained(tmp_path / "alone", run)
    assert len(log(tmp_path / "alone")) > 50
    check_alike(tmp_path / "shared", tmp_path / "alone")


@final
class Measured:
    """A task with one held-out split and metrics of all kinds: sums, lists of examples, moments, and composed ones."""

    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(2)
        self.numbers, self.given = (torch.randn(count, 2, generator=generator) for _ in range(2))

    def num_held_out(self, split: HeldOut) -> int:
        return len(self.numbers)

    def held_out_batch(self, split: HeldOut, indices: Tensor) -> Batch:
        return {"true": self.numbers[indices], "given": self.given[indices]}

    def metrics(self) -> dict[str, Metric]:
        mean = MeanMetric()
        root = CompositionalMetric(torch.exp, mean, None)
        lists = {"spearman": Spearman(), "auroc": BinaryAUROC(), "ranking": AreaUnderROC()}
        return {"mean": mean, "exponential": root, "r2": R2(2), **lists}

    def score(self, model: nn.Module, batch: Batch, metrics: dict[str, Metric]) -> None:
        true, predicted = batch["true"], model(batch["given"])
        metrics["mean"].update((true - predicted).abs())
        metrics["r2"].update(predicted, true)
        metrics["spearman"].update(predicted[:, 0], true[:, 0])
        metrics["auroc"].update(predicted[:, 0].sigmoid(), (true[:, 0] > 0).long())
        metrics["ranking"].update(predicted, true > 0)


def scores(counts: list[int], batch_size: int) -> list[dict[str, float]]:
    numbers: dict[str, Any] = {"batch_size": batch_size, "device": torch.device("cpu"), "dtype": torch.float32}
    return [
        score_split(cast("Task", Measured(count)), "valid", nn.Identity(), processes=current(), **numbers)
        for count in counts
    ]


class Repeating(nn.Module):
    """Calls its block twice for marked examples."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(2, 2))])

    def forward(self, given: Tensor) -> Tensor:
        found = self.blocks[0](given)
        return self.blocks[0](found) if float(given.sum()) > 0 else found


def scores_of_parts(counts: list[int]) -> list[dict[str, float]]:
    """Scores of a model sharded over all processes, which call its blocks unequally often."""
    numbers: dict[str, Any] = {"batch_size": 1, "device": torch.device("cpu"), "dtype": torch.float32}
    torch.manual_seed(0)
    model, processes = Repeating().eval(), current()
    called = sharded(model, processes, {}) if processes.size > 1 else CalledModel(model)
    held = [own_part(parameter).numel() for parameter in model.parameters()]
    found = [
        score_split(cast("Task", Measured(count)), "valid", called, processes=processes, **numbers) for count in counts
    ]
    assert [own_part(parameter).numel() for parameter in model.parameters()] == held  # each one holds its part again
    return found


def test_a_sharded_model_is_scored_with_unequal_numbers_of_examples_per_process() -> None:
    expected = scores_of_parts([3, 8])
    for found in on_processes(2, scores_of_parts, [3, 8]):
        for each, own in zip(found, expected, strict=True):
            assert each == pytest.approx(own, rel=1e-6)


def scores_of_first() -> dict[str, float]:
    """Scores computed by the first process alone; it would wait forever if its metrics synchronised."""
    return scored_alone() if current().is_first else {}


def scored_alone() -> dict[str, float]:
    numbers: dict[str, Any] = {"batch_size": 3, "device": torch.device("cpu"), "dtype": torch.float32}
    return score_split(cast("Task", Measured(11)), "valid", nn.Identity(), **numbers)


def test_metrics_are_those_of_the_whole_split(tmp_path: Path) -> None:
    counts = [11, 5, 2]  # one of three processes has none of two examples
    expected = scores(counts, 3)
    assert expected[0]["exponential"] == pytest.approx(math.exp(expected[0]["mean"]), rel=1e-6)
    for found in on_processes(3, scores, counts, 3):
        for each, own in zip(found, expected, strict=True):
            assert each == pytest.approx(own, rel=1e-6)
    assert on_processes(2, scores_of_first)[0] == scored_alone()


def mean_log_probability(nodes: SharedNodes, *arguments: Any) -> Tensor:
    assert nodes.log_probability is not None
    return nodes.log_probability().mean()


def proposal_gradients() -> dict[str, Tensor]:
    """Gradients of a Monte Carlo proposal, which has a loss of its own, after one step with fixed nodes."""
    patch = pytest.MonkeyPatch()  # when the process ends
    patch.setattr(monte_carlo, "levels", even_levels)
    patch.setattr(SharedNodes, "proposal_loss", mean_log_probability)
    task, _ = sampled_learner()
    torch.manual_seed(3)
    learner = Learner(task, CONFIG, num_steps=20, processes=current())
    readout = next(p for name, p in learner.model.named_parameters() if name.endswith("readout.weight"))
    nn.init.normal_(readout, generator=torch.Generator().manual_seed(1))
    rows = task.train_batch_rows(torch.arange(10), current().rows(10), torch.Generator().manual_seed(0))
    learner.update(Share(rows, True, 10), 0)
    return {name: p.grad for name, p in learner.model.named_parameters() if p.grad is not None}


def test_additional_losses_are_weighted_by_examples() -> None:
    (alone,) = on_processes(1, proposal_gradients)
    assert any("proposal" in name and grad.abs().max() > 0 for name, grad in alone.items())
    for found in on_processes(3, proposal_gradients):
        torch.testing.assert_close(found, alone, rtol=1e-4, atol=1e-6)


def resumed(path: Path, epochs: int, shard: bool) -> None:
    """Resumes a run up to `epochs`, on all processes."""
    trained(path, config(epochs=epochs, shard=shard), resume=True)


def test_a_run_is_resumed_on_other_numbers_of_processes(tmp_path: Path) -> None:
    for epochs, size, shard in ((2, 1, False), (3, 3, False), (4, 2, True), (5, 3, True), (6, 1, False)):
        if size > 1:
            on_processes(size, resumed, tmp_path / "moved", epochs, shard)
        else:
            resumed(tmp_path / "moved", epochs, False)
        resumed(tmp_path / "still", epochs, False)
    check_alike(tmp_path / "moved", tmp_path / "still")


def stopped_and_resumed(path: Path, run: Run.Config) -> None:
    """A run that one process stops on all processes in the middle, and that is then resumed."""
    processes, update = current(), Learner.update

    def update_or_stop(self: Learner, share: Share, step: int) -> Any:
        if step == 9 and processes.rank == processes.size - 1:
            signal.raise_signal(signal.SIGTERM)
        return update(self, share, step)

    Learner.update = update_or_stop
    with pytest.raises(InterruptedRunError, match=r"interrupted; step 10 of 21 is saved"):
        trained(path, run)
    Learner.update = update
    trained(path, run, resume=True)


def test_a_signal_to_one_process_stops_all_and_each_resumes_its_own_random_state(tmp_path: Path) -> None:
    run = config(dropout=0.3)
    on_processes(3, stopped_and_resumed, tmp_path / "stopped", run)
    on_processes(3, trained, tmp_path / "through", run)
    files = [sorted(path.rglob("*.safetensors")) for path in (tmp_path / "stopped", tmp_path / "through")]
    assert len(files[0]) == len(files[1]) > 2
    assert [file.read_bytes() for file in files[0]] == [file.read_bytes() for file in files[1]]


def refusal(path: Path, runs: list[Run.Config]) -> str:
    """The error message on a process whose run differs from that of the others."""
    try:
        trained(path, runs[current().rank])
    except (ValueError, OtherProcessError) as error:
        return str(error)
    return ""


def refusals(path: Path, cases: list[list[Run.Config]]) -> list[str]:
    return [refusal(path, runs) for runs in cases]


def test_the_error_for_differing_configs_names_the_processes_and_the_setting(tmp_path: Path) -> None:
    others = [config(learning_rate=0.5), config(num_examples=20), config()]
    cases = [[config(), other, config()] for other in others[:2]] + [[config(batch_size=2)] * 3]
    found = on_processes(3, refusals, tmp_path / "run", cases)
    assert found == [found[0]] * 3  # the same on all
    rates, examples, few = found[0]
    different = "rank 0 and rank 1 were given different configs"
    assert rates.startswith(f"{different} (training.learning_rate was 0.01, is 0.5)")
    assert examples.startswith(f"{different} (task.num_examples was 50, is 20)")
    assert few == "training.batch_size is 2, and 3 processes share each batch; pass 3 or more"


def without_data(path: Path) -> str:
    """The file named in the error on a process that finds no data, unlike the others."""
    if current().rank == 1:
        pytest.MonkeyPatch().setattr(ToyTask, "num_held_out", lambda self, split: (path / "photos").read_text())
    try:
        trained(path / "run", config())
    except FileNotFoundError as error:
        return str(error.filename)
    except RuntimeError as error:
        return "lost" if is_of_loss(error) else str(error)
    return ""


def test_a_process_without_data_leaves_no_folder(tmp_path: Path) -> None:
    assert on_processes(2, without_data, tmp_path) == ["lost", str(tmp_path / "photos")]
    assert list(tmp_path.iterdir()) == []


def test_an_error_on_the_first_process_ends_the_others(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "other").touch()
    found = on_processes(2, refusal, tmp_path / "run", [config()] * 2)
    assert found[0].endswith("pass --resume to go on with the run in it")
    assert found[1] == "the first process has failed"


@pytest.mark.parametrize("size", [1, 3, 7])
@pytest.mark.parametrize("count", [0, 2, 7, 20])
def test_rows_are_divided_evenly_and_in_order(size: int, count: int) -> None:
    parts = [list(range(count))[Processes(rank, size).rows(count)] for rank in range(size)]
    assert list(itertools.chain(*parts)) == list(range(count))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
