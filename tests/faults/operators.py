"""Operators at random settings: every kernel, route, quadrature, kind of domain, dtype, size and scale of the signal.

A `Setting` describes one problem completely. It goes through `IntegralOperator`, once by the automatic route and once
by each route that does not refuse it. Each call, forward and backward, must give the numbers of the literal integral in
float64, or end in an error that this library raises on purpose.

Tolerance: `TOLERANCE` of the dtype times the largest value of the exact result, or of the exact gradient. Where a
problem is ill conditioned or large numbers cancel, it is `LAST_DIGITS` times the change of the exact result when every
intermediate number, forward and backward, changes by its last digit. This change is estimated in float64: every number
is perturbed up or down by the fraction `NOISE`, or by the last digit of 16 bits, `DISTURBANCES` times, and the largest
change counts, in units of the noise. Noise does not reveal a difference that is exactly 0 in float64 and one of larger
numbers elsewhere. So the error of the gradient of a leaf l may be as large as the same fraction of the result, or of
the largest |g'| |l'| of any leaf, divided by |l|. Underflow is allowed for everywhere: a result may be off by the least
normal number of the dtype times the largest input. Numbers close to the end of the range of the dtype, or beyond it,
are not compared. Beyond the range that a kernel states (`Kernel.signal_range`) no number is compared, but errors must
be raised on purpose there too.

    python -m tests.faults.operators COUNT SEED    prints the row of the table
    python -m tests.faults.operators SETTING       prints what is wrong with one setting, as the driver does
"""

import copy
import dataclasses
import functools
import linecache
import random
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

import fredholm
from fredholm import IntegralOperator, quadrature
from fredholm.domains import Domain
from fredholm.evaluation import AUTO, Dense, Evaluation
from fredholm.quadrature.quadrature import Quadrature
from tests.contracts.instances import (
    ALL_ROUTES,
    EAGER,
    QUERIES,
    ROWS,
    Case,
    Results,
    size,
    table_kernel,
    without_meaning,
)
from tests.contracts.places import KINDS, LISTED, MASKS, PAIRS, WEIGHTS, Place, Shape, normal, place_of
from tests.contracts.routes import randomise
from tests.faults.outcome import Outcome

LIBRARY = Path(fredholm.__file__).parent
LENGTHS = (0, 1, 1, 2, 3, 5, 7, 7, 11, 13, 17, 67)
"""Numbers of points on a line: none, one, primes, and one more than a chunk holds."""
SIDES = (1, 2, 3, 3, 4, 5)
BATCHES = (0, 1, 1, 2, 2, 3)
SCALES = (1e-4, 1e-3, 1e-2, 0.1, 1.0, 1.0, 1.0, 10.0, 30.0, 100.0, 1e3, 1e4)
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}
DISTURBANCES = 4
LAST_DIGITS = 100
NOISE = 2.0**-30
EXACT = {
    "_to_copy", "abs", "amax", "amin", "arange", "cat", "ceil", "clone", "constant_pad_nd", "copy", "cummax",
    "cummin", "diag_embed", "empty_like", "eye", "expand_copy", "fill", "flip", "floor", "full", "full_like",
    "gather", "index", "index_put", "index_select", "masked_fill", "max", "maximum", "min", "minimum", "neg",
    "new_empty", "new_full", "new_ones", "new_zeros", "ones", "ones_like", "rand", "randn", "repeat", "round",
    "scalar_tensor", "scatter", "sign", "sort", "stack", "tril", "triu", "trunc", "where", "zeros", "zeros_like",
}  # fmt: skip
"""Operations whose results consist of numbers of their inputs."""


class Precision(NamedTuple):
    """Dtype of the operator, of the signal, and of autocast if it is on."""

    operator: torch.dtype
    signal: torch.dtype
    autocast: torch.dtype | None = None

    @property
    def result(self) -> torch.dtype:
        """The dtype of the result."""
        return self.signal if self.autocast is None or self.signal == torch.float64 else self.autocast


PRECISIONS = {
    "float64": Precision(torch.float64, torch.float64),
    "float32": Precision(torch.float32, torch.float32),
    "bfloat16": Precision(torch.bfloat16, torch.bfloat16),
    "float16": Precision(torch.float16, torch.float16),
    "float32 under bfloat16": Precision(torch.float32, torch.float32, torch.bfloat16),
    "float32 under float16": Precision(torch.float32, torch.float32, torch.float16),
    "float64 under bfloat16": Precision(torch.float64, torch.float64, torch.bfloat16),
    "bfloat16 signal under bfloat16": Precision(torch.float32, torch.bfloat16, torch.bfloat16),
    "float16 under bfloat16": Precision(torch.float16, torch.float16, torch.bfloat16),
    "float16 under float16": Precision(torch.float16, torch.float16, torch.float16),
    "float32 signal of float64 under bfloat16": Precision(torch.float64, torch.float32, torch.bfloat16),
}
LIKELY = {"float32": 6, "float64": 2, "bfloat16": 2, "float16": 2}
QUADRATURES: dict[str, Callable[[], Quadrature | None]] = {
    "all points": lambda: None,
    "Full": quadrature.Full,
    "3 draws": lambda: quadrature.MonteCarlo(3),
    "3 stratified draws each": lambda: quadrature.MonteCarlo(3, per_query=True, draw="stratified"),
    "2 lattice draws": lambda: quadrature.MonteCarlo(2, draw="quasi_random"),
    "2 anchors": lambda: quadrature.Anchors(2),
    "3 nearest": lambda: quadrature.Neighbourhood(num_neighbours=3),
    "radius 0.4": lambda: quadrature.Neighbourhood(radius=0.4, normalise=True),
}


@dataclasses.dataclass(frozen=True)
class Setting:
    """One level of each factor."""

    kernel: str
    variant: str
    domain: str
    mask: str
    weights: str
    pairs: str
    query: str
    precision: str
    quadrature: str
    scale: float
    batch: int
    shape: Shape
    is_plain: bool
    """Whether the operator is the integral alone."""
    seed: int

    def __str__(self) -> str:
        parts = (getattr(self, field.name) for field in dataclasses.fields(self))
        return " / ".join("x".join(map(str, part)) if isinstance(part, tuple) else str(part) for part in parts)

    @classmethod
    def parse(cls, text: str) -> "Setting":
        """The setting printed by `str`."""
        *names, scale, batch, shape, is_plain, seed = (part.strip() for part in text.split(" / "))
        sizes = tuple(map(int, shape.split("x")))
        levels = dict(zip((field.name for field in dataclasses.fields(cls)), names, strict=False))
        return cls(
            **levels, scale=float(scale), batch=int(batch), shape=sizes, is_plain=is_plain == "True", seed=int(seed)
        )


def draw(rng: random.Random) -> Setting:
    """A setting whose kernel reads positions as the domain has them; all else may be refused."""
    while True:
        kernel = rng.choice(list(ROWS))
        variant = rng.choice(list(ROWS[kernel].variants))
        domain = rng.choice([name for name in KINDS if name not in ("no point", "one point")])
        kind = KINDS[domain]
        try:
            built = table_kernel(kernel, variant, kind.pos_dim)
        except ValueError:
            continue
        needs = ROWS[kernel].needs(built)
        if built.pos_dim not in (None, kind.pos_dim) or (needs.line and kind.pos_dim != 1 and rng.random() < 0.95):
            continue
        if (needs.edges and kind.edges is None) or (needs.lattice and not kind.is_lattice and rng.random() < 0.95):
            continue
        plain = rng.random() < 0.5
        return Setting(
            kernel,
            variant,
            domain,
            mask=rng.choice(list(MASKS)),
            weights="even" if needs.even or plain else rng.choice(list(WEIGHTS)),
            pairs="all pairs" if needs.one_measure or plain else rng.choice(["all pairs", *PAIRS]),
            query=rng.choice(["no query", *QUERIES] if not needs.own_points else list(QUERIES)[:4]),
            precision=rng.choices(list(PRECISIONS), [LIKELY.get(name, 1) for name in PRECISIONS])[0],
            quadrature=rng.choice(list(QUADRATURES)) if built.is_pairwise and rng.random() < 0.5 else "all points",
            scale=rng.choice(SCALES),
            batch=rng.choice(BATCHES),
            shape=tuple(rng.choice(SIDES if len(kind.shape) > 1 else LENGTHS) for _ in kind.shape),
            is_plain=rng.random() < 0.7,
            seed=rng.randrange(1 << 20),
        )


# ---------------------------------------------------------------------------------------------------------------------
# The problem.


@dataclasses.dataclass(frozen=True)
class Problem:
    """An operator and its inputs."""

    setting: Setting
    operator: IntegralOperator
    case: Case
    autocast: torch.dtype | None

    def arguments(self) -> tuple[Tensor, Domain, Tensor | None, Domain | None]:
        """The inputs of the operator."""
        case, domain = self.case, self.case.place.domain()
        return case.u, domain, case.u if case.signal == "u" else case.query, case.query_domain(domain)

    def by(self, evaluation: Evaluation) -> Results:
        """The result, and the gradient of a fixed functional of it in each input and parameter."""
        kernels_own = dict(self.case.kernel.named_parameters())
        given = {name: leaf for name, leaf in self.case.leaves().items() if name not in kernels_own}
        leaves = given | dict(self.operator.named_parameters())
        for leaf in leaves.values():
            leaf.requires_grad_()
        operator = self.operator.with_quadrature(self.operator.quadrature)
        operator.evaluation = evaluation
        u, domain, query, query_domain = self.arguments()
        torch.manual_seed(self.setting.seed)
        with self.casting():
            out = operator(u, domain, query=query, query_domain=query_domain)
        # numbers that every dtype represents
        cotangent = normal(Generator().manual_seed(5), *out.shape).bfloat16().to(out.dtype)
        grads = torch.autograd.grad(out, list(leaves.values()), cotangent, allow_unused=True, materialize_grads=True)
        return {"result": out.detach()} | {f"d/d {name}": grad for name, grad in zip(leaves, grads, strict=True)}

    def casting(self) -> torch.autocast:
        """The autocast context, if it is on."""
        return torch.autocast("cpu", self.autocast or torch.bfloat16, enabled=self.autocast is not None)

    def accepting(self) -> list[Evaluation]:
        """The routes that do not refuse the problem."""
        with self.casting():
            integral = self.operator.prepare(*self.arguments())
            return [route for route in ALL_ROUTES if not route.unsupported_reasons(integral)]

    def nodes(self) -> list[Tensor]:
        """The points that a quadrature takes."""
        if self.operator.quadrature is None:
            return []
        torch.manual_seed(self.setting.seed)
        with self.casting():
            nodes = self.operator.quadrature.nodes(self.operator.prepare(*self.arguments()))
        return [] if nodes is None else [part for name, part in vars(nodes).items() if name in ("index", "owner")]

    def mapped(
        self, number: Callable[[Tensor], Tensor], place: Callable[[Tensor], Tensor], dtype: torch.dtype = torch.float64
    ) -> "Problem":
        """The same problem in another dtype, with numbers mapped by `number`, and positions and weights by `place`."""
        case, operator = self.case, copy.deepcopy(self.operator).to(dtype)
        with torch.no_grad():
            for own, given in zip(operator.parameters(), self.operator.parameters(), strict=True):
                own.copy_(number(given))

        def at(where: Place) -> Place:
            return where.mapped(place, but_times=True).mapped(lambda t: t.detach().to(dtype))

        case = dataclasses.replace(
            case,
            kernel=operator.kernel,
            u=number(case.u).to(dtype),
            query=None if case.query is None else number(case.query).to(dtype),
            place=at(case.place),
            at=at(case.at) if isinstance(case.at, Place) else case.at,
        )
        return Problem(self.setting, operator, case, None)


def _exact(t: Tensor) -> Tensor:
    return t.detach().double()


def problem_of(setting: Setting) -> Problem:
    """The operator and the tensors of a setting; the signal is NaN at masked points."""
    generator, precision = Generator().manual_seed(setting.seed), PRECISIONS[setting.precision]
    kernel = copy.deepcopy(table_kernel(setting.kernel, setting.variant, KINDS[setting.domain].pos_dim))
    plain = setting.is_plain or kernel.in_dim != kernel.out_dim
    options = dict.fromkeys(("residual", "bias", "output_projection"), not plain)
    operator = IntegralOperator(kernel, quadrature=QUADRATURES[setting.quadrature](), **options)
    operator = randomise(operator.double()).to(precision.operator)  # pyright: ignore[reportArgumentType]
    batch, place = setting.batch, place_of(setting.domain, generator, setting.batch, setting.shape)
    query, points = QUERIES[setting.query], place.num_points
    at = query.at if query.at is None or isinstance(query.at, str) else query.at(place, generator, batch)
    queries = at.num_points if isinstance(at, Place) else points
    heads = vars(kernel).get("num_heads", 1)
    place = dataclasses.replace(
        place,
        mask=MASKS[setting.mask](generator, batch, points),
        weights=WEIGHTS[setting.weights](generator, batch, points),
        pair_bias=PAIRS[setting.pairs](generator, batch, heads, queries, points),
        lists_pairs=setting.pairs in LISTED,
    )
    if torch.float64 not in (precision.operator, precision.signal):
        place, at = place.mapped(Tensor.float), at.mapped(Tensor.float) if isinstance(at, Place) else at
    u = setting.scale * normal(generator, batch, points, kernel.in_dim)
    u = without_meaning(u, place.mask).to(precision.signal)
    v = None
    if query.signal == "other":
        v = setting.scale * normal(generator, batch, queries, kernel.query_dim)
        v = without_meaning(v, None if isinstance(at, Place) else place.mask).to(precision.signal)
    return Problem(setting, operator, Case(operator.kernel, u, place, v, query.signal, at), precision.autocast)


# ---------------------------------------------------------------------------------------------------------------------
# The check.


class _Noise(TorchDispatchMode):
    """Changes every computed number, forward and backward, by a relative amount, up or down."""

    def __init__(self, part: float, seed: int) -> None:
        super().__init__()
        self.part = part
        self.generator = Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        is_new = all(returned.alias_info is None for returned in func._schema.returns)
        return tree_map(self._changed, out) if is_new and func._schema.name.split("::")[1] not in EXACT else out

    def _changed(self, number: Any) -> Any:
        if not isinstance(number, Tensor) or number.dtype not in (torch.float64, torch.complex128):
            return number
        up = torch.rand(number.shape, generator=self.generator) < 0.5
        return number * (1 + self.part * (2 * up.double() - 1))


class Expected:
    """The numbers of a problem in float64, and the tolerance for each.

    Attributes:
        values: the numbers, or the error of the definition.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem, self.dtype = problem, PRECISIONS[problem.setting.precision].result
        # autocast casts the factors of products
        self.eps = torch.finfo(self.dtype).eps
        self.exact = problem.mapped(_exact, _exact)
        self.values = _attempt(lambda: self.exact.by(Dense()))

    @functools.cached_property
    def comparable(self) -> bool:
        """Whether a quadrature takes the same points in float64, since others may be equally near."""
        ours, exact = self.problem.nodes(), self.exact.nodes()
        return all(a.shape == b.shape and bool((a == b).all()) for a, b in zip(ours, exact, strict=True))

    @functools.cached_property
    def amplified(self) -> dict[str, float]:
        """How many units of noise each entry moves by; see the module docstring."""
        assert isinstance(self.values, dict)
        most = dict.fromkeys(self.values, 0.0)
        # the rounding error of 16 bits is not small, and its effect is not proportional
        part = max(NOISE, self.eps if self.dtype.itemsize == 2 else 0.0)
        for seed in range(DISTURBANCES):
            with _Noise(part, seed):
                changed = _attempt(lambda: self.exact.by(Dense()))
            if isinstance(changed, Exception):  # noise reversed the order of times
                continue
            for name, value in self.values.items():
                most[name] = max(most[name], size(changed[name] - value) / part)
        return most

    @functools.cached_property
    def sizes(self) -> dict[str, float]:
        """The largest entry of each leaf, by the name of its gradient."""
        leaves = self.exact.case.leaves() | dict(self.exact.operator.named_parameters())
        return {f"d/d {name}": size(leaf.nan_to_num(0.0, 0.0, 0.0)) for name, leaf in leaves.items()}

    @property
    def factor(self) -> float:
        """The factor of a number that underflowed: the largest input, at least 1."""
        return max(1.0, *self.sizes.values())

    @functools.cached_property
    def cancelling(self) -> dict[str, float]:
        """What each gradient would be without cancellation; see the module docstring."""
        assert isinstance(self.values, dict)
        sizes = self.sizes
        most = max(size(self.values[name]) * sizes.get(name, 1.0) for name in self.values)
        return {name: most / max(sizes.get(name, 1.0), 1e-30) for name in self.values if name != "result"}

    def missed_by(self, got: Results) -> str:
        """A description of an error in a result; empty if there is none."""
        assert isinstance(self.values, dict)
        for name, value in self.values.items():
            if got[name].shape != value.shape:
                return f"{name} has shape {tuple(got[name].shape)}, not {tuple(value.shape)}"
        if got["result"].dtype != self.dtype:
            return f"the result is {got['result'].dtype}, not {self.dtype}"
        least, most = self.problem.operator.kernel.signal_range[self.dtype]
        if not least <= self.problem.setting.scale <= most:
            return ""
        found = []
        for name, value in self.values.items():
            largest, own = size(value), torch.finfo(got[name].dtype)
            if not largest < own.max**0.98:
                if name == "result":
                    return ""
                continue
            if not bool(got[name].isfinite().all()):
                found.append(f"{name} is not finite, where {largest:.1e} is right")
                continue
            error, tolerance = size(got[name].double() - value), TOLERANCE[self.dtype]
            allowed = tolerance * largest + max(own.tiny, torch.finfo(self.dtype).tiny) * self.factor
            if error <= allowed or not self.comparable:
                continue
            natural = max(self.amplified[name], self.cancelling.get(name, 0.0))
            allowed = max(allowed, min(tolerance, LAST_DIGITS * self.eps) * natural)
            if not error <= allowed:
                found.append(f"{name} is off by {error:.1e} of {largest:.1e}, where {allowed:.1e} is allowed")
        return "; ".join(found)


def _attempt(compute: Callable[[], Results]) -> Results | Exception:
    try:
        return compute()
    except Exception as error:
        return error


def is_own(error: Exception) -> bool:
    """Whether this library raised an error on purpose, for users to read."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    line = linecache.getline(frame.filename, frame.lineno or 0).strip()
    is_ours = Path(frame.filename).is_relative_to(LIBRARY) and line.startswith("raise ")
    return type(error) in (ValueError, TypeError) and is_ours and "\n" not in str(error)


def error_line(error: Exception) -> str:
    """An error in one line, with the place where it was raised."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}: {' '.join(str(error).split())[:200]}"


def calls(setting: Setting) -> Iterator[str]:
    """A description of the error of each call of a setting, automatic and by each accepting route; empty if right."""
    problem = problem_of(setting)
    expected = Expected(problem)
    if isinstance(expected.values, Exception) and not is_own(expected.values):
        yield f"Dense in float64: {error_line(expected.values)}"
        return
    by_auto = _attempt(lambda: problem.by(AUTO))
    yield _judged("Auto", by_auto, expected)
    if isinstance(by_auto, Exception):
        return
    for route in problem.accepting():
        name = f"{route.name} (eager)" if route in EAGER else route.name
        yield _judged(name, _attempt(functools.partial(problem.by, route)), expected)


def _judged(name: str, got: Results | Exception, expected: Expected) -> str:
    if isinstance(got, Exception):
        return "" if is_own(got) else f"{name}: {error_line(got)}"
    if isinstance(expected.values, Exception):
        return ""
    wrong = expected.missed_by(got)
    return wrong and f"{name}: {wrong}"


def fuzz_operators(count: int, seed: int) -> list[Outcome]:
    """At least `count` calls of operators at random settings."""
    rng, tried, broken = random.Random(seed), 0, []
    while tried < count:
        setting = draw(rng)
        for wrong in quietly(setting):
            tried += 1
            if wrong:
                broken.append(f"{setting} : {wrong}")
    return [Outcome("operators at random settings", tried, tried - len(broken), tuple(broken))]


def quietly(setting: Setting) -> list[str]:
    """`calls`, without the warnings."""
    with warnings.catch_warnings(action="ignore"), torch.random.fork_rng():
        return list(calls(setting))


def main(arguments: list[str]) -> None:
    """Prints the broken calls; see the module docstring."""
    if len(arguments) == 1:
        print(*filter(None, quietly(Setting.parse(arguments[0].split(" : ")[0]))), sep="\n")
        return
    start = time.perf_counter()
    (outcome,) = fuzz_operators(*map(int, arguments))
    print(*outcome.broken, sep="\n")
    print(f"{len(outcome.broken)} of {outcome.tried} calls broken; {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
