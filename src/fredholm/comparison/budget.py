"""Number of epochs for a budget in minutes, and the runs of the learning-rate search.

Legend
    E             epochs of a final run: the number that suits the data, or fewer: 1, 2, 3, 4, 6, 8, 12, 16, 24, ...
    S, P          seeds, and processes side by side
    e_1 < e_2     epochs of the two rungs of the search, E/4 and E/2 rounded down, at least 1; equal ones are one rung
    n_1, n_2      runs of a rung: 5 learning rates, then the better 2
    c_k           seconds of an epoch of kernel k: its steps, measured alone, with its share of evaluations

    T(E) = 1.25 (Σ_k c_k (n_1 e_1 + n_2 e_2 + S E) / P + (1 - 1/P) max_k c_k E)

E is the largest value of the grid with T(E) within the minutes. The second term is that of Graham's bound for list
scheduling, for the last run that others wait for; 1.25 allows for checkpoints, the evaluation on the test split, and
processes that share memory.
"""

import math
from collections.abc import Sequence

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Learning rates of the search, as multiples of the one that suits the task."""
MARGIN = 1.25


def rungs(epochs: int) -> tuple[int, ...]:
    """Returns the epochs of the runs of each rung, increasing."""
    return tuple(sorted({max(1, epochs // 4), max(1, epochs // 2)}))


def num_kept(num_runs: int) -> int:
    """Returns the number of runs that pass to the next rung: half of them, at least 1."""
    return max(1, num_runs // 2)


def num_epochs(epochs: int, seeds: int) -> int:
    """Returns the epochs of all runs of one kernel: n_1 e_1 + n_2 e_2 + S E."""
    total, runs = seeds * epochs, len(FACTORS)
    for rung in rungs(epochs):
        total, runs = total + runs * rung, num_kept(runs)
    return total


def seconds(epochs: int, seeds: int, costs: Sequence[float], processes: int) -> float:
    """Returns T(E), from the seconds c_k of an epoch of each kernel."""
    work = sum(costs) * num_epochs(epochs, seeds) / processes
    return MARGIN * (work + (1 - 1 / processes) * max(costs) * epochs)


def grid(most: int) -> list[int]:
    """Returns 1, 2, 3, 4, 6, 8, 12, 16, 24, ... below `most`, and `most`, which is at least 1."""
    powers = [2**k for k in range(int(math.log2(most)) + 1)]
    between = [3 * power for power in powers]
    return sorted({each for each in powers + between if each < most} | {most})


def epochs_within(minutes: float, seeds: int, costs: Sequence[float], processes: int, most: int) -> int:
    """Returns E for a number of minutes.

    Args:
        minutes: budget of all training.
        seeds: S.
        costs: c_k of every kernel.
        processes: P.
        most: number of epochs that suits the data.

    Raises:
        ValueError: the minutes are too few for one epoch of each kernel.
    """
    fitting = [epochs for epochs in grid(most) if seconds(epochs, seeds, costs, processes) <= 60 * minutes]
    if not fitting:
        needed = seconds(1, seeds, costs, processes) / 60
        raise ValueError(
            f"minutes={minutes:g} is too little: one epoch of each of {len(costs)} models with {seeds} seeds, and the "
            f"search of their learning rates, need about {math.ceil(10 * needed) / 10:g} minutes here; pass more "
            "minutes, fewer kernels or fewer seeds"
        )
    return fitting[-1]
