"""What the paper on neural fields and attention claims in its tables 1 and 2, measured with norms beside the errors.

Command:   python recipes/field_claims.py
Hardware:  one core of an Intel Xeon, shared with other work; operators in float32, errors in float32 and float64
Time:      groups some four minutes a seed, temperature a second
Score:     see docs/studies/neural_fields.md
Paper:     Neural Fields Meet Attention, tables 1 and 2

Parts    groups       operators trained on random functions, then turned: SO(2) and SO(3), by kind of attention, without
                      a frame, with absolute positions, with the paper's frame (centroid and size) and with axes
         temperature  softmax attention at temperatures 1 to 1,000 beside the gradient: correlation, errors, exponents

Deviations: the paper gives errors alone; here they are also relative to the field's norm, since a field near 0 turns
with anything, and operators are trained until it is of order 1. Its operator reads centroid and size, which do not turn
with the samples; "axes" is `fields.Rotational`. Functions are sums of three Gaussian bumps on 100 places drawn from a
skewed density, since a symmetric cloud has no axes. 8 functions a step.
"""

import json
import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import tyro
from torch import Tensor

from fredholm import analysis, fields
from fredholm.domains import Points
from fredholm.models import FieldOperator
from fredholm.training.progress import print_line

Part = Literal["groups", "temperature"]
PARTS: tuple[Part, ...] = Part.__args__
PLACES = 100
TEMPERATURES = (1.0, 10.0, 100.0, 1000.0)
TERMS = 50
"""Sinusoids of the fields in the second part."""


class Setting(NamedTuple):
    """One row of table 1, with the frame that it needs."""

    name: str
    frame: fields.Frame
    attention: Literal["softmax", "linear"] = "softmax"
    temperature: float | None = None
    encoding: Literal["relative", "absolute"] = "relative"


SETTINGS = (
    Setting("linear, axes", fields.Rotational(proper=True), "linear"),
    Setting("softmax, temperature 1, axes", fields.Rotational(proper=True), temperature=1.0),
    Setting("softmax, temperature 100, axes", fields.Rotational(proper=True), temperature=100.0),
    Setting("softmax, centroid and size", fields.Isotropic(), temperature=1.0),
    Setting("softmax, no frame", fields.Identity(), temperature=1.0),
    Setting("softmax, absolute positions", fields.Rotational(proper=True), temperature=1.0, encoding="absolute"),
)


@dataclass(frozen=True, kw_only=True)
class Config:
    """What is run, and where the results go."""

    out: Path = Path("runs/field_claims")
    """Folder of results.json; what it has is not run again."""
    parts: tuple[Part, ...] = PARTS
    """Which parts."""
    seeds: tuple[int, ...] = tuple(range(10))
    """A run for each."""
    steps: int = 200
    """Of training, in the first part."""
    embed_dim: int = 128
    """Channels of the operator."""
    depth: int = 4
    """Its blocks."""

    def __post_init__(self) -> None:
        for name in ("steps", "embed_dim", "depth"):
            if getattr(self, name) < 1:
                raise ValueError(f"field_claims: {name} must be at least 1; got {getattr(self, name)}")


def draw_functions(count: int, dim: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Places `(count, 100, dim)` and values `(count, 100, 1)` of bumps of size 1."""
    x = torch.rand(count, PLACES, dim, generator=generator) ** 2 * torch.arange(1.0, dim + 1)
    x = x - x.mean(1, keepdim=True)
    centres = x[:, torch.randperm(PLACES, generator=generator)[:3]]
    heights = torch.randn(count, 3, generator=generator)
    distances = (x[:, :, None] - centres[:, None]).square().sum(-1)
    return x, (torch.exp(-3 * distances) @ heights[..., None]) * 2


def train_operator(setting: Setting, dim: int, seed: int, config: Config) -> FieldOperator:
    """An operator after its steps, in evaluation mode."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    own = FieldOperator.Config(
        embed_dim=config.embed_dim,
        depth=config.depth,
        num_heads=4,
        attention=setting.attention,
        temperature=setting.temperature,
        encoding=setting.encoding,
    )
    operator = FieldOperator(dim, fields.SIREN(dim, omega_0=5.0), setting.frame, own)
    optimizer = torch.optim.AdamW(operator.parameters(), lr=3e-4, weight_decay=5e-5)
    for _ in range(config.steps):
        x, y = draw_functions(8, dim, generator)
        loss = (operator(y, Points(x))(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return operator.eval()


def measure_group(setting: Setting, dim: int, seed: int, config: Config) -> dict[str, Any]:
    """Errors of ten rotations of four sets of samples, at 50 places, in both precisions."""
    operator = train_operator(setting, dim, seed, config)
    x, y = draw_functions(4, dim, torch.Generator().manual_seed(10_000 + seed))
    with torch.no_grad():
        misfit = (operator(y, Points(x))(x) - y).norm() / y.norm()
    found: dict[str, Any] = {"part": "groups", "name": setting.name, "dim": dim, "seed": seed, "misfit": misfit.item()}
    for kind in (torch.float32, torch.float64):
        generator = torch.Generator().manual_seed(seed)
        error = analysis.equivariance_error(
            operator.to(kind),
            analysis.Rotations(),
            y.to(kind),
            Points(x.to(kind)),
            query_pos=x[:, :50],
            generator=generator,
        )
        word = str(kind).removeprefix("torch.")
        found |= {f"absolute_{word}": error.absolute.mean().item(), f"relative_{word}": error.relative.mean().item()}
        found["norm"] = error.norm.mean().item()
    return found


def measure_temperature(seed: int) -> dict[str, Any]:
    """Softmax attention beside the gradient for one field of 50 sinusoids at 100 places, in float64."""
    torch.manual_seed(seed)
    basis = fields.SinusoidalField(2, num_terms=TERMS).double()
    x = 2 * torch.rand(1, PLACES, 2, dtype=torch.float64) - 1
    features = basis.basis(x)
    residual = torch.randn(1, PLACES, 1, dtype=torch.float64)
    residual = residual - residual.mean(1, keepdim=True)
    exact, selectors = analysis.negative_gradient(features, residual), torch.eye(TERMS, dtype=torch.float64)
    found: dict[str, Any] = {"part": "temperature", "seed": seed, "rows": []}
    remainders, errors = [], []
    for temperature in TEMPERATURES:
        part = analysis.softmax_expansion(selectors, features, residual, temperature)
        remainders.append(part.remainder.norm())
        errors.append((part.gradient - exact).norm() / exact.norm())
        raw = torch.corrcoef(torch.stack([part.output.flatten(), exact.flatten()]))[0, 1].item()
        found["rows"].append(
            {
                "temperature": temperature,
                "correlation": raw,
                "gradient_error": errors[-1].item(),
                "remainder_over_bound": (part.remainder.abs() / part.bound).max().item(),
            }
        )
    late = torch.tensor(TEMPERATURES[1:])
    found["remainder_exponent"] = analysis.decay_exponent(late, torch.stack(remainders[1:]))
    found["error_exponent"] = analysis.decay_exponent(late, torch.stack(errors[1:]))
    return found


def interval(values: list[float]) -> str:
    """The mean and half of its 95 % interval by Student's t."""
    mean = statistics.mean(values)
    if len(values) < 2:
        return f"{mean:.3g}"
    from scipy.stats import t

    half = t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return f"{mean:.3g} +- {half:.1g}"


def tell(results: list[dict[str, Any]]) -> None:
    """A line for every setting and temperature: means over seeds with their 95 % intervals."""
    groups = [r for r in results if r["part"] == "groups"]
    for dim, name in dict.fromkeys((r["dim"], r["name"]) for r in groups):
        own = [r for r in groups if (r["dim"], r["name"]) == (dim, name)]
        told = {
            key: interval([r[key] for r in own])
            for key in ("absolute_float32", "relative_float32", "relative_float64", "norm", "misfit")
        }
        print_line(f"SO({dim}) {name:<32} {told} ({len(own)} seeds)")
    heated = [r for r in results if r["part"] == "temperature"]
    for place, temperature in enumerate(TEMPERATURES if heated else ()):
        told = {
            key: interval([r["rows"][place][key] for r in heated])
            for key in ("correlation", "gradient_error", "remainder_over_bound")
        }
        print_line(f"temperature {temperature:<6g} {told} ({len(heated)} seeds)")
    for key in ("remainder_exponent", "error_exponent") if heated else ():
        print_line(f"{key}: {interval([r[key] for r in heated])}")


def main(config: Config) -> None:
    """Runs what results.json does not have yet and prints the tables."""
    torch.set_num_threads(1)
    config.out.mkdir(parents=True, exist_ok=True)
    path = config.out / "results.json"
    results: list[dict[str, Any]] = json.loads(path.read_text()) if path.is_file() else []

    def keep(found: dict[str, Any], **settings: Any) -> None:
        results.append(found | settings)
        path.write_text("[\n" + ",\n".join(json.dumps(r) for r in results) + "\n]\n")

    own = {"steps": config.steps, "embed_dim": config.embed_dim, "depth": config.depth}
    done = {(r.get("name"), r.get("dim"), r["seed"], *(r.get(name) for name in own)) for r in results}
    for seed in config.seeds if "groups" in config.parts else ():
        for setting in SETTINGS:
            for dim in (2, 3):
                if (setting.name, dim, seed, *own.values()) not in done:
                    keep(measure_group(setting, dim, seed, config), **own)
                    print_line(f"SO({dim}) {setting.name}, seed {seed}: {results[-1]['relative_float64']:.2g}")
    for seed in config.seeds if "temperature" in config.parts else ():
        if (None, None, seed, None, None, None) not in done:
            keep(measure_temperature(seed))
    tell([r for r in results if all(r.get(name, value) == value for name, value in own.items())])


if __name__ == "__main__":
    main(tyro.cli(Config, description=(__doc__ or "").partition("\n")[0]))
