"""InfViT at growing resolution, with each kind of attention: ``python -m benchmarks infvit``.

Inference of the whole model. Before anything is timed, every model is compared with the same weights and its attention
written out. Softmax attention is measured twice: through SDPA, as in the library, and written out as scores, softmax
and weighted sum.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import final

from tqdm import tqdm

from benchmarks.harness import (
    Alone,
    Benchmark,
    Direction,
    Options,
    Row,
    Settings,
    Sides,
    growth,
    measure_alone,
    require_known,
)
from benchmarks.infvit_problem import LINEAR, PLAIN, SDPA, SIDES, ModelConfig, ModelProblem, compare

SOFTMAX = (SDPA, PLAIN)


@final
@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """Settings of this benchmark. The largest images take long on two cores: 17 Tflop a model."""

    options: Options = field(default_factory=lambda: Options(rounds=3, budget_s=20.0))
    model: ModelConfig = field(default_factory=ModelConfig)
    cases: tuple[str, ...] = tuple(SIDES)
    """Models to measure."""
    sides: tuple[int, ...] = (224, 512, 1024)
    """Heights and widths of the images for all models, in pixels; they grow."""
    linear_sides: tuple[int, ...] = (2048, 4096, 9216)
    """Heights and widths at which only models of linear time are measured, each in isolation."""
    limit_s: float = 600.0
    """Seconds; a model is left out where its step would take longer, extrapolated from the size before."""
    limit_gb: float = 20.0
    """Gigabytes; the same limit on the peak memory of a step, without weights and images."""

    def small(self) -> "Config":
        """See `Settings.small`."""
        tiny = dataclasses.replace(self.model, embed_dim=24, depth=2, num_heads=2, patch_size=8)
        return dataclasses.replace(self, model=tiny, sides=(32, 48), linear_sides=(64,))

    def checked(self) -> "Config":
        """These settings; raises `ValueError` on an unknown case, and on images that do not grow or fit patches."""
        require_known(self.cases, SIDES)
        pixels, patch = (*self.sides, *self.linear_sides), self.model.patch_size
        if list(pixels) != sorted(set(pixels)) or any(side < patch or side % patch for side in pixels):
            raise ValueError(f"images must grow and be multiples of the patches' {patch} pixels; got {pixels}")
        return self


def measure(config: Config) -> Iterator[Row]:
    """Compares, then times, size by size."""
    names = tqdm(config.cases, desc="comparing", leave=False, disable=None)
    errors = {name: compare(config.model, config.options, name) for name in names}
    before: dict[str, tuple[int, Alone]] = {}
    for pixels in tqdm((*config.sides, *config.linear_sides), desc="sizes", disable=None):
        n = (pixels // config.model.patch_size) ** 2
        running = [name for name in config.cases if pixels in config.sides or SIDES[name].power == 1]
        fitting = [name for name in running if fits(config, name, n, before)]
        alone = by_itself(config, n, fitting, rounds=1 if pixels in config.sides else config.options.rounds)
        rows = together(config, n, alone, errors) if pixels in config.sides else apart(n, alone, errors)
        for row in rows:
            yield dataclasses.replace(row, per_second=config.model.batch / row.ours_s)
        before |= {name: (n, measured) for name, measured in alone.items()}


def by_itself(config: Config, n: int, names: Sequence[str], *, rounds: int) -> dict[str, Alone]:
    """Each model in isolation, one after the other: the peak of its first step, and its median seconds."""
    build = functools.partial(ModelProblem, config.model, config.options)
    steps: dict[str, Sequence[Direction]] = dict.fromkeys(names, ("forward",))
    alone = measure_alone(build, n, steps, config.options, rounds=rounds) if names else {}
    return {name: measured["forward"] for name, measured in alone.items()}


def together(config: Config, n: int, alone: dict[str, Alone], errors: dict[str, float]) -> Iterator[Row]:
    """All models in interleaved rounds: each against both forms of softmax, which have separate rows."""
    problem = ModelProblem(config.model, config.options, n)
    steps = {name: problem.step(name, "forward") for name in alone}
    by_direction: dict[str, dict[Direction, Alone]] = {name: {"forward": measured} for name, measured in alone.items()}
    sides = Sides.of(steps, n, "forward", config.options, by_direction)
    found = {name: errors[name] for name in alone}
    if LINEAR in alone:  # written out, it takes linear time as well
        found[LINEAR] = problem.agreement(LINEAR, sides.timed[LINEAR].result)
    if alone.keys() >= set(SOFTMAX):
        found[SDPA] = sides.require_agreement(SDPA, PLAIN, problem.tolerance)
    for name in alone:
        peers = [peer for peer in SOFTMAX if peer in alone and name not in SOFTMAX]
        for peer in peers:
            yield sides.against(name, peer, error=found[name])
        if not peers:
            yield sides.own(name, error=found[name])


def apart(n: int, alone: dict[str, Alone], errors: dict[str, float]) -> Iterator[Row]:
    """The rows of models that were measured only in isolation."""
    for name, measured in alone.items():
        yield Row.alone(name, n, "forward", measured._replace(error=errors[name]))


def fits(config: Config, name: str, n: int, before: dict[str, tuple[int, Alone]]) -> bool:
    """Whether a step is expected within both limits; always true at a model's first size.

    A model that is left out once stays out, since ``before`` keeps its last size.
    """
    if name not in before:
        return True
    seconds, peak_mb = expected(name, n, *before[name])
    return seconds <= config.limit_s and peak_mb <= 1000 * config.limit_gb


def expected(name: str, n: int, size: int, measured: Alone) -> tuple[float, float]:
    """Upper bounds of seconds and peak memory in MB at ``n`` patches, extrapolated from those at ``size``."""
    factor = (n / size) ** SIDES[name].power
    return measured.seconds * factor, measured.peak_mb * factor


def notes(rows: Sequence[Row]) -> Iterator[str]:
    """The models left out, from which size on and with which expected costs; then the growth of costs."""
    last = {row.case: row for row in rows}
    for name, row in last.items():
        beyond = sorted({other.n for other in rows if other.n > row.n})
        if beyond and row.peak_mb is not None:
            measured = Alone(row.ours_s, row.peak_mb, None)
            seconds, peak_mb = expected(name, beyond[0], row.n, measured)
            yield (
                f"{name}: left out from n = {beyond[0]} on, where at most {seconds:.3g} s and {peak_mb / 1000:.3g} GB "
                f"were to be expected by n = {row.n}"
            )
    yield from growth(rows)


BENCHMARK = Benchmark(
    name="infvit",
    purpose="InfViT at growing resolution with each kind of attention, against softmax fused and written out",
    config=Config,
    measure=measure,
    notes=notes,
)
