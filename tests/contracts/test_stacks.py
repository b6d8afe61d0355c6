"""Every task has a network that takes any kernel, or refuses to choose one."""

import dataclasses
from typing import Any

import pytest
import torch

from fredholm.comparison.kernels import kernel_of
from fredholm.models import AttentionConfig, OnEdgesConfig
from fredholm.models.images.infvit import InfViT
from fredholm.tasks import (
    TASKS,
    FieldLearning,
    Forecasting,
    GraphLearning,
    LanguageModelling,
    LinkLearning,
    NodeLearning,
    SeriesLearning,
    TableLearning,
    Task,
    WordLearning,
)
from fredholm.tasks.task import Trained
from tests.contracts.task_settings import small_tasks
from tests.refusals import refused

pytest.importorskip("kornia")
pytest.importorskip("tokenizers")
pytest.importorskip("trimesh")

ON_GRAPHS = (GraphLearning.Config, NodeLearning.Config, LinkLearning.Config)
WITHOUT_KERNEL: dict[type[Task], str] = {
    FieldLearning: "no kernel can be chosen",
    TableLearning: "no kernel can be chosen",
    WordLearning: "no kernel can be chosen",
}
"""Tasks whose network has no kernel to choose, with their error message."""
OWN_MODELS = (LanguageModelling, SeriesLearning, Forecasting)
KERNELS = ("attention", "linear-attention")


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Task.Config]:
    return {type(config).__qualname__: config for config in small_tasks(tmp_path_factory.mktemp("data"))}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.command)
def test_a_task_takes_any_kernel_in_the_same_network(task: type[Task], tasks: dict[str, Task.Config]) -> None:
    small_config = tasks[task.Config.__qualname__]
    if task in OWN_MODELS:  # the small config has a model without a kernel, or one in closed form
        default: Any = task.Config()  # pyright: ignore[reportAbstractUsage, reportCallIssue]
        small_config = dataclasses.replace(small_config, model=default.model)  # pyright: ignore[reportCallIssue]
    if task in WITHOUT_KERNEL:
        with refused(ValueError, WITHOUT_KERNEL[task]):
            _ = small_config.stack
        with refused(ValueError, "no kernel to choose"):
            small_config.with_stack(tasks[f"{TASKS[0].__name__}.Config"].stack)
        return
    size = {"embed_dim": 8, "num_heads": 2, "expansion": 1.5}
    for name in KERNELS:
        kernel = kernel_of(name, small_config.kernel_sigma)
        config = small_config.with_stack(dataclasses.replace(small_config.stack, kernel=kernel, **size))
        taken = config.stack
        assert (taken.embed_dim, taken.num_heads, taken.expansion) == tuple(size.values())
        if isinstance(small_config, ON_GRAPHS):
            assert isinstance(taken.kernel, OnEdgesConfig)
            assert taken.kernel.long_range is None
            assert taken.kernel.kernel == kernel
        else:
            assert taken.kernel == kernel
        assert config.with_stack(taken) == config
        built = config.build()
        assert built.learns_by_steps
        model = built.model()
        batch = built.train_batch(torch.arange(2), torch.Generator().manual_seed(0))
        built.loss(model, batch).backward()
        assert any(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in model.parameters())


@pytest.mark.parametrize("task", [task for task in TASKS if task not in WITHOUT_KERNEL], ids=lambda task: task.command)
def test_a_run_that_starts_from_another_has_its_kernel(task: type[Task]) -> None:
    default: Any = task.Config()  # pyright: ignore[reportAbstractUsage, reportCallIssue]
    kernel = kernel_of("linear-attention", default.kernel_sigma)
    trained = default.with_stack(dataclasses.replace(default.stack, kernel=kernel, embed_dim=24))
    followed = default.inheriting(Trained(trained, Task.Facts()))
    assert followed.stack == trained.stack


def test_a_model_without_a_kernel_is_refused(tasks: dict[str, Task.Config]) -> None:
    images = tasks["ImageLearning.Config"]
    with refused(ValueError, "model=InfViT has no kernel to choose"):
        _ = dataclasses.replace(images, model=InfViT.Config()).stack  # pyright: ignore[reportCallIssue]


def test_edges_keep_the_mass_of_the_default_model() -> None:
    for config, mass in (
        (GraphLearning.Config(), "sum"),
        (NodeLearning.Config(), "symmetric"),
        (LinkLearning.Config(), "mean"),
    ):
        taken = config.with_stack(dataclasses.replace(config.stack, kernel=AttentionConfig())).stack.kernel
        assert isinstance(taken, OnEdgesConfig)
        assert taken.edge_mass == mass
