"""Operators on sampled functions: digits of MNIST, solutions of the Poisson equation, Darcy flow.

Command:   fredholm train mnist_fields
           python recipes/field_operators.py && fredholm train poisson_fields
           fredholm train darcy_fields
           python recipes/field_operators.py runs/poisson_fields/seed-0   (how its fields move with their samples)
Hardware:  one core of an Intel Xeon, shared with other work; float32
Time:      poisson 398 s of processor time, darcy 460 s; mnist not measured yet
Score:     relative error with seed 0: poisson 0.267 on 100 test solutions, 0.045 with --task refine-steps=100; darcy
           0.173 on 50; mnist not measured yet
Paper:     Neural Fields Meet Attention (appendices F and G): digits and Poisson solutions as fields. It does not state
           their reconstruction error; its equivariance errors are 0.013 and 0.0276
Data:      ../shared/data/mnist, ../shared/data/neuralop_pde, and what this file computes

mnist      784 pixels a digit, of which the operator sees 196 at random and tells all
poisson    -Δu = f on the unit square, u = 0 on its border, f a sum of one to five Gaussian bumps, by the five-point
           stencil on 28 x 28 inner nodes and conjugate gradients; 1,000 + 100 solutions. The operator sees 196 values
           of u and tells all
darcy      the solution from the coefficient, both on 16 x 16 nodes; 1,000 + 50 pairs

Deviations: the paper's operator has 128 channels, 4 layers and 8 heads and is trained for 200 to 500 steps. Here 64
channels, 3 layers and 4 heads, and many more steps.
"""

import sys
from pathlib import Path

import numpy as np
import scipy.sparse
import scipy.sparse.linalg
import torch
from torch import Tensor, nn

from fredholm.domains import Points
from fredholm.models import FieldOperator
from fredholm.tasks import FieldLearning
from fredholm.training import Run, TrainingConfig
from fredholm.training.progress import print_line

POISSON = Path("runs/poisson.npz")
"""Where solutions are written to and read from."""
NODES = 28
BUMPS = 5
"""At most so many in a right-hand side."""
WIDTHS = (0.05, 0.2)
"""Least and largest standard deviation of a bump."""
SCALE, SHIFT = 1.5, (0.3, -0.3)
"""The motion of the paper's test."""


def mnist_fields() -> Run.Config:
    """Digits from a quarter of their pixels."""
    return _fields("../shared/data/mnist", omega_0=20.0, epochs=2, shown=196, wanted=256)


def poisson_fields() -> Run.Config:
    """Solutions of the Poisson equation from a quarter of their values."""
    return _fields(str(POISSON), omega_0=5.0, epochs=60, shown=196, wanted=256)


def darcy_fields() -> Run.Config:
    """Solutions of Darcy flow from the coefficient."""
    return _fields("../shared/data/neuralop_pde/neuralop_pde.npz", omega_0=8.0, epochs=60, shown=None, wanted=None)


def _fields(data: str, *, omega_0: float, epochs: int, shown: int | None, wanted: int | None) -> Run.Config:
    return Run.Config(
        task=FieldLearning.Config(
            data=data,
            shown=shown,
            wanted=wanted,
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
            test_batch_size=50,
        ),
    )


def laplacian(nodes: int) -> scipy.sparse.csr_matrix:
    """-Δ by the five-point stencil on `nodes` x `nodes` inner nodes of the unit square, 0 on its border."""
    identity = scipy.sparse.eye(nodes)
    line = 2 * identity - scipy.sparse.eye(nodes, k=1) - scipy.sparse.eye(nodes, k=-1)
    return (nodes + 1) ** 2 * (scipy.sparse.kron(line, identity) + scipy.sparse.kron(identity, line)).tocsr()


def inner_nodes(nodes: int) -> np.ndarray:
    """Their places, `(nodes², 2)`."""
    axis = np.arange(1, nodes + 1) / (nodes + 1)
    return np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)


def draw_bumps(pos: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """A right-hand side at places `(N, 2)`: one to five bumps of either sign."""
    count = generator.integers(1, BUMPS + 1)
    centres, widths = generator.uniform(0.1, 0.9, (count, 1, 2)), generator.uniform(*WIDTHS, (count, 1))
    heights = generator.standard_normal((count, 1))
    distances = ((pos - centres) ** 2).sum(-1)
    return (heights * np.exp(-distances / (2 * widths**2))).sum(0)


def write_poisson(path: Path, *, num_train: int = 1000, num_test: int = 100, seed: int = 0) -> None:
    """Solves for all right-hand sides and writes the solutions as `fredholm train field` reads them.

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


@torch.no_grad()
def moved_errors(path: Path, num_fields: int = 50) -> dict[str, float]:
    """rms ‖f_gS(g x) - f_S(x)‖ / rms ‖f_S‖ for g(x) = 1.5 x + (0.3, -0.3), by precision, of a run's test functions."""
    run = Run(path, device="cpu")
    assert isinstance(run.task, FieldLearning)
    model = run.model()
    batch = run.task.test_batch(torch.arange(min(num_fields, run.task.num_test)))
    found = {}
    for dtype in (torch.float32, torch.float64):
        operator, values = model.to(dtype), batch["values"].to(dtype)
        shift = torch.tensor(SHIFT, dtype=torch.float64)

        def fields_at(scale: float, shift: Tensor, operator: nn.Module = operator, values: Tensor = values) -> Tensor:
            placed = operator(values, Points(scale * batch["pos"] + shift, mask=batch["mask"]))
            return placed(scale * batch["wanted_pos"] + shift).double()

        still, moved = fields_at(1.0, 0 * shift), fields_at(SCALE, shift)
        found[str(dtype).removeprefix("torch.")] = ((moved - still).norm() / still.norm()).item()
    return found


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print_line(f"{sys.argv[1]}: relative equivariance error {moved_errors(Path(sys.argv[1]))}")
    else:
        write_poisson(POISSON)
