"""Compare forecasts of generated nonlinear series with a linear function and with boosting on lags.

Command:   python recipes/forecasts_nonlinear.py --seeds 10 13
Modality:  series
Hardware:  one core of an AMD EPYC, shared with other work; in closed form
Time:      five minutes
Score:     see docs/models/lag_machine.md
Data:      generated here, by seeds

Sides    default     `fredholm train forecast` at its defaults, a lag machine
         linear      the same without the kernel: a linear function of the window, `--task.model filter-bank`
         boosting    scikit-learn's histogram gradient boosting on the same windows, with the same base forecast, one
                     regression for each step ahead

Numbers are MASE on the last fifth, geometric means over seeds.
"""

import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from numpy.random import Generator

from fredholm.models import FilterBank
from fredholm.tasks import Forecasting
from fredholm.training import seed_everything
from fredholm.training.progress import print_line

SIDES = ("default", "linear", "boosting")
LINEAR = FilterBank.Config(num_thresholds=0, num_groups=0, num_lags=1024)


@dataclass(frozen=True, kw_only=True)
class Config:
    """Series and forecasts to compare.

    Args:
        series: names of the series; (): all.
        sides: forecasts; see the docstring of this file.
        seeds: the first seed, and the one after the last.
    """

    series: tuple[str, ...] = ()
    sides: tuple[str, ...] = SIDES
    seeds: tuple[int, int] = (10, 13)


def delayed(draw: Generator) -> np.ndarray:
    """The chaotic Mackey-Glass equation, with noise."""
    x = [*(1.2 + 0.2 * draw.normal(size=18))]
    for _ in range(600 * 6 + 300):
        x.append(x[-1] + 0.2 * x[-18] / (1 + x[-18] ** 10) - 0.1 * x[-1])
    return np.array(x[300::6])[:600] + 0.02 * draw.normal(size=600)


def lorenz(draw: Generator) -> np.ndarray:
    """A coordinate of the Lorenz system, with noise."""
    s, found = np.ones(3) + 0.1 * draw.normal(size=3), []
    for _ in range(7000):
        x, y, z = s
        s = s + 0.008 * np.array([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z])
        found.append(s[0])
    return np.array(found[500::10]) + 0.2 * draw.normal(size=650)


def population(draw: Generator) -> np.ndarray:
    """Ricker's population model, which grows and collapses."""
    x = [1.0]
    for _ in range(450):
        x.append(x[-1] * math.exp(2.6 * (1 - x[-1]) + 0.1 * draw.normal()))
    return np.array(x[51:])


def threshold(draw: Generator) -> np.ndarray:
    """An autoregression with other coefficients above a threshold."""
    x = [0.0]
    for _ in range(600):
        x.append((0.9 * x[-1] + 1 if x[-1] < 1 else -0.8 * x[-1] + 0.2) + 0.3 * draw.normal())
    return np.array(x)


def charging(draw: Generator) -> np.ndarray:
    """A level that rises at varying rates and drops to zero at ten."""
    found, x = list[float](), 0.0
    while len(found) < 500:
        rate = 0.8 + 0.4 * draw.random()
        while x < 10:
            x += rate * (1 + 0.1 * draw.normal())
            found.append(x)
        x = 0.5 * draw.normal()
    return np.array(found[:500]) + 0.2 * draw.normal(size=500)


def capped(draw: Generator) -> np.ndarray:
    """An hourly demand with daily and weekly seasons, limited by a capacity."""
    t = np.arange(900)
    demand = 10 + 3 * np.sin(t * 2 * np.pi / 24) + 2 * np.sin(t * 2 * np.pi / 168) + 0.5 * draw.normal(size=900)
    return np.minimum(demand, 11.5)


def hunted(draw: Generator) -> np.ndarray:
    """Predators and prey, two channels."""
    prey, hunters, found = 1.0, 1.0, list[tuple[float, float]]()
    for _ in range(6000):
        eaten = prey * hunters / (1 + prey)
        prey, hunters = prey + 0.03 * (prey * (1 - prey / 3) - eaten), hunters + 0.03 * (eaten - 0.35 * hunters)
        prey, hunters = (each * math.exp(0.01 * draw.normal()) for each in (prey, hunters))
        found.append((prey, hunters))
    return np.array(found[::15]) + 0.02 * draw.normal(size=(400, 2))


def linear(draw: Generator) -> np.ndarray:
    """An autoregression of order two."""
    x = [0.0, 0.0]
    for _ in range(600):
        x.append(1.5 * x[-1] - 0.7 * x[-2] + draw.normal())
    return np.array(x)


KINDS: dict[str, Callable[[Generator], np.ndarray]] = {
    each.__name__: each for each in (delayed, lorenz, population, threshold, charging, capped, hunted, linear)
}


def fitted(data: Path, **settings: Any) -> tuple[Forecasting, torch.nn.Module]:
    """A task with the recommended context, and its fitted model."""
    seed_everything(0)
    config = Forecasting.Config(data=str(data), **settings).recommended("small").config
    assert isinstance(config, Forecasting.Config)
    task = config.build()
    net = task.model()
    task.initialise(net, torch.device("cpu"))
    return task, net.eval()


def boosted(task: Forecasting) -> torch.nn.Module:
    """Gradient boosting on the windows of a task."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    learnt = task.train_batch(torch.arange(task.num_train), torch.Generator())
    x, targets = learnt["values"].flatten(1).numpy(), learnt["targets"].numpy()
    steps = [
        HistGradientBoostingRegressor(learning_rate=0.06, max_iter=150, max_leaf_nodes=15, random_state=0).fit(x, y)
        for y in targets.T
    ]

    class Boosted(torch.nn.Module):
        def forward(self, inputs: Any) -> torch.Tensor:
            values = inputs if isinstance(inputs, torch.Tensor) else inputs.values
            found = [step.predict(values.flatten(1).numpy()) for step in steps]
            return torch.from_numpy(np.stack(found, 1)).float()

    return Boosted()


def main(config: Config) -> None:
    """Prints a line for each kind of series: MASE of each side."""
    from fredholm.training.scoring import score_split

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        for name, make in KINDS.items():
            if config.series and name not in config.series:
                continue
            logs: dict[str, list[float]] = {side: [] for side in config.sides}
            for seed in range(*config.seeds):
                values = make(np.random.default_rng(seed)).reshape(-1, 2 if name == "hunted" else 1)
                data = Path(folder) / f"{name}-{seed}.csv"
                head = ",".join(f"y{c}" for c in range(values.shape[1]))
                rows = (f"{t},{','.join(f'{v:.6g}' for v in row)}" for t, row in enumerate(values))
                data.write_text("\n".join([f"time,{head}", *rows]))
                for side in config.sides:
                    task, net = fitted(data, model=LINEAR) if side == "linear" else fitted(data)
                    if side == "boosting":
                        net = boosted(task)
                    metrics = score_split(
                        task, "test", net, batch_size=64, device=torch.device("cpu"), dtype=torch.float32
                    )
                    logs[side].append(math.log(metrics["mase"]))
            found = "   ".join(f"{side} {math.exp(float(np.mean(each))):.3f}" for side, each in logs.items())
            print_line(f"{name:<12} {found}")


if __name__ == "__main__":
    main(tyro.cli(Config, description=(__doc__ or "").partition("\n")[0]))
