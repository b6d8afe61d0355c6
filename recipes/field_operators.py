"""Train operators on sampled functions: digits of MNIST, solutions of the Poisson equation, Darcy flow.

Command:   fredholm train mnist_fields
           python recipes/field_operators.py && fredholm train poisson_fields
           fredholm train darcy_fields
           python recipes/field_operators.py runs/poisson_fields/seed-0   (equivariance of its fields)
Modality:  functions
Hardware:  one core of a two-core AMD EPYC, darcy of an Intel Xeon, shared with other work; float32
Time:      processor time a seed: poisson 540 s, mnist 1,100 s, darcy 460 s
Score:     see docs/studies/neural_fields.md
Paper:     Neural Fields Meet Attention (appendices F and G): digits and Poisson solutions as fields. It does not state
           their reconstruction error; its equivariance errors are 0.013 and 0.0276

mnist      784 pixels a digit, of which the operator sees 196 at random and predicts all
poisson    -Δu = f on the unit square, u = 0 on its border, f a sum of one to five Gaussian bumps, by the five-point
           stencil on 28 x 28 inner nodes and conjugate gradients; 1,000 + 100 solutions. The operator sees 196 values
           of u and predicts all
darcy      the solution from the coefficient, both on 16 x 16 nodes; 1,000 + 50 pairs

Deviations: the paper's operator has 128 channels, 4 layers and 8 heads and is trained for 200 to 500 steps. Here 64
channels, 3 layers and 4 heads, and many more steps.
"""

import importlib.util
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.sparse
import scipy.sparse.linalg
import torch
from torch import Tensor

from fredholm.domains import Points
from fredholm.models.fields.neural_field import FieldOperator
from fredholm.tasks import FieldLearning
from fredholm.tasks.task import Batch
from fredholm.training import Run, TrainingConfig
from fredholm.training.progress import print_line

POISSON = Path("runs/poisson.npz")
"""File of the solutions."""
NODES = 28
BUMPS = 5
"""Largest number of bumps in a right-hand side."""
WIDTHS = (0.05, 0.2)
"""Smallest and largest standard deviation of a bump."""
SCALE, SHIFT = 1.5, (0.3, -0.3)
"""The motion of the paper's test."""


def mnist_fields() -> Run.Config:
    """Train an operator that completes digits from a quarter of their pixels.

    Data:  MNIST in ../shared/data/mnist
    Get:   the four idx files, gzipped or not, from https://ossci-datasets.s3.amazonaws.com/mnist; then --task.data
           FOLDER
    Time:  1,100 s of processor time a seed
    """
    return _fields("../shared/data/mnist", omega_0=20.0, epochs=2, shown=196, target_samples=256)


def poisson_fields() -> Run.Config:
    """Train an operator that completes solutions of the Poisson equation from a quarter of their values.

    Data:  solutions that python recipes/field_operators.py computes into runs/poisson.npz
    Get:   run python recipes/field_operators.py in a checkout; or use other functions by --task.data FILE
    Time:  540 s of processor time a seed
    """
    return _fields(str(POISSON), omega_0=5.0, epochs=60, shown=196, target_samples=256)


def darcy_fields() -> Run.Config:
    """Train an operator that solves Darcy flow from the coefficient.

    Data:  Darcy flow in ../shared/data/neuralop_pde
    Get:   darcy_*.pt of https://github.com/neuraloperator/neuraloperator, saved by numpy as neuralop_pde.npz with the
           arrays darcy_train_16_x, darcy_train_16_y and so on; then --task.data PATH/neuralop_pde.npz
    Time:  460 s of processor time a seed
    """
    return _fields(
        "../shared/data/neuralop_pde/neuralop_pde.npz", omega_0=8.0, epochs=60, shown=None, target_samples=None
    )


def _fields(data: str, *, omega_0: float, epochs: int, shown: int | None, target_samples: int | None) -> Run.Config:
    return Run.Config(
        task=FieldLearning.Config(
            valid_fraction=0.0,
            data=data,
            shown=shown,
            target_samples=target_samples,
            omega_0=omega_0,
            model=FieldOperator.Config(embed_dim=64, depth=3, num_heads=4, num_seeds=8, head_dim=256, sigma=1.0),
        ),
        training=TrainingConfig(
            epochs=epochs,
            batch_size=32,
            learning_rate=1e-3,
            warmup_fraction=0.05,
            weight_decay=5e-5,
            ema_decay=0.99,
            evaluate_every=max(1, epochs // 6),
            evaluation_batch_size=50,
        ),
    )


def laplacian(nodes: int) -> scipy.sparse.csr_matrix:
    """-Δ by the five-point stencil on `nodes` x `nodes` inner nodes of the unit square, 0 on its border."""
    identity = scipy.sparse.eye(nodes)
    line = 2 * identity - scipy.sparse.eye(nodes, k=1) - scipy.sparse.eye(nodes, k=-1)
    return (nodes + 1) ** 2 * (scipy.sparse.kron(line, identity) + scipy.sparse.kron(identity, line)).tocsr()


def inner_nodes(nodes: int) -> np.ndarray:
    """Positions of the inner nodes, `(nodes², 2)`."""
    axis = np.arange(1, nodes + 1) / (nodes + 1)
    return np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)


def draw_bumps(pos: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """A right-hand side at positions `(N, 2)`: one to five bumps of either sign."""
    count = generator.integers(1, BUMPS + 1)
    centres, widths = generator.uniform(0.1, 0.9, (count, 1, 2)), generator.uniform(*WIDTHS, (count, 1))
    heights = generator.standard_normal((count, 1))
    distances = ((pos - centres) ** 2).sum(-1)
    return (heights * np.exp(-distances / (2 * widths**2))).sum(0)


def write_poisson(path: Path, *, num_train: int = 1000, num_test: int = 100, seed: int = 0) -> None:
    """Solves for all right-hand sides and writes the solutions in the format of `fredholm train field`.

    Raises:
        RuntimeError: conjugate gradients did not converge.
    """
    generator, pos, matrix = np.random.default_rng(seed), inner_nodes(NODES), laplacian(NODES)
    solutions = []
    for _ in range(num_train + num_test):
        solution, failed = scipy.sparse.linalg.cg(matrix, draw_bumps(pos, generator), rtol=1e-10)
        if failed:
            raise RuntimeError(f"conjugate gradients did not converge ({failed} steps)")
        solutions.append(solution)
    path.parent.mkdir(parents=True, exist_ok=True)
    is_test = np.arange(num_train + num_test) >= num_train
    np.savez(path, values=np.stack(solutions), pos=pos, is_test=is_test, channels=["u"])
    print_line(f"{path}: {num_train} + {num_test} solutions on {NODES} x {NODES} nodes")


class Moved(NamedTuple):
    """Fields of test functions at the target positions, from the original samples and from moved ones."""

    batch: Batch
    still: Tensor
    """f_S(x), `(n, Q, m)`, float64."""
    moved: Tensor
    """f_gS(g x)."""

    def errors(self) -> dict[str, float]:
        """Norm of the difference over the norm of the fields, and the mean absolute and squared difference."""
        difference = self.moved - self.still
        return {
            "relative": (difference.norm() / self.still.norm()).item(),
            "absolute": difference.abs().mean().item(),
            "squared": difference.square().mean().item(),
        }


@torch.no_grad()
def moved_fields(run: Run, dtype: torch.dtype, num_fields: int = 50) -> Moved:
    """A run's test functions under g(x) = 1.5 x + (0.3, -0.3), computed in ``dtype``."""
    assert isinstance(run.task, FieldLearning)
    operator = run.model().to(dtype)
    batch = run.task.held_out_batch("test", torch.arange(min(num_fields, run.task.num_held_out("test"))))
    values = batch["values"].to(dtype)

    def fields_at(scale: float, shift: Tensor) -> Tensor:
        placed = operator(values, Points(scale * batch["pos"] + shift, mask=batch["mask"]))
        return placed(scale * batch["target_pos"] + shift).double()

    shift = torch.tensor(SHIFT, dtype=torch.float64)
    return Moved(batch, fields_at(1.0, 0 * shift), fields_at(SCALE, shift))


def draw(found: Moved, path: Path, *, downwards: bool, num_fields: int = 3) -> None:
    """Draws the operator's samples, the true function, both fields and their difference, one row per function.

    Args:
        downwards: the first coordinate runs down and the second right, as rows and columns of an image; otherwise the
            first runs right and the second up.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    batch = found.batch
    rows = min(num_fields, len(found.still))
    figure, panels = plt.subplots(rows, 5, figsize=(14, 2.7 * rows), squeeze=False, layout="constrained")
    for index, row in enumerate(panels):
        shown = batch["mask"][index]
        seen_at, target_pos = (
            pos[index].flip(-1) if downwards else pos[index] for pos in (batch["pos"], batch["target_pos"])
        )
        true = batch["target_values"][index, :, 0]
        colours = {"vmin": true.min().item(), "vmax": true.max().item(), "cmap": "viridis"}
        seen = row[0].scatter(*seen_at[shown].T, c=batch["values"][index, shown, 0], s=9, cmap="viridis")
        figure.colorbar(seen, ax=row[0])
        shown_values = (true, found.still[index, :, 0], found.moved[index, :, 0])
        drawn = [
            axes.scatter(*target_pos.T, c=values, s=12, marker="s", **colours)
            for axes, values in zip(row[1:4], shown_values, strict=True)
        ]
        figure.colorbar(drawn[-1], ax=row[3])
        difference = (found.moved - found.still)[index, :, 0].abs()
        figure.colorbar(row[4].scatter(*target_pos.T, c=difference, s=12, marker="s", cmap="magma"), ax=row[4])
        for axes in row:
            axes.set(aspect="equal", xticks=[], yticks=[])
            if downwards:
                axes.invert_yaxis()
    for axes, title in zip(
        panels[0], ("samples", "function", "field of samples", "of moved samples", "difference"), strict=True
    ):
        axes.set_title(title, fontsize=10)
    figure.savefig(path, dpi=75)
    plt.close(figure)


def print_moved(path: Path) -> None:
    """Prints the equivariance errors of a run's fields in both precisions, and draws moved.png into its folder."""
    if importlib.util.find_spec("matplotlib") is None:
        raise SystemExit("field_operators: the figure needs matplotlib: pip install 'fredholm[viz]'")
    run = Run(path, device="cpu")
    for dtype in (torch.float32, torch.float64):
        found = moved_fields(run, dtype)
        errors = ", ".join(f"{name} {value:.2g}" for name, value in found.errors().items())
        print_line(f"{path}, {str(dtype).removeprefix('torch.')}: differences of {len(found.still)} fields: {errors}")
    assert isinstance(run.task, FieldLearning)
    draw(found, path / "moved.png", downwards=run.task.facts.coordinates[0] == "y")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        for folder in sys.argv[1:]:
            print_moved(Path(folder))
    else:
        write_poisson(POISSON)
