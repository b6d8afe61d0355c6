"""Recipes of operators on functions: solutions solve their equation, and each recipe builds its task."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from fredholm.models.fields.neural_field import FieldOperator
from fredholm.tasks import FieldLearning
from fredholm.tasks.fields import read_npz
from fredholm.tasks.splits.splits import Splits
from fredholm.training import Run, train
from recipes import field_operators as study


def test_the_stencil_is_the_laplacian_with_zero_boundary_values() -> None:
    errors = []
    for nodes in (15, 31):
        pos = study.inner_nodes(nodes)
        exact = np.sin(np.pi * pos[:, 0]) * np.sin(2 * np.pi * pos[:, 1])
        errors.append(np.abs(study.laplacian(nodes) @ exact - 5 * np.pi**2 * exact).max())
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.05)  # of second order


def test_solutions_solve_the_equation_and_are_read_with_their_split(tmp_path: Path) -> None:
    study.write_poisson(tmp_path / "new" / "p.npz", num_train=3, num_test=2)
    found = read_npz(tmp_path / "new" / "p.npz")
    assert isinstance(found, Splits)
    assert (len(found.train), len(found.held_out("test")), found.train.channels) == (3, 2, ("u",))
    values = found.train.given.values[0, :, 0].double().numpy()
    generator = np.random.default_rng(0)
    right = study.draw_bumps(study.inner_nodes(study.NODES), generator)
    np.testing.assert_allclose(study.laplacian(study.NODES) @ values, right, atol=1e-3 * np.abs(right).max())


def test_right_hand_sides_differ() -> None:
    generator, pos = np.random.default_rng(0), study.inner_nodes(9)
    assert len({float(study.draw_bumps(pos, generator).sum()) for _ in range(20)}) == 20


def test_each_recipe_names_its_data() -> None:
    for recipe, data in (
        (study.mnist_fields, "mnist"),
        (study.poisson_fields, "poisson.npz"),
        (study.darcy_fields, "neuralop_pde.npz"),
    ):
        task = recipe().task
        assert isinstance(task, FieldLearning.Config)
        assert task.data.endswith(data)


@pytest.mark.slow
def test_fields_of_a_run_are_equivariant(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study.write_poisson(tmp_path / "p.npz", num_train=4, num_test=2)
    run = study.poisson_fields()
    assert isinstance(run.task, FieldLearning.Config)
    small = FieldOperator.Config(embed_dim=8, depth=1, num_heads=2, num_seeds=2, head_dim=8)
    for frame, covers in (("isotropic", True), ("identity", False)):
        task = dataclasses.replace(run.task, data=str(tmp_path / "p.npz"), model=small, frame=frame)
        training = dataclasses.replace(run.training, epochs=1, tensorboard=False, device="cpu")
        train(dataclasses.replace(run, task=task, training=training), tmp_path / frame)
        run_folder = Run(tmp_path / frame, device="cpu")
        for dtype, bound in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
            found = study.moved_fields(run_folder, dtype)
            assert found.still.shape == (2, study.NODES**2, 1)
            assert (found.errors()["relative"] < bound) == covers
    study.print_moved(tmp_path / "isotropic")
    assert "float64: differences of 2 fields: relative " in capsys.readouterr().out
    assert (tmp_path / "isotropic" / "moved.png").stat().st_size > 10_000


@pytest.mark.parametrize("downwards", [True, False])
def test_pictures_are_drawn_with_rows_downwards_or_with_axes_right_and_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, downwards: bool
) -> None:
    pos = torch.tensor([[[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]])
    values = torch.tensor([[[1.0], [2.0], [4.0]]])
    batch = {"pos": pos, "mask": torch.tensor([[True, True, False]]), "values": values}
    found = study.Moved(batch | {"target_pos": pos, "target_values": values}, values, 2 * values)
    plt = pytest.importorskip("matplotlib.pyplot")
    with monkeypatch.context() as kept:
        kept.setattr(plt, "close", lambda figure: None)
        study.draw(found, tmp_path / "moved.png", downwards=downwards)
        figure = plt.gcf()
    expected = pos[0].flip(-1) if downwards else pos[0]
    panels = figure.axes[:5]
    assert all(axes.yaxis_inverted() == downwards for axes in panels)
    shown = [torch.tensor(np.asarray(axes.collections[0].get_offsets())) for axes in panels]
    for places, of in zip(shown, (expected[:2], *[expected] * 4), strict=True):
        torch.testing.assert_close(places, of.double())
    drawn = [axes.collections[0].get_array().tolist() for axes in panels]
    assert drawn == [[1, 2], [1, 2, 4], [1, 2, 4], [2, 4, 8], [1, 2, 4]]
    plt.close(figure)


def test_errors_match_their_names() -> None:
    still = torch.tensor([[[3.0], [4.0]]], dtype=torch.float64)
    found = study.Moved({}, still, still + torch.tensor([[[0.0], [-1.0]]])).errors()
    assert found == pytest.approx({"relative": 0.2, "absolute": 0.5, "squared": 0.5})
