"""Every kernel by every route, and every model, on a simulated GPU: all tensors stay there, and results are right.

The tests also run the code paths that routes take for `device.type == "cuda"`.
"""

import copy
import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from fredholm.domains import Domain, Sequence
from fredholm.evaluation import HopSeries, Integral, Iteration
from fredholm.kernels import InfiniteAttention
from fredholm.tasks import Task
from fredholm.training import Run, TrainingConfig, train
from tests.contracts.instances import (
    PRECISIONS,
    ROWS,
    Cell,
    Expected,
    Results,
    RouteQuota,
    Wrong,
    accepted,
    case_of,
    nonempty_cells,
    quick_cells,
    results,
)
from tests.contracts.settings import Subject
from tests.contracts.task_settings import task_subjects
from tests.contracts.test_predictions import ROWS as INPUTS
from tests.contracts.test_saved_models import ROWS as MODELS
from tests.contracts.test_saved_models import built, probed
from tests.pretended_device import DEVICE, pretending


def wrong_on_the_device(cell: Cell, quota: RouteQuota | None = None) -> list[Wrong]:
    """Errors of the routes and of the operator on the simulated GPU in one cell."""
    case = case_of(cell)
    answers: dict[str, Results | str] = {}
    with pretending():
        on_device = case.on(DEVICE)
        for name, compute in accepted(on_device, quota):
            try:
                answers[name] = got = results(on_device, compute)
                assert got["integral"].device == DEVICE, "the integral is on the CPU"
            except Exception as error:
                answers[name] = f"{type(error).__name__}: {error}"
    if not answers:
        return []
    expected = Expected(case, PRECISIONS[cell.precision].scale)
    # values are compared outside the simulation, on the CPU
    mismatches = {name: got if isinstance(got, str) else expected.mismatch(got) for name, got in answers.items()}
    return [Wrong(cell, name, error) for name, error in mismatches.items() if error]


def wrong_in(cells: Iterable[Cell], quota: RouteQuota | None = None) -> list[str]:
    """Errors on the simulated GPU in several cells, one text each."""
    return [str(wrong) for cell in cells for wrong in wrong_on_the_device(cell, quota)]


@pytest.mark.parametrize("name", ROWS)
def test_every_route_stays_on_the_device(name: str) -> None:
    """Each route once, in a ninth of the quick cells."""
    assert wrong_in(nonempty_cells(name)[1::9], RouteQuota(1)) == []


@pytest.mark.long
@pytest.mark.parametrize("name", ROWS)
def test_every_route_stays_on_the_device_in_many_cells(name: str) -> None:
    assert wrong_in(quick_cells(name)[::4]) == []


def moved(tree: Any, device: torch.device, memo: dict[int, Any] | None = None) -> Any:
    """A copy of nested tensors, domains and modules on a device; shared objects stay shared."""
    memo = {} if memo is None else memo
    if id(tree) not in memo:
        memo[id(tree)] = _moved(tree, device, memo)
    return memo[id(tree)]


def _moved(tree: Any, device: torch.device, memo: dict[int, Any]) -> Any:
    if isinstance(tree, torch.Tensor | Domain):
        return tree.to(device)
    if isinstance(tree, torch.nn.Module):
        return copy.deepcopy(tree).to(device)
    if isinstance(tree, dict):
        return {name: moved(value, device, memo) for name, value in tree.items()}
    if isinstance(tree, list | tuple):
        make: Any = getattr(type(tree), "_make", type(tree))
        return make([moved(value, device, memo) for value in tree])
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        fields = {f.name: getattr(tree, f.name) for f in dataclasses.fields(tree)}
        return dataclasses.replace(tree, **moved(fields, device, memo))
    return tree


PROBED_ON_THE_CPU = (
    "BlendedImages", "BlendedImageTexts", "BlendedLanguageModel", "BlendedNodes", "BlendedOperator", "BlendedSamples",
    "BoostedTrees", "CloudMachine", "CloudReading", "ConditionalRandomField",
    "FieldOperator", "FunctionRegression", "GraphMachine", "ImageBank", "InContextRegressor", "FilterBank",
    "KernelMachine", "LagMachine", "LinkMachine", "NGramBank", "NGramModel", "NeighbourhoodBank", "NodeMachine",
    "SampleMachine", "SeriesMachine", "SummaryBank", "TableMachine", "TableReading",
)  # fmt: skip
"""Models whose probes call other methods than `forward`, with tensors on the CPU."""


@pytest.mark.parametrize("row", [row for row in MODELS if not row.startswith(PROBED_ON_THE_CPU)])
def test_every_model_stays_on_the_device(row: str) -> None:
    subject, start = MODELS[row]
    expected, model = probed(subject, built(subject, start)), built(subject, start)
    with pretending():
        model.to(DEVICE).register_forward_pre_hook(lambda _, *inputs: moved(inputs, DEVICE), with_kwargs=True)
        found = probed(subject, model)
    for ours, on_cpu in zip(found, expected, strict=True):
        if isinstance(ours, torch.Tensor) and isinstance(on_cpu, torch.Tensor):
            torch.testing.assert_close(ours, on_cpu, atol=1e-4, rtol=1e-4)


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Subject]:
    return {subject.name: subject for subject in task_subjects(tmp_path_factory.mktemp("data"))}


TASKS_OF_NETWORKS = (
    *("FieldLearning", "ImageTextLearning", "LanguageModelling", "MaskedLanguageModelling", "OperatorLearning"),
    "Segmentation",
)
"""Tasks whose default model is also a network."""


@pytest.mark.filterwarnings("ignore:'pin_memory' argument", "ignore:.* edges listed one way")
@pytest.mark.parametrize(
    ("name", "is_default"),
    [
        pytest.param(name, is_default, id=f"{name}-{'the default' if is_default else 'a small'} model", marks=marks)
        for name in INPUTS
        for is_default, marks in (
            (False, pytest.mark.long if name in TASKS_OF_NETWORKS else ()),
            (True, pytest.mark.slow),
        )
    ],
)
def test_every_task_is_trained_and_predicts_on_the_device(
    name: str, is_default: bool, subjects: dict[str, Subject], tmp_path: Path
) -> None:
    """Metrics and predictions of a run of one epoch equal those on the CPU."""
    subject = subjects[f"{name}.Config"]
    settings = subject.base
    if is_default:
        settings = {key: value for key, value in settings.items() if key not in ("model", "inputs")}
    config = subject.of(**settings)
    if is_default:
        config = config.recommended("small", epochs=1).config
    inputs = tmp_path / "inputs"
    inputs.mkdir()
    write, _ = INPUTS[name]
    write(Path(subject.base["data"]), inputs / "one")
    expected = trained(config, "cpu", tmp_path / "cpu", inputs)
    with pretending():
        found = trained(config, "cuda", tmp_path / "cuda", inputs)
    assert found == [{key: near(value) for key, value in row.items()} for row in expected]


def trained(config: Task.Config, device: str, folder: Path, inputs: Path) -> list[Any]:
    """Metrics and predictions of a short run."""
    length: dict[str, Any] = {"epochs": 1, "batch_size": 8} if config.build().learns_by_steps else {"epochs": 0}
    train(Run.Config(task=config, training=TrainingConfig(device=device, tensorboard=False, **length)), folder)
    run = Run(folder, device=device)
    files = sorted(path for path in inputs.rglob("*") if path.name.endswith(run.task.predicts.suffixes))
    numbers = [run.evaluate("test"), *map(dict, run.predict(files or [inputs / "one"]))]
    assert len(numbers) > 1
    return numbers


def near(value: Any) -> Any:
    """A number up to rounding errors, or any other value as it is."""
    return pytest.approx(value, rel=1e-3, abs=1e-3, nan_ok=True) if isinstance(value, float) else value


def test_a_tensor_on_the_cpu_is_noticed() -> None:
    with pretending():
        u = torch.ones(3, device=DEVICE, requires_grad=True)
        assert u.is_cuda
        assert (u * torch.tensor(2.0)).device == u.new_zeros(2).device == u.cpu().cuda().device == DEVICE
        assert u.cpu().to("cuda").to(torch.float64).device == DEVICE
        with pytest.raises(RuntimeError, match="tensors on cuda:0 and on the CPU"):
            u.mul(torch.ones(3))
        (3 * u.cpu()).sum().backward()
        assert u.grad is not None
        assert (u.grad.device, u.grad.tolist()) == (DEVICE, [3.0] * 3)


def test_a_tensor_on_the_cpu_is_noticed_within_an_operator() -> None:
    with pretending():
        u, kernel = torch.randn(1, 5, 4, device=DEVICE), InfiniteAttention(4, 2).to(DEVICE)
        assert kernel.discount is not None
        kernel.discount.to("cpu")
        with pytest.raises(RuntimeError, match="tensors on cuda:0 and on the CPU"):
            HopSeries(Iteration()).integrate(Integral(kernel, u, Sequence(5).to(DEVICE)))
