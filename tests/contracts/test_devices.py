"""Every kernel by every route, and every model, on a GPU that is pretended: all is there, and the numbers are right.

So runs, too, what a route does otherwise for `device.type == "cuda"`.
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
    FirstTimes,
    Results,
    Wrong,
    accepted,
    asking_cells,
    case_of,
    quick_cells,
    results,
)
from tests.contracts.settings import Subject
from tests.contracts.task_settings import task_subjects
from tests.contracts.test_predictions import ROWS as ASKED
from tests.contracts.test_saved_models import ROWS as MODELS
from tests.contracts.test_saved_models import built, probed
from tests.pretended_device import DEVICE, pretending


def wrong_on_the_device(cell: Cell, times: FirstTimes | None = None) -> list[Wrong]:
    """What any route, or the operator, gets wrong there."""
    case = case_of(cell)
    answers: dict[str, Results | str] = {}
    with pretending():
        there = case.on(DEVICE)
        for name, compute in accepted(there, times):
            try:
                answers[name] = got = results(there, compute)
                assert got["integral"].device == DEVICE, "the integral is on the CPU"
            except Exception as error:
                answers[name] = f"{type(error).__name__}: {error}"
    if not answers:
        return []
    right = Expected(case, PRECISIONS[cell.precision].scale)
    # numbers are compared on the CPU, where they are
    predicted = {name: got if isinstance(got, str) else right.wrong_with(got) for name, got in answers.items()}
    return [Wrong(cell, name, what) for name, what in predicted.items() if what]


def wrong_in(cells: Iterable[Cell], times: FirstTimes | None = None) -> list[str]:
    """All of them."""
    return [str(wrong) for cell in cells for wrong in wrong_on_the_device(cell, times)]


@pytest.mark.parametrize("name", ROWS)
def test_every_route_stays_on_the_device(name: str) -> None:
    """Each route once, in the cells of a ninth of those in which every pair of classes of levels occurs."""
    assert wrong_in(asking_cells(name)[1::9], FirstTimes(1)) == []


@pytest.mark.long
@pytest.mark.parametrize("name", ROWS)
def test_every_route_stays_on_the_device_wherever_it_goes(name: str) -> None:
    assert wrong_in(quick_cells(name)[::4]) == []


def moved(given: Any, device: torch.device, found: dict[int, Any] | None = None) -> Any:
    """Tensors and domains on a device, and what holds them; what is one thing stays one."""
    found = {} if found is None else found
    if id(given) not in found:
        found[id(given)] = _moved(given, device, found)
    return found[id(given)]


def _moved(given: Any, device: torch.device, found: dict[int, Any]) -> Any:
    if isinstance(given, torch.Tensor | Domain):
        return given.to(device)
    if isinstance(given, torch.nn.Module):
        return copy.deepcopy(given).to(device)
    if isinstance(given, dict):
        return {name: moved(value, device, found) for name, value in given.items()}
    if isinstance(given, list | tuple):
        make: Any = getattr(type(given), "_make", type(given))
        return make([moved(value, device, found) for value in given])
    if dataclasses.is_dataclass(given) and not isinstance(given, type):
        fields = {f.name: getattr(given, f.name) for f in dataclasses.fields(given)}
        return dataclasses.replace(given, **moved(fields, device, found))
    return given


GIVEN_DATA_ELSEWHERE = (
    "BlendedImages", "BlendedImageTexts", "BlendedLanguageModel", "BlendedNodes", "BlendedOperator", "BoostedTrees",
    "CloudMachine", "CloudReading",
    "FieldOperator", "FunctionRegression", "GraphMachine", "ImageBank", "InContextRegressor", "FilterBank",
    "KernelMachine", "LagMachine", "LinkMachine", "NGramBank", "NGramModel", "NeighbourhoodBank", "NodeMachine",
    "SeriesMachine", "SummaryBank", "TableMachine", "TableReading",
)  # fmt: skip
"""Of which other methods than `forward` are called, with tensors on the CPU."""


@pytest.mark.parametrize("row", [row for row in MODELS if not row.startswith(GIVEN_DATA_ELSEWHERE)])
def test_every_model_stays_on_the_device(row: str) -> None:
    subject, start = MODELS[row]
    expected, model = probed(subject, built(subject, start)), built(subject, start)
    with pretending():
        model.to(DEVICE).register_forward_pre_hook(lambda _, *given: moved(given, DEVICE), with_kwargs=True)
        found = probed(subject, model)
    for ours, other in zip(found, expected, strict=True):
        if isinstance(ours, torch.Tensor) and isinstance(other, torch.Tensor):
            torch.testing.assert_close(ours, other, atol=1e-4, rtol=1e-4)


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Subject]:
    return {subject.name: subject for subject in task_subjects(tmp_path_factory.mktemp("data"))}


TASKS_OF_NETWORKS = (
    *("FieldLearning", "ImageTextLearning", "LanguageModelling", "MaskedLanguageModelling", "OperatorLearning"),
    "Segmentation",
)
"""Whose default is a network too."""


@pytest.mark.filterwarnings("ignore:'pin_memory' argument", "ignore:.* edges listed one way")
@pytest.mark.parametrize(
    ("name", "is_default"),
    [
        pytest.param(name, is_default, id=f"{name}-{'the default' if is_default else 'a small'} model", marks=marks)
        for name in ASKED
        for is_default, marks in (
            (False, pytest.mark.long if name in TASKS_OF_NETWORKS else ()),
            (True, pytest.mark.slow),
        )
    ],
)
def test_every_task_is_trained_and_predicts_on_the_device(
    name: str, is_default: bool, subjects: dict[str, Subject], tmp_path: Path
) -> None:
    """A run of one epoch, its metrics and its answers are those of the CPU."""
    subject = subjects[f"{name}.Config"]
    settings = subject.base
    if is_default:
        settings = {key: value for key, value in settings.items() if key not in ("model", "inputs")}
    config = subject.of(**settings)
    if is_default:
        config = config.recommended("small", epochs=1).config
    inputs = tmp_path / "inputs"
    inputs.mkdir()
    ask, _ = ASKED[name]
    ask(Path(subject.base["data"]), inputs / "one")
    expected = trained(config, "cpu", tmp_path / "cpu", inputs)
    with pretending():
        found = trained(config, "cuda", tmp_path / "cuda", inputs)
    assert found == [{key: near(value) for key, value in row.items()} for row in expected]


def trained(config: Task.Config, device: str, folder: Path, inputs: Path) -> list[Any]:
    """What a run measures and predicts."""
    length: dict[str, Any] = {"epochs": 1, "batch_size": 8} if config.build().learns_by_steps else {"epochs": 0}
    train(Run.Config(task=config, training=TrainingConfig(device=device, tensorboard=False, **length)), folder)
    run = Run(folder, device=device)
    files = sorted(path for path in inputs.rglob("*") if path.name.endswith(run.task.predicts.suffixes))
    numbers = [run.evaluate("test"), *map(dict, run.predict(files or [inputs / "one"]))]
    assert len(numbers) > 1
    return numbers


def near(value: Any) -> Any:
    """What is right within what rounding may change."""
    return pytest.approx(value, rel=1e-3, abs=1e-3, nan_ok=True) if isinstance(value, float) else value


def test_a_number_on_the_cpu_is_noticed() -> None:
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


def test_it_is_noticed_within_an_operator() -> None:
    with pretending():
        u, kernel = torch.randn(1, 5, 4, device=DEVICE), InfiniteAttention(4, 2).to(DEVICE)
        assert kernel.discount is not None
        kernel.discount.to("cpu")
        with pytest.raises(RuntimeError, match="tensors on cuda:0 and on the CPU"):
            HopSeries(Iteration()).integrate(Integral(kernel, u, Sequence(5).to(DEVICE)))
