"""Measure the claims of tables 1 and 2 of the paper on neural fields and attention, with norms besides the errors.

Command:   python recipes/field_claims.py
Hardware:  one core of a two-core AMD EPYC, shared with other work; operators in float32, errors in both precisions
Time:      processor time a seed: groups 270 s, frames 205 s, temperature and samples a second
Score:     see docs/studies/neural_fields.md
Paper:     Neural Fields Meet Attention, tables 1 and 2, figures 3 and 6, table 6 (its numbers of samples)

Parts    groups       operators trained on random functions, then rotated: SO(2) and SO(3), by kind of attention,
                      without a frame, with absolute positions, with the paper's frame (centroid and size), with axes
         frames       operators with every frame, trained likewise in the plane, then moved by seven groups
         temperature  softmax attention at temperatures 1 to 1,000 against the gradient: correlation, errors, exponents
         samples      the same with 32 to 256 samples: whether softmax comes nearer with more samples

Deviations: the paper gives only errors; here they are also relative to the field's norm, since a field near 0 is
equivariant to anything, and operators are trained until the norm is of order 1. The paper's operator reads centroid and
size, which do not rotate with the samples; "axes" is `fields.Rotational`. Functions are sums of three Gaussian bumps at
100 positions drawn from a skewed density, since a symmetric cloud has no axes. 8 functions per step.
"""

import importlib.util
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import tyro
from torch import Tensor

from fredholm import analysis, fields
from fredholm.domains import Points
from fredholm.models.fields.neural_field import FieldOperator
from fredholm.training.progress import print_line

Part = Literal["groups", "frames", "temperature", "samples"]
PARTS: tuple[Part, ...] = Part.__args__
NUM_POSITIONS = 100
MOVES = 10
"""Moves drawn from each group."""
TEMPERATURES = tuple(10 ** (k / 4) for k in range(13))
SHOWN = TEMPERATURES[::4]
"""Temperatures of the table; the figure has all."""
LATE = TEMPERATURES[4:]
"""Temperatures over which exponents are fitted."""
SAMPLES = (32, 64, 128, 256)
SAMPLED_TEMPERATURES = (10.0, 25.0, 50.0, 100.0, 200.0)
TERMS = 50
"""Sinusoids of the fields that softmax attention is compared with."""


class Setting(NamedTuple):
    """One row of table 1, with its frame."""

    name: str
    frame: fields.Frame
    attention: Literal["softmax", "linear"] = "softmax"
    temperature: float | None = None
    encoding: Literal["relative", "absolute"] = "relative"

    @property
    def wraps(self) -> bool:
        """Whether the functions live on the torus."""
        return isinstance(self.frame, fields.Periodic)


SETTINGS = (
    Setting("linear, axes", fields.Rotational(proper=True), "linear"),
    Setting("softmax, temperature 1, axes", fields.Rotational(proper=True), temperature=1.0),
    Setting("softmax, temperature 100, axes", fields.Rotational(proper=True), temperature=100.0),
    Setting("softmax, centroid and size", fields.Isotropic(), temperature=1.0),
    Setting("softmax, no frame", fields.Identity(), temperature=1.0),
    Setting("softmax, absolute positions", fields.Rotational(proper=True), temperature=1.0, encoding="absolute"),
)

FRAMED = (
    Setting("isotropic", fields.Isotropic(), temperature=1.0),
    Setting("diagonal", fields.Diagonal(), temperature=1.0),
    Setting("rotational", fields.Rotational(), temperature=1.0),
    Setting("rotational, proper", fields.Rotational(proper=True), temperature=1.0),
    Setting("affine", fields.Affine(), temperature=1.0),
    Setting("periodic", fields.Periodic(), temperature=1.0),
    Setting("no frame", fields.Identity(), temperature=1.0),
    Setting("absolute positions", fields.Affine(), temperature=1.0, encoding="absolute"),
)
"""The operators of the second part."""
ROTATIONS: dict[str, analysis.Moves] = {"rotations": analysis.Rotations()}
GROUPS: dict[str, analysis.Moves] = ROTATIONS | {
    "translations": analysis.Translations(),
    "scalings": analysis.Scalings(),
    "scalings of axes": analysis.AnisotropicScalings(),
    "orthogonal maps": analysis.OrthogonalMaps(),
    "linear maps": analysis.LinearMaps(),
    "permutations": analysis.Permutations(),
}
"""Groups of moves of the second part."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """Runs of the study, and the folder of the results."""

    out: Path = Path("runs/field_claims")
    """Folder of results.json; results that it holds are not computed again."""
    parts: tuple[Part, ...] = PARTS
    """Parts to run."""
    seeds: tuple[int, ...] = tuple(range(10))
    """Seeds, with a run for each."""
    steps: int = 200
    """Training steps in the first two parts."""
    embed_dim: int = 128
    """Channels of the operator."""
    depth: int = 4
    """Blocks of the operator."""

    def __post_init__(self) -> None:
        for name in ("steps", "embed_dim", "depth"):
            if getattr(self, name) < 1:
                raise ValueError(f"field_claims: {name} must be at least 1; got {getattr(self, name)}")


def draw_functions(count: int, dim: int, generator: torch.Generator, *, wraps: bool = False) -> tuple[Tensor, Tensor]:
    """Positions `(count, 100, dim)` and values `(count, 100, 1)` of bumps of size 1.

    Args:
        wraps: positions lie in the unit box, and bumps, half as wide, on its torus.
    """
    x = torch.rand(count, NUM_POSITIONS, dim, generator=generator) ** 2
    if not wraps:
        x = x * torch.arange(1.0, dim + 1)
        x = x - x.mean(1, keepdim=True)
    centres = x[:, torch.randperm(NUM_POSITIONS, generator=generator)[:3]]
    heights = torch.randn(count, 3, generator=generator)
    difference = x[:, :, None] - centres[:, None]
    distances = ((2 * (difference - difference.round())) if wraps else difference).square().sum(-1)
    return x, (torch.exp(-3 * distances) @ heights[..., None]) * 2


def train_operator(setting: Setting, dim: int, seed: int, config: Config) -> FieldOperator:
    """A trained operator, in evaluation mode."""
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
    field = fields.SIREN(dim * setting.frame.coordinates_per_axis, omega_0=5.0)
    operator = FieldOperator(dim, field, setting.frame, own)
    optimizer = torch.optim.AdamW(operator.parameters(), lr=3e-4, weight_decay=5e-5)
    for _ in range(config.steps):
        x, y = draw_functions(8, dim, generator, wraps=setting.wraps)
        loss = (operator(y, Points(x))(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return operator.eval()


def measure_moves(
    setting: Setting, dim: int, seed: int, config: Config, groups: Mapping[str, analysis.Moves]
) -> dict[str, Any]:
    """Equivariance errors of each group on four sets of samples, at 50 positions, in both precisions."""
    operator = train_operator(setting, dim, seed, config)
    x, y = draw_functions(4, dim, torch.Generator().manual_seed(10_000 + seed), wraps=setting.wraps)
    with torch.no_grad():
        misfit = (operator(y, Points(x))(x) - y).norm() / y.norm()
    errors: dict[str, dict[str, float]] = {name: {} for name in groups}
    norm = math.nan
    for kind in (torch.float32, torch.float64):
        operator.to(kind)
        word = str(kind).removeprefix("torch.")
        for name, moves in groups.items():
            error = analysis.equivariance_error(
                operator,
                moves,
                y.to(kind),
                Points(x.to(kind)),
                query_pos=x[:, :50],
                num_moves=MOVES,
                generator=torch.Generator().manual_seed(seed),
            )
            errors[name] |= {f"absolute_{word}": error.absolute.mean().item(), word: error.relative.mean().item()}
            norm = error.norm.mean().item()
    return {"name": setting.name, "dim": dim, "seed": seed, "misfit": misfit.item(), "norm": norm, "errors": errors}


def against_gradient(seed: int, samples: int, temperatures: Sequence[float]) -> list[dict[str, float]]:
    """Softmax attention at each temperature against the gradient, for one field of 50 sinusoids, in float64."""
    torch.manual_seed(seed)
    basis = fields.SinusoidalField(2, num_terms=TERMS).double()
    x = 2 * torch.rand(1, samples, 2, dtype=torch.float64) - 1
    features = basis.basis(x)
    residual = torch.randn(1, samples, 1, dtype=torch.float64)
    residual = residual - residual.mean(1, keepdim=True)
    exact, selectors = analysis.negative_gradient(features, residual), torch.eye(TERMS, dtype=torch.float64)
    rows = []
    for temperature in temperatures:
        part = analysis.softmax_expansion(selectors, features, residual, temperature)
        both = torch.stack([part.output.flatten(), exact.flatten()])
        rows.append(
            {
                "temperature": temperature,
                "decorrelation": 1 - torch.corrcoef(both)[0, 1].item(),
                "remainder": part.remainder.norm().item(),
                "gradient_error": ((part.gradient - exact).norm() / exact.norm()).item(),
                "remainder_over_bound": (part.remainder.abs() / part.bound).max().item(),
            }
        )
    return rows


def measure_temperature(seed: int) -> dict[str, Any]:
    """Comparison with the gradient at 100 positions, with the decay exponents of remainder and error."""
    rows = against_gradient(seed, NUM_POSITIONS, TEMPERATURES)
    return {
        "part": "temperature",
        "seed": seed,
        "rows": rows,
        "remainder_exponent": _exponent(rows, "remainder"),
        "error_exponent": _exponent(rows, "gradient_error"),
    }


def measure_samples(seed: int) -> dict[str, Any]:
    """Comparison with the gradient with 32 to 256 samples."""
    found = {samples: against_gradient(seed, samples, SAMPLED_TEMPERATURES) for samples in SAMPLES}
    rows = [{"samples": samples, **row} for samples, own in found.items() for row in own]
    return {"part": "samples", "seed": seed, "rows": rows}


def _exponent(rows: Sequence[dict[str, float]], key: str) -> float:
    late = [row for row in rows if row["temperature"] in LATE]
    values = (torch.tensor([row[name] for row in late], dtype=torch.float64) for name in ("temperature", key))
    return analysis.decay_exponent(*values)


COMPARED = ("decorrelation", "gradient_error", "remainder_over_bound")
"""Measures of softmax against the gradient; decorrelation is 1 - correlation."""


def interval(values: list[float]) -> str:
    """The mean and the half-width of its 95 % interval by Student's t."""
    mean = statistics.mean(values)
    if len(values) < 2:
        return f"{mean:.3g}"
    from scipy.stats import t

    half = t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return f"{mean:.3g} +- {half:.1g}"


def print_results(results: list[dict[str, Any]]) -> None:
    """Prints a line for every setting and temperature: means over seeds with their 95 % intervals."""
    moved = [r for r in results if r["part"] in ("groups", "frames")]
    for part, dim, name in dict.fromkeys((r["part"], r["dim"], r["name"]) for r in moved):
        own = [r for r in moved if (r["part"], r["dim"], r["name"]) == (part, dim, name)]
        quality = ", ".join(f"{key} {interval([r[key] for r in own])}" for key in ("norm", "misfit"))
        print_line(f"{part}, {dim} dimensions, {name}: {quality} ({len(own)} seeds)")
        for group in own[0]["errors"]:
            intervals = {key: interval([r["errors"][group][key] for r in own]) for key in own[0]["errors"][group]}
            print_line(f"    {group:<16} {intervals}")
    for part, keys in (("temperature", ("temperature",)), ("samples", ("samples", "temperature"))):
        own = [r for r in results if r["part"] == part]
        for case, rows in cases(own, keys).items():
            if part == "samples" or case[-1] in SHOWN:
                intervals = {key: interval([row[key] for row in rows]) for key in COMPARED}
                named = ", ".join(f"{name} {value:g}" for name, value in zip(keys, case, strict=True))
                print_line(f"{named:<30} {intervals} ({len(own)} seeds)")
    heated = [r for r in results if r["part"] == "temperature"]
    for key in ("remainder_exponent", "error_exponent") if heated else ():
        print_line(f"{key}: {interval([r[key] for r in heated])}")


def cases(results: Sequence[dict[str, Any]], by: tuple[str, ...]) -> dict[tuple[float, ...], list[dict[str, float]]]:
    """The rows of all seeds, grouped by the keys ``by``, such as the temperature."""
    found: dict[tuple[float, ...], list[dict[str, float]]] = {}
    for row in (row for r in results for row in r["rows"]):
        found.setdefault(tuple(row[name] for name in by), []).append(row)
    return found


def draw(results: Sequence[dict[str, Any]], path: Path) -> None:
    """Draws remainder and error by temperature, 1 - correlation, and the error by the number of samples."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    heated = cases([r for r in results if r["part"] == "temperature"], ("temperature",))
    sampled = cases([r for r in results if r["part"] == "samples"], ("temperature", "samples"))
    figure, (falls, lacks, counts) = plt.subplots(1, 3, figsize=(12.5, 3.7), layout="constrained")
    temperatures = [case[0] for case in heated]

    def mean(rows: Sequence[dict[str, float]], key: str) -> float:
        return statistics.mean(row[key] for row in rows)

    for key, label, slope, colour in (
        ("remainder", "remainder, beside τ⁻²", 2, "#0072b2"),
        ("gradient_error", "relative error of the gradient, beside τ⁻¹", 1, "#d55e00"),
    ):
        values = [mean(rows, key) for rows in heated.values()]
        falls.loglog(temperatures, values, "o", color=colour, markersize=4, label=label)
        falls.loglog(temperatures, [values[-1] * (temperatures[-1] / t) ** slope for t in temperatures], color=colour)
    falls.set(xlabel="temperature τ", title=f"{NUM_POSITIONS} samples")
    lacks.loglog(temperatures, [mean(rows, "decorrelation") for rows in heated.values()], "o-", color="#0072b2")
    lacks.axhline(1e-3, color="#666666", linestyle=":", label="correlation 0.999")
    lacks.set(xlabel="temperature τ", title="1 − correlation with the gradient")
    for temperature, colour in zip(SAMPLED_TEMPERATURES, plt.get_cmap("viridis")([0, 0.2, 0.4, 0.6, 0.8]), strict=True):
        values = [mean(sampled[temperature, n], "gradient_error") for n in SAMPLES]
        counts.loglog(SAMPLES, values, "o-", color=colour, label=f"τ = {temperature:g}")
    counts.set(xlabel="samples", title="relative error of the gradient", ylim=(8e-4, 0.4))
    counts.set_xticks(SAMPLES, [str(n) for n in SAMPLES])
    counts.minorticks_off()
    for axes in (falls, lacks, counts):
        axes.legend(frameon=False, fontsize=8)
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=90)
    plt.close(figure)


class Learned(NamedTuple):
    """An operator to train, and the groups that it is moved by."""

    part: Part
    setting: Setting
    dim: int
    groups: Mapping[str, analysis.Moves]


def learned(parts: Sequence[Part]) -> list[Learned]:
    """The operators of these parts, one seed of each."""
    rotated = [Learned("groups", setting, dim, ROTATIONS) for setting in SETTINGS for dim in (2, 3)]
    framed = [Learned("frames", setting, 2, GROUPS) for setting in FRAMED]
    return [operator for operator in (*rotated, *framed) if operator.part in parts]


def main(config: Config) -> None:
    """Runs the parts that results.json does not hold yet, prints the tables and draws softmax.png."""
    if importlib.util.find_spec("matplotlib") is None:
        raise SystemExit("field_claims: the figure needs matplotlib: pip install 'fredholm[viz]'")
    torch.set_num_threads(1)
    config.out.mkdir(parents=True, exist_ok=True)
    path = config.out / "results.json"
    results: list[dict[str, Any]] = json.loads(path.read_text()) if path.is_file() else []

    def keep(found: dict[str, Any], **settings: Any) -> None:
        results.append(found | settings)
        path.write_text("[\n" + ",\n".join(json.dumps(r) for r in results) + "\n]\n")

    own = {"steps": config.steps, "embed_dim": config.embed_dim, "depth": config.depth}
    kept = {(r["part"], r.get("name"), r.get("dim"), r["seed"], *(r.get(name) for name in own)) for r in results}
    for seed in config.seeds:
        for part, setting, dim, groups in learned(config.parts):
            if (part, setting.name, dim, seed, *own.values()) not in kept:
                keep({"part": part} | measure_moves(setting, dim, seed, config, groups), **own)
                print_line(f"{part}, {dim} dimensions, {setting.name}, seed {seed} is done")
    for part, measure in (("temperature", measure_temperature), ("samples", measure_samples)):
        seeds = {r["seed"] for r in results if r["part"] == part}
        for seed in config.seeds if part in config.parts else ():
            if seed not in seeds:
                keep(measure(seed))
    results = [r for r in results if all(r.get(name, value) == value for name, value in own.items())]
    print_results(results)
    if {r["part"] for r in results} >= {"temperature", "samples"}:
        draw(results, config.out / "softmax.png")


if __name__ == "__main__":
    main(tyro.cli(Config, description=(__doc__ or "").partition("\n")[0]))
