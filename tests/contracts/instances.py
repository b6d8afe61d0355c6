"""The table of instances: kernels and their variants crossed with domains, masks, measures, queries and routes.

A kernel takes part by one row of `ROWS`: its class, the options of each variant, and its requirements on a domain.
Domains, masks, weights and pair weights are the tables of `places.py`; queries and precisions are tables below. A
`Cell` names one level of each. `disagreements` computes it by every route that accepts it and compares the integral and
every gradient with the definition (`literal`) in float64. At points that do not exist the signal is NaN, which must
not affect any route or operator.

    python -m tests.contracts.instances          prints the numbers of cells
    python -m tests.contracts.instances CELL     prints the errors of one cell, named as in a failing test
"""

import copy
import dataclasses
import functools
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

from fredholm import IntegralOperator, kernels
from fredholm.domains import Domain, preceding_counts
from fredholm.evaluation import FFT, ROUTES, BasisFFT, Evaluation, HopSeries, Integral, Truncation
from fredholm.kernels import Kernel, KernelInputs, PointInputs
from fredholm.kernels.attention.yat import YatScored
from tests.contracts.covering import Chosen, all_pairs, possible
from tests.contracts.places import (
    KINDS,
    LISTED,
    MASKS,
    PAIRS,
    WEIGHTS,
    Place,
    Shape,
    elsewhere,
    normal,
    place_of,
    scattered,
)
from tests.contracts.routes import TOLERANCE, randomise
from tests.contracts.small_perceptron import small_perceptron

# ---------------------------------------------------------------------------------------------------------------------
# Calling a route, and the integral by its definition: the only lines that depend on their signatures.


class Arguments(NamedTuple):
    """The arguments of one integral."""

    kernel: Kernel
    u: Tensor
    domain: Domain
    query: Tensor | None = None
    query_domain: Domain | None = None


def refusals(route: Evaluation, arguments: Arguments) -> list[str]:
    """The reasons why a route refuses an integral; empty where it accepts."""
    return route.unsupported_reasons(Integral(*arguments))


def integrated(route: Evaluation, arguments: Arguments) -> Tensor:
    """The integral, computed by a route."""
    return route.integrate(Integral(*arguments))


def literal(arguments: Arguments) -> Tensor:
    """The definition Σ_j ω_j m_ij κ_ij ũ_j; for a sum of kernels, the sum over them."""
    kernel, u, domain, query, query_domain = arguments
    if isinstance(kernel, kernels.Sum):
        return sum((literal(arguments._replace(kernel=term)) for term in kernel.kernels), start=u.new_zeros(()))
    if isinstance(kernel, kernels.Scaled):
        return kernel.gate[0] * literal(arguments._replace(kernel=kernel.kernel))
    domain = domain.with_dense_pairs()
    kappa = kernel.matrix(u, domain, query, query_domain)
    omega = kernel.measure(domain).to(kappa.dtype).expand(len(u), domain.num_points)
    if domain.pair_bias is not None and not kernel.holds_pair_weights:
        bias = domain.pair_bias
        m = bias.to(kappa.dtype) if bias.dtype == torch.bool else bias.exp().to(kappa.dtype)
        by_channel = m.repeat_interleave(kernel.out_dim // m.shape[1], dim=1)  # (B', d_out, Nq, N)
        kappa = kappa * by_channel.movedim(1, -1)[..., None]
    return torch.einsum("bqjoi,bj,bji->bqo", kappa, omega, kernel.multiplicand(u).to(kappa.dtype)).to(u.dtype)


APPROXIMATE = HopSeries(Truncation(tolerance=1e-16))
"""A route that is never chosen automatically, here with a tolerance at which nothing is left out."""
EAGER = (FFT(), BasisFFT())
"""Routes that `ROUTES` restricts to large problems for their cost, here without the restriction."""
ALL_ROUTES: tuple[Evaluation, ...] = (*ROUTES, *EAGER, APPROXIMATE)


# ---------------------------------------------------------------------------------------------------------------------
# The table of kernels.

Options = Mapping[str, Any]


class Needs(NamedTuple):
    """Requirements of a kernel on a domain besides `pos_dim`; `matrix` refuses domains that do not meet them."""

    line: bool = False  # points in an order, pos_dim 1
    lattice: bool = False  # one whole regular grid
    torus: bool | None = None  # on a grid: whether it must (True) or must not (False) be periodic
    even: bool = False  # the default measure
    own_points: bool = False  # results at the points of the signal only
    one_measure: bool = False  # no pair weights
    order: bool = False  # points, and queries, in an order of indices or of times
    edges: bool = False  # a graph


@dataclasses.dataclass(frozen=True)
class Row:
    """A kernel's constructor and variants.

    Attributes:
        build: the kernel's class, or a function that makes one.
        options: options of every variant.
        variants: additional options by the name of the variant.
        needs: requirements on the domain, from the kernel.
        takes_pos_dim: whether `build` takes `pos_dim`, which is then the domain's unless a variant sets it.
    """

    build: Callable[..., Kernel]
    options: Options
    variants: Mapping[str, Options]
    needs: Callable[[Kernel], Needs] = lambda kernel: Needs()
    takes_pos_dim: bool = False

    def kernel(self, pos_dim: int, *variants: str) -> Kernel:
        """A kernel with the options of some variants, in float64, its parameters all noise."""
        options: dict[str, Any] = {"pos_dim": pos_dim} if self.takes_pos_dim else {}
        for chosen in (self.options, *(self.variants[name] for name in variants)):
            options |= chosen
        if "num_frequencies" in options:
            options = small_perceptron(**options)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            kernel = self.build(**options).double().eval()
        return randomise(kernel)


def _softplus(u: Tensor) -> Tensor:
    return torch.nn.functional.softplus(u)


def _sum(pos_dim: int, terms: tuple[Callable[[int], Kernel], ...]) -> Kernel:
    return kernels.Sum([term(pos_dim) for term in terms])


def _scaled(pos_dim: int, of: Callable[[int], Kernel]) -> Kernel:
    return kernels.Scaled(of(pos_dim), 0.7)


def _on_edges(pos_dim: int, of: Callable[[int], Kernel], **options: Any) -> Kernel:
    return kernels.OnEdges(of(pos_dim), **options)


def _mlp(pos_dim: int, **options: Any) -> Kernel:
    return kernels.MLP(4, 2, pos_dim, **small_perceptron(**options))


def _low_rank(pos_dim: int) -> Kernel:
    inputs = PointInputs(query_position=False, key_position=False)
    return kernels.LowRankMLP(4, 2, pos_dim, rank=2, is_causal=True, **small_perceptron(inputs=inputs))


def _attention(pos_dim: int, **options: Any) -> Kernel:
    return kernels.Attention(4, 2, **options)


PERCEPTRON = {"embed_dim": 4, "num_heads": 2, "width": 5, "num_frequencies": 3, "sigma": 1.0}
CHANNELS = {"embed_dim": 4, "num_heads": 2}
FACTORISED: Mapping[str, Options] = {
    "plain": {},
    "causal": {"is_causal": True},
    "head-shared": {"head_shared": True},
    "causal, head-shared": {"is_causal": True, "head_shared": True},
    "one head": {"num_heads": 1},
    "relu": {"activation": "relu"},
    "gelu_tanh": {"activation": "gelu_tanh"},
    "raw coordinates": {"num_frequencies": 0},
    "content": {"inputs": PointInputs(query_position=False, key_position=False)},
    "positions": {"inputs": PointInputs(query_content=False, key_content=False)},
    "causal, content": {"is_causal": True, "inputs": PointInputs(query_position=False, key_position=False)},
}
DISPLACEMENT_ALONE = KernelInputs(
    query_position=False, key_position=False, query_content=False, key_content=False, product=False
)
CELLS: Mapping[str, Options] = {"plain": {}, "without bias": {"bias": False}}
RECURRENCE = Needs(line=True, own_points=True)

ROWS: dict[str, Row] = {
    "MLP": Row(
        kernels.MLP,
        PERCEPTRON,
        {
            "plain": {},
            "causal": {"is_causal": True},
            "head-shared": {"head_shared": True},
            "causal, head-shared": {"is_causal": True, "head_shared": True},
            "causal, of the whole": {"is_causal": True, "causal_measure": "total"},
            "one head": {"num_heads": 1},
            "relu": {"activation": "relu"},
            "gelu_tanh": {"activation": "gelu_tanh"},
            "three layers": {"depth": 3},
            "causal, four layers": {"depth": 4, "is_causal": True},
            "raw coordinates": {"num_frequencies": 0},
            "content": {
                "inputs": KernelInputs(
                    query_position=False, key_position=False, relative_position=False, distance=False
                )
            },
            "positions": {"inputs": KernelInputs(query_content=False, key_content=False, product=False)},
            "positions, head-shared": {
                "inputs": KernelInputs(query_content=False, key_content=False, product=False),
                "head_shared": True,
            },
            "displacement": {"inputs": KernelInputs(query_position=False, key_position=False, product=False)},
            "displacement alone": {"inputs": DISPLACEMENT_ALONE},
            "displacement alone, raw coordinates": {"inputs": DISPLACEMENT_ALONE, "num_frequencies": 0},
            "displacement alone, causal, three layers": {"inputs": DISPLACEMENT_ALONE, "is_causal": True, "depth": 3},
            "displacement alone, causal, of the whole": {
                "inputs": DISPLACEMENT_ALONE,
                "is_causal": True,
                "causal_measure": "total",
            },
            "displacement alone, head-shared": {"inputs": DISPLACEMENT_ALONE, "head_shared": True},
            "constant": {"inputs": KernelInputs(**{f.name: False for f in dataclasses.fields(KernelInputs)})},
            "causal, content": {
                "is_causal": True,
                "inputs": KernelInputs(
                    query_position=False, key_position=False, relative_position=False, distance=False
                ),
            },
            "causal, raw coordinates": {"is_causal": True, "num_frequencies": 0},
        },
        takes_pos_dim=True,
    ),
    "LowRankMLP": Row(
        kernels.LowRankMLP,
        {**PERCEPTRON, "rank": 3},
        {**FACTORISED, "without constant": {"constant": False}, "rank 1": {"rank": 1}},
        takes_pos_dim=True,
    ),
    "SeparableMLP": Row(kernels.SeparableMLP, PERCEPTRON, FACTORISED, takes_pos_dim=True),
    "Attention": Row(
        kernels.Attention,
        CHANNELS,
        {
            "plain": {},
            "causal": {"is_causal": True},
            "one kv head": {"num_kv_heads": 1},
            "causal, one kv head": {"num_kv_heads": 1, "is_causal": True},
            "one head": {"num_heads": 1},
            "keys and values apart": {"kdim": 3, "vdim": 2},
            "without bias": {"bias": False},
            "causal, without bias": {"bias": False, "is_causal": True},
            "scale": {"scale": 0.3},
            "rotary": {"rotary": kernels.Rotary(10.0)},
            "causal, rotary, one kv head": {"rotary": kernels.Rotary(10.0), "num_kv_heads": 1, "is_causal": True},
        },
        needs=lambda kernel: Needs(order=_option(kernel, "rotary") is not None),
    ),
    "AdditiveAttention": Row(
        kernels.AdditiveAttention,
        CHANNELS,
        {"plain": {}, "one head": {"num_heads": 1}, "steep": {"negative_slope": 0.9}},
    ),
    "Constant": Row(kernels.Constant, {"in_dim": 4, "out_dim": 3}, {"plain": {}}),
    "Diffusion": Row(
        kernels.Diffusion,
        {"dim": 4, "num_steps": 3},
        {"plain": {}, "one step": {"num_steps": 1}, "slow": {"gamma": 0.3}},
        lambda _: Needs(edges=True, own_points=True, one_measure=True),
    ),
    "OnEdges": Row(
        _on_edges,
        {},
        {
            "perceptron": {"of": _mlp},
            "perceptron, edges alone": {"of": _mlp, "long_range": None},
            "perceptron, sum": {"of": lambda s: _mlp(s, head_shared=True), "edge_mass": "sum"},
            "perceptron, measure": {"of": lambda s: _mlp(s, depth=3), "edge_mass": "measure"},
            "attention": {"of": _attention, "edge_mass": "symmetric"},
            "additive attention, edges alone": {"of": lambda s: kernels.AdditiveAttention(4, 2), "long_range": None},
            "constant, symmetric": {"of": lambda s: kernels.Constant(4, 3), "edge_mass": "symmetric"},
            "low rank": {"of": lambda s: kernels.LowRankMLP(4, 2, s, rank=2, **small_perceptron())},
            "scores that count": {
                "of": lambda s: kernels.YatAttention(4, 2, normaliser=kernels.Unnormalised()),
                "edge_mass": "measure",
            },
            "sum": {"of": lambda s: kernels.Sum([_mlp(s), _attention(s)]), "edge_mass": "sum"},
        },
        lambda _: Needs(edges=True, own_points=True, one_measure=True),
        takes_pos_dim=True,
    ),
    "YatAttention": Row(
        kernels.YatAttention,
        CHANNELS,
        {
            "plain": {},
            "causal": {"is_causal": True},
            "one kv head": {"num_kv_heads": 1},
            "bias": {"bias": True},
            "softermax": {"normaliser": kernels.Softermax()},
            "causal, softermax": {"normaliser": kernels.Softermax(), "is_causal": True},
            "unnormalised": {"normaliser": kernels.Unnormalised()},
            "causal, unnormalised": {"normaliser": kernels.Unnormalised(), "is_causal": True},
            "soft sigmoid": {"normaliser": kernels.SoftSigmoid()},
            "soft tanh": {"normaliser": kernels.SoftTanh()},
            "learned epsilon": {"learn_epsilon": True},
            "rotary": {"rotary": kernels.Rotary(10.0)},
            "causal, rotary": {"rotary": kernels.Rotary(10.0), "is_causal": True},
        },
        needs=lambda kernel: Needs(order=_option(kernel, "rotary") is not None),
    ),
    "Yat": Row(
        kernels.Yat,
        {"dim": 3, "value_dim": 2},
        {
            "plain": {},
            "constants": {"reads_bias": True},
            "scaled by units": {"num_units": 5},
            "constants, scaled by units": {"reads_bias": True, "num_units": 5},
            "learned epsilon": {"learn_epsilon": True, "epsilon": 0.1},
            "softmax": {"normaliser": kernels.Softmax()},
            "softermax": {"normaliser": kernels.Softermax()},
            "soft tanh": {"normaliser": kernels.SoftTanh()},
        },
    ),
    "UnnormalisedAttention": Row(
        kernels.UnnormalisedAttention,
        CHANNELS,
        {
            "plain": {},
            "causal": {"is_causal": True},
            "one head": {"num_heads": 1},
            "keys and values apart": {"kdim": 3, "vdim": 2},
            "heads of other sizes": {"head_dim": 3, "value_head_dim": 1},
            "causal, heads of other sizes": {"head_dim": 3, "value_head_dim": 1, "is_causal": True},
        },
    ),
    "LinearAttention": Row(
        kernels.LinearAttention,
        CHANNELS,
        {
            "plain": {},
            "causal": {"is_causal": True},
            "one kv head": {"num_kv_heads": 1},
            "causal, one kv head": {"num_kv_heads": 1, "is_causal": True},
            "without bias": {"bias": False},
            "softplus features": {"feature_map": _softplus},
            "rotary": {"rotary": kernels.Rotary(10.0)},
            "causal, rotary, one kv head": {"rotary": kernels.Rotary(10.0), "num_kv_heads": 1, "is_causal": True},
        },
        needs=lambda kernel: Needs(order=_option(kernel, "rotary") is not None),
    ),
    "InfiniteAttention": Row(
        kernels.InfiniteAttention,
        CHANNELS,
        {
            "plain": {},
            "causal": {"is_causal": True},
            "rows": {"normaliser": "rows"},
            "causal, rows": {"normaliser": "rows", "is_causal": True},
            "one hop": {"form": "hop"},
            "causal, one hop": {"form": "hop", "is_causal": True},
            "one hop, rows": {"form": "hop", "normaliser": "rows"},
            "gelu": {"activation": "gelu"},
            "causal, gelu": {"activation": "gelu", "is_causal": True},
            "abs": {"activation": "abs"},
            "causal, abs, rows": {"activation": "abs", "is_causal": True, "normaliser": "rows"},
            "one kv head": {"num_kv_heads": 1},
            "causal, one kv head": {"num_kv_heads": 1, "is_causal": True},
            "learned gamma": {"learn_gamma": True, "gamma": (0.5, 0.9)},
            "without bias": {"bias": False},
            "scale": {"scale": 0.3, "activation": "gelu"},
        },
    ),
    "FactorisedInfiniteAttention": Row(
        kernels.FactorisedInfiniteAttention,
        CHANNELS,
        {
            "plain": {},
            "causal": {"is_causal": True},
            "rows": {"normaliser": "rows"},
            "causal, rows": {"normaliser": "rows", "is_causal": True},
            "one kv head": {"num_kv_heads": 1},
            "causal, one kv head": {"num_kv_heads": 1, "is_causal": True},
            "learned gamma": {"learn_gamma": True, "gamma": (0.5, 0.9)},
            "without bias": {"bias": False},
            "softplus features": {"feature_map": _softplus},
        },
    ),
    "LinearInfiniteAttention": Row(
        kernels.LinearInfiniteAttention,
        CHANNELS,
        {
            "plain": {},
            "two central queries": {"num_central": 2},
            "two power steps": {"power_steps": 2},
            "gamma": {"gamma": 0.7},
            "learned gamma": {"gamma": (0.5, 0.9), "learn_gamma": True},
            "without bias": {"bias": False},
        },
        lambda _: Needs(one_measure=True),
    ),
    "Convolution": Row(
        kernels.Convolution,
        {"in_dim": 4, "out_dim": 2, "kernel_size": 3, "padding": 1},
        {
            "plain": {},
            "same": {"padding": "same"},
            "valid": {"padding": 0, "kernel_size": 2},
            "stride": {"stride": 2},
            "dilation": {"dilation": 2, "padding": 2},
            "groups": {"groups": 2},
            "standardised": {"standardised": True, "groups": 2},
            "even reach": {"kernel_size": 4, "padding": "same"},
            "reflect": {"padding_mode": "reflect"},
            "replicate": {"padding_mode": "replicate"},
            "circular": {"padding_mode": "circular"},
            "circular, stride": {"padding_mode": "circular", "stride": 2},
            "transposed": {"transposed": True},
            "transposed, stride": {"transposed": True, "stride": 2, "output_padding": 1, "groups": 2},
        },
        lambda kernel: Needs(lattice=True, torus=None if _option(kernel, "padding_mode") == "circular" else False),
        takes_pos_dim=True,
    ),
    "ContinuousConvolution": Row(
        kernels.ContinuousConvolution,
        {"in_dim": 4, "out_dim": 2, "width": 5, "omega_0": 3.0, "num_samples": 8, "is_causal": False},
        {
            "plain": {},
            "causal": {"is_causal": True, "pos_dim": 1},
            "horizon": {"horizon": 0.4},
            "causal, horizon": {"horizon": 0.4, "is_causal": True, "pos_dim": 1},
            "groups": {"groups": 2},
            "causal, depthwise": {"groups": 4, "out_dim": 4, "is_causal": True, "pos_dim": 1},
            "one channel out": {"out_dim": 1},
            "relu": {"activation": "relu", "omega_0": 30.0},
            "swish": {"activation": "swish", "omega_0": 30.0},
            "smoothing": {"smoothing": True, "num_samples": 3},
            "causal, smoothing": {"smoothing": True, "num_samples": 3, "is_causal": True, "pos_dim": 1},
            "learned omega": {"learn_omega_0": True},
        },
        takes_pos_dim=True,
    ),
    "SpectralConvolution": Row(
        kernels.SpectralConvolution,
        {"in_dim": 4, "out_dim": 2, "num_waves_per_axis": 2},
        {
            "plain": {},
            "one wave": {"num_waves_per_axis": 0},
            "groups": {"groups": 2},
            "longer than the box": {"period": 2.0},
            "half the box": {"period": 0.5, "num_waves_per_axis": 1},
            "an axis longer": {"period": (2.0, 1.0), "pos_dim": 2},
        },
        takes_pos_dim=True,
    ),
    "Pointwise": Row(kernels.Pointwise, {"in_dim": 4, "out_dim": 3}, {"plain": {}}, lambda _: Needs(own_points=True)),
    "LinearRNN": Row(
        kernels.LinearRNN,
        {"in_dim": 4, "state_dim": 3},
        {
            "plain": {},
            "feedthrough": {"feedthrough": True},
            "bias": {"bias": True},
            "feedthrough, bias": {"feedthrough": True, "bias": True},
            "other channels out": {"out_dim": 2},
        },
        lambda _: RECURRENCE,
    ),
    "LinearSystem": Row(
        kernels.LinearSystem,
        {"in_dim": 4, "state_dim": 3},
        {
            "plain": {},
            "euler": {"rule": "euler"},
            "bilinear": {"rule": "bilinear"},
            "feedthrough": {"feedthrough": True, "out_dim": 2},
            "step": {"step_size": 0.5},
            "first step": {"first_step": 0.25},
        },
        lambda _: RECURRENCE,
    ),
    "RNN": Row(
        kernels.RNN,
        {"in_dim": 4, "state_dim": 3},
        {**CELLS, "relu": {"nonlinearity": "relu"}},
        lambda _: RECURRENCE._replace(even=True),
    ),
    "LSTM": Row(kernels.LSTM, {"in_dim": 4, "state_dim": 3}, CELLS, lambda _: RECURRENCE._replace(even=True)),
    "GRU": Row(kernels.GRU, {"in_dim": 4, "state_dim": 3}, CELLS, lambda _: RECURRENCE._replace(even=True)),
    "SelectiveStateSpace": Row(
        kernels.SelectiveStateSpace,
        {"in_dim": 4, "state_dim": 3},
        {
            "plain": {},
            "zero-order hold": {"input_rule": "zoh"},
            "rank 2": {"rank": 2},
            "without feedthrough": {"feedthrough": False},
        },
        lambda _: RECURRENCE,
    ),
    "DiagonalStateSpace": Row(
        kernels.DiagonalStateSpace,
        {"in_dim": 4, "state_dim": 4},
        {
            "plain": {},
            "bilinear": {"rule": "bilinear"},
            "lin": {"start": "lin"},
            "inv": {"start": "inv"},
            "without feedthrough": {"feedthrough": False},
        },
        lambda _: RECURRENCE,
    ),
    "Sum": Row(
        _sum,
        {},
        {
            "perceptron and attention": {"terms": (_mlp, _attention)},
            "causal": {
                "terms": (
                    lambda s: _mlp(s, is_causal=True),
                    lambda s: kernels.UnnormalisedAttention(4, 2, is_causal=True),
                )
            },
            "with pairs of its own": {"terms": (_attention, lambda s: kernels.InfiniteAttention(4, 2), _mlp)},
            "with a recurrence": {
                "terms": (lambda s: kernels.LinearRNN(4, 3, 4), lambda s: _attention(s, is_causal=True))
            },
            "causal, small states": {
                "terms": (lambda s: kernels.LinearAttention(4, 2, is_causal=True), lambda s: 0.7 * _low_rank(s))
            },
        },
        lambda kernel: RECURRENCE if any(not k.is_pairwise for k in _terms(kernel)) else Needs(),
        takes_pos_dim=True,
    ),
    "Scaled": Row(
        _scaled,
        {},
        {
            "attention": {"of": _attention},
            "causal perceptron": {"of": lambda s: _mlp(s, is_causal=True)},
            "causal low rank": {"of": lambda s: _low_rank(s)},
            "continuous convolution": {
                "of": lambda s: kernels.ContinuousConvolution(4, 4, s, is_causal=False, width=5)
            },
        },
        takes_pos_dim=True,
    ),
}


def _option(kernel: Kernel, name: str) -> object:
    return vars(kernel)[name]


def _terms(kernel: Kernel) -> list[Kernel]:
    if not isinstance(kernel, kernels.Sum):
        return [kernel]
    return [term for term in kernel.kernels if not isinstance(term, kernels.Neumann)]


# ---------------------------------------------------------------------------------------------------------------------
# Queries and precisions.


class Query(NamedTuple):
    """The queries of an integral: their positions and their signal.

    `signal` is "u", "other" (a separate signal) or None. `at` is None, "same" (the domain itself), "equal" (a domain
    made from the same tensors), or a function that draws another place from (place, generator, batch).
    """

    signal: str | None
    at: str | Callable[[Place, Generator, int], Place] | None


QUERIES: dict[str, Query] = {
    "no query": Query(None, None),
    "u": Query("u", None),
    "u at the domain": Query("u", "same"),
    "the domain": Query(None, "same"),
    "other values": Query("other", None),
    "other values at the domain": Query("other", "same"),
    "other values at an equal domain": Query("other", "equal"),
    "other points": Query("other", lambda place, g, batch: elsewhere(place, g, batch, 5)),
    "scattered points": Query("other", lambda place, g, batch: scattered(place, g, batch, 8)),
    "one point": Query("other", lambda place, g, batch: elsewhere(place, g, batch, 1)),
    "nowhere": Query("other", lambda place, g, batch: scattered(place, g, batch, 0)),
}


class Precision(NamedTuple):
    """The dtype of a computation, and the scale of the signal."""

    dtype: torch.dtype
    scale: float


PRECISIONS: dict[str, Precision] = {
    "float64": Precision(torch.float64, 1.0),
    "float64 of 30": Precision(torch.float64, 30.0),
    "float32": Precision(torch.float32, 1.0),
    "float32 of 1e-3": Precision(torch.float32, 1e-3),
    "float32 of 30": Precision(torch.float32, 30.0),
    "float32 of 100": Precision(torch.float32, 100.0),
    "bfloat16": Precision(torch.bfloat16, 1.0),
}


# ---------------------------------------------------------------------------------------------------------------------
# Cells.


@dataclasses.dataclass(frozen=True)
class Cell:
    """A test case: one level of every factor. Shape, batch and seed are those of the table unless drawn."""

    kernel: str
    variant: str
    domain: str = "sequence"
    mask: str = "all"
    weights: str = "even"
    pairs: str = "all pairs"
    query: str = "no query"
    precision: str = "float64"
    batch: int = 2
    shape: Shape | None = None
    seed: int = 0

    def __str__(self) -> str:
        usual = Cell(self.kernel, self.variant)
        messages = [str(getattr(self, f.name)) for f in dataclasses.fields(self)[2:8]]
        extra = [f"{n}={getattr(self, n)}" for n in ("batch", "shape", "seed") if getattr(self, n) != getattr(usual, n)]
        return " / ".join([self.kernel, self.variant, *messages, *extra])

    @classmethod
    def of(cls, kernel: str, levels: Mapping[str, Any]) -> "Cell":
        """A cell from levels by factor; factors that are missing take their plainest level."""
        return cls(kernel, **levels)

    @classmethod
    def parse(cls, text: str) -> "Cell":
        """The cell that `str` writes as this text."""
        parts = [part.strip() for part in text.split(" / ")]
        levels: dict[str, Any] = dict(zip((f.name for f in dataclasses.fields(cls)), parts[:8], strict=False))
        for name, value in (part.split("=") for part in parts[8:]):
            levels[name] = tuple(map(int, value.strip("(),").split(","))) if name == "shape" else int(value)
        return cls(**levels)

    def generator(self) -> Generator:
        """A generator seeded by the cell's text."""
        return Generator().manual_seed(zlib.crc32(str(self).encode()))


@functools.cache
def table_kernel(name: str, variant: str, pos_dim: int) -> Kernel:
    """A kernel of the table, shared by all callers: do not modify it. Combined variants are joined by " + "."""
    return ROWS[name].kernel(pos_dim, *variant.split(" + "))


def fits(cell: Cell) -> bool:
    """Whether the kernel is defined on the domain and at the queries of a cell."""
    kind = KINDS[cell.domain]
    kernel = _kernel_on(cell)
    if kernel is None or kernel.pos_dim not in (None, kind.pos_dim):
        return False
    needs, query = ROWS[cell.kernel].needs(kernel), QUERIES[cell.query]
    is_elsewhere = query.at is not None and not isinstance(query.at, str)
    if (needs.line and kind.pos_dim != 1) or (needs.edges and kind.edges is None):
        return False
    is_ordered_elsewhere = cell.query in ("other points", "one point") and (kind.is_lattice or kind.has_times)
    if needs.order and (kind.is_scattered or (is_elsewhere and not is_ordered_elsewhere)):
        return False
    has_times = kind.has_times and cell.query != "scattered points"
    by_index = kernel.is_causal and not kernel.reads_past_by_position and not has_times
    if by_index and is_elsewhere and cell.mask != "all":
        return False  # padding would shift the indices, and with them the points that a query sees
    if any(beyond(cell, is_elsewhere) for beyond in BEYOND_FLOAT32):
        return False
    if needs.lattice and (not kind.is_lattice or (needs.torus is not None and kind.is_periodic is not needs.torus)):
        return False
    if needs.even and (cell.weights != "even" or not kind.is_even):
        return False
    if (needs.own_points and is_elsewhere) or (needs.one_measure and cell.pairs != "all pairs"):
        return False
    if kernel.query_dim != kernel.in_dim and query.signal != "other":
        return False  # u has the wrong size for a query signal
    if cell.pairs != "all pairs" and is_elsewhere and kernel.holds_pair_weights:
        return False  # hops between points start at points of the signal
    return not needs.lattice or _has_results(kernel, cell)


BEYOND_FLOAT32: tuple[Callable[[Cell, bool], bool], ...] = (
    # softplus features and gelu scores underflow to 0 in float32, which empties a row
    lambda cell, is_elsewhere: (
        ("softplus features" in cell.variant or (cell.kernel == "InfiniteAttention" and _has_gelu(cell)))
        and cell.precision in ("float32 of 30", "float32 of 100")
    ),
    # a separate query is divided by the norm of the points' scores, which may be 10⁻²⁰ of its own
    lambda cell, is_elsewhere: (
        cell.kernel == "FactorisedInfiniteAttention"
        and cell.precision in ("float32 of 30", "float32 of 100")
        and (is_elsewhere or cell.query.startswith("other"))
    ),
)
"""Conditions under which a cell's integral or its gradient is outside the range of float32."""


def _has_gelu(cell: Cell) -> bool:
    variants = ROWS[cell.kernel].variants
    return any(variants[name].get("activation") == "gelu" for name in cell.variant.split(" + "))


def _kernel_on(cell: Cell) -> Kernel | None:
    try:
        return table_kernel(cell.kernel, cell.variant, KINDS[cell.domain].pos_dim)
    except ValueError:
        return None  # the options of combined variants exclude each other


def _has_results(kernel: Kernel, cell: Cell) -> bool:
    """Whether windows, reflections and periods fit on the few cells of the grid."""
    try:
        kernel.output_domain(place_of(cell.domain, Generator(), 1, cell.shape).domain())
    except ValueError:
        return False
    return True


def factors(name: str) -> dict[str, list[str]]:
    """The factors of one kernel's cells."""
    return {
        "variant": list(ROWS[name].variants),
        "domain": list(KINDS),
        "mask": list(MASKS),
        "weights": list(WEIGHTS),
        "pairs": list(PAIRS),
        "query": list(QUERIES),
        "precision": list(PRECISIONS),
    }


CLASSES: dict[str, dict[str, str]] = {
    "mask": {"shared mask": "some", "mask per entry": "some", "padding": "some"},
    "weights": {"weights": "uneven", "weights per entry, some 0": "uneven"},
    "pairs": {name: " ".join(name.split()[:2]) for name in PAIRS},
    "query": dict.fromkeys(("no query", "u", "u at the domain", "the domain"), "own points")
    | {name: "own values" for name in QUERIES if name.startswith("other values")}
    | dict.fromkeys(("other points", "scattered points", "one point"), "elsewhere"),
    "precision": {name: name.split()[0] for name in PRECISIONS},
}
"""Classes of levels that routes treat alike, by factor; every other level is a class. Domains: see `Kind.likeness`."""


def alike(factor: str, level: str) -> str:
    """The class of a level."""
    return KINDS[level].likeness if factor == "domain" else CLASSES.get(factor, {}).get(level, level)


@functools.cache
def quick_cells(name: str) -> tuple[Cell, ...]:
    """Cells of one kernel that cover every possible pair of classes of levels, and every level.

    As many as possible have no pair weights: most routes refuse these, and would otherwise meet few of the other
    levels.
    """

    def allowed(chosen: Chosen) -> bool:
        return fits(Cell.of(name, chosen))

    every = possible(factors(name), allowed)
    plain = all_pairs({**every, "pairs": ["all pairs"]}, allowed, alike=alike)
    return tuple(Cell.of(name, row) for row in all_pairs(every, allowed, alike=alike, given=plain))


def nonempty_cells(name: str) -> list[Cell]:
    """The quick cells with at least one point and one query: in the others every result is empty."""
    return [cell for cell in quick_cells(name) if cell.domain != "no point" and cell.query != "nowhere"]


def covering_cells(name: str) -> list[Cell]:
    """Cells of one kernel that cover every possible pair of levels, of all levels and again of a few plain ones.

    The plain ones have no pair weights, for the reason given in `quick_cells`.
    """

    def allowed(chosen: Chosen) -> bool:
        return fits(Cell.of(name, chosen))

    every = factors(name)
    plain = every | {
        "mask": ["all", "mask per entry"],
        "pairs": ["all pairs"],
        "query": ["no query", "other values", "other points", "one point"],
        "precision": ["float64", "float32"],
    }
    chosen = [*all_pairs(every, allowed), *all_pairs(plain, allowed, seed=1)]
    return list(dict.fromkeys(Cell.of(name, row) for row in chosen))


@dataclasses.dataclass(frozen=True)
class Case:
    """The tensors of a cell, none of which requires a gradient yet; `at` is None, "same", "equal" or a place."""

    kernel: Kernel
    u: Tensor
    place: Place
    query: Tensor | None
    signal: str | None
    at: str | Place | None

    def arguments(self) -> Arguments:
        """The arguments of the integral, as an operator passes them to a route."""
        domain = self.place.domain()
        u = present(self.u, domain)
        query_domain = self.query_domain(domain)
        query = u if self.signal == "u" else self.query
        if query_domain is None and (natural := self.result_domain(domain)) is not domain:
            query_domain = natural
        if query is not None:
            query = present(query, domain if query_domain is None else query_domain)
        return Arguments(self.kernel, u, domain, query, query_domain)

    def result_domain(self, domain: Domain) -> Domain:
        """The domain of the result: that of the queries, else the kernel's output domain if the sizes agree."""
        queries = self.query_domain(domain)
        if queries is not None:
            return queries
        natural = self.kernel.output_domain(domain)
        return natural if self.signal is None or natural.num_points == domain.num_points else domain

    @functools.cached_property
    def result_mask(self) -> Tensor | None:
        """Mask of the results that exist; None: all."""
        return self.result_domain(self.place.domain()).mask

    def query_domain(self, domain: Domain) -> Domain | None:
        """The domain of the queries that a caller passes; None where it passes none."""
        if isinstance(self.at, Place):
            return self.at.domain()
        if self.at == "equal":
            return self.place.domain()
        return {None: None, "same": domain}[self.at]

    def leaves(self) -> dict[str, Tensor]:
        """All tensors that can have a gradient, by name."""
        named = {"u": self.u} | ({} if self.query is None else {"query": self.query}) | self.place.leaves("key")
        if isinstance(self.at, Place):
            named |= self.at.leaves("query")
        return named | dict(self.kernel.named_parameters())

    def on(self, device: torch.device) -> "Case":
        """A copy with its kernel, signals and domains on another device."""
        return Case(
            copy.deepcopy(self.kernel).to(device),
            self.u.to(device),
            dataclasses.replace(self.place, device=device),
            None if self.query is None else self.query.to(device),
            self.signal,
            dataclasses.replace(self.at, device=device) if isinstance(self.at, Place) else self.at,
        )

    def entry(self, index: int) -> "Case":
        """One entry of the batch, as a batch of one."""
        one = slice(index, index + 1)
        return dataclasses.replace(
            self,
            u=self.u[one].detach(),
            place=self.place.entry(index),
            query=None if self.query is None else self.query[one].detach(),
            at=self.at.entry(index) if isinstance(self.at, Place) else self.at,
        )

    def mapped(self, function: Callable[[Tensor], Tensor], *, but_times: bool = False) -> "Case":
        """A copy in float64 with every float tensor replaced, including the kernel's parameters.

        With `but_times`, times stay as they are: noise would change their order.
        """
        kernel = copy.deepcopy(self.kernel)
        with torch.no_grad():
            kernel.double()
            for parameter in kernel.parameters():
                parameter.copy_(function(parameter))
        return Case(
            kernel,
            function(self.u),
            self.place.mapped(function, but_times=but_times),
            None if self.query is None else function(self.query),
            self.signal,
            self.at.mapped(function, but_times=but_times) if isinstance(self.at, Place) else self.at,
        )


def present(signal: Tensor, domain: Domain) -> Tensor:
    """The signal, 0 at points that do not exist."""
    return signal if domain.mask is None else torch.where(domain.mask[..., None], signal, 0.0)


def case_of(cell: Cell) -> Case:
    """The tensors of a cell."""
    generator, precision = cell.generator(), PRECISIONS[cell.precision]
    kernel = _kernel_on(cell)
    assert kernel is not None
    exact = precision.dtype == torch.float64
    if not exact:
        kernel = copy.deepcopy(kernel).to(precision.dtype)
    place = place_of(cell.domain, generator, cell.batch, cell.shape)
    query = QUERIES[cell.query]
    at = query.at if query.at is None or isinstance(query.at, str) else query.at(place, generator, cell.batch)
    batch, points = cell.batch, place.num_points
    queries = at.num_points if isinstance(at, Place) else points
    if at is None and query.signal is None:
        queries = kernel.output_domain(place.domain()).num_points
    heads = vars(kernel).get("num_heads", 1) if not isinstance(kernel, kernels.Sum | kernels.Scaled) else 1
    place = dataclasses.replace(
        place,
        mask=MASKS[cell.mask](generator, batch, points),
        weights=WEIGHTS[cell.weights](generator, batch, points),
        pair_bias=PAIRS[cell.pairs](generator, batch, heads, queries, points),
        lists_pairs=cell.pairs in LISTED,
    )
    if isinstance(at, Place) and cell.mask == "mask per entry":
        at = dataclasses.replace(at, mask=MASKS[cell.mask](generator, batch, queries))
    if not exact:  # positions and masses are float32 at least
        place = place.mapped(Tensor.float)
        at = at.mapped(Tensor.float) if isinstance(at, Place) else at
    u = precision.scale * normal(generator, batch, points, kernel.in_dim)
    v = precision.scale * normal(generator, batch, queries, kernel.query_dim) if query.signal == "other" else None
    u = nan_where_absent(u, place.mask).to(precision.dtype)
    if v is not None:
        v = nan_where_absent(v, at.mask if isinstance(at, Place) else place.mask).to(precision.dtype)
    return Case(kernel, u, place, v, query.signal, at)


def nan_where_absent(signal: Tensor, mask: Tensor | None) -> Tensor:
    """The signal, NaN at points that do not exist."""
    return signal if mask is None else torch.where(mask[..., None], signal, torch.nan)


# ---------------------------------------------------------------------------------------------------------------------
# Comparing.

Results = dict[str, Tensor]


def results(case: Case, compute: Callable[[Case], Tensor], rows: int | None = None) -> Results:
    """The integral, or its first rows, and gradients of a fixed functional of it; 0 for unused leaves."""
    leaves = case.leaves()
    for leaf in leaves.values():
        leaf.requires_grad_()
    out = compute(case)
    if case.result_mask is not None:
        out = torch.where(case.result_mask[..., None], out, 0.0)
    out = out[:, :rows]
    tensors = list(leaves.values())
    if out.requires_grad:
        grads = torch.autograd.grad(out, tensors, cotangent(out), allow_unused=True, materialize_grads=True)
    else:
        grads = [torch.zeros_like(leaf) for leaf in tensors]  # an empty result depends on no leaf
    return {"integral": out.detach()} | {f"d/d {name}": grad for name, grad in zip(leaves, grads, strict=True)}


def cotangent(out: Tensor) -> Tensor:
    """A fixed random cotangent whose values are exact in every dtype."""
    drawn = torch.randn(out.shape, generator=Generator().manual_seed(5), dtype=torch.float64)
    return drawn.bfloat16().to(out)


def by_definition(case: Case) -> Tensor:
    """The definition `literal`; an equal query domain is replaced by the domain itself."""
    arguments = case.arguments()
    return literal(arguments._replace(query_domain=arguments.domain) if case.at == "equal" else arguments)


def by_route(route: Evaluation) -> Callable[[Case], Tensor]:
    """A function that computes a case by a route, which must accept it."""
    return lambda case: integrated(route, case.arguments())


def by_operator(case: Case) -> Tensor:
    """The integral by `IntegralOperator` with the automatic route, as users compute it."""
    operator = IntegralOperator(case.kernel, residual=False, bias=False, output_projection=False)
    domain = case.place.domain()
    query = case.u if case.signal == "u" else case.query
    return operator(case.u, domain, query=query, query_domain=case.query_domain(domain))


RESPONSE = 300.0
"""Factor of the tolerance over the change of a result when every input changes by rounding."""
CANCELLING = {torch.float64: 1e-12, torch.float32: 4e-5, torch.bfloat16: 2e-2}
"""Tolerance of gradients by dtype, relative to the largest gradient, for sums of terms that cancel. It grows with the
square of the signal's scale if that is above 1, up to `GRADIENT_AT_MOST`."""
SATURATING = 20.0
"""Additional factor for kernels in which one score can dominate: of its gradient only rounding errors remain."""
LIKE_LITERAL = 10.0
"""Factor over the error of `literal` in the same precision, with the same upper bound `GRADIENT_AT_MOST`."""
GRADIENT_AT_MOST = 0.1
NOT_ZERO = "a query that nothing is integrated for has a result other than 0"
ZERO_TO_ROUNDING = ("FFT", "LongConvolution")
"""Transforms of a whole signal: for a query before all mass they give 0 up to rounding, as their docstrings say."""
LAST_DIGITS = 10
"""Tolerance in units of rounding at the signal's scale: a transform rounds relative to the whole signal, not to each
result, which may be 0."""


class Expected:
    """The definition of a case and its gradients, computed in float64 from exactly the same values.

    Attributes:
        values: the integral and its gradients, by name.
        empty: mask of the queries that see no mass.
    """

    def __init__(self, case: Case, scale: float) -> None:
        self.case, self.scale = case, scale
        self.exact = case.mapped(lambda t: t.detach().double())
        self.values, self.empty = results(self.exact, by_definition), massless_queries(case)

    @functools.cached_property
    def allowed(self) -> dict[str, float]:
        """Absolute tolerance of each entry where the plain tolerance is exceeded."""
        dtype = self.case.u.dtype
        eps, generator = torch.finfo(dtype).eps, Generator().manual_seed(7)

        def disturb(t: Tensor) -> Tensor:
            return t.detach() * (1 + 0.5 * eps * normal(generator, *t.shape))

        disturbed = results(self.exact.mapped(disturb, but_times=True), by_definition)
        response, literal_errors = errors(disturbed, self.values), {}
        if dtype != torch.float64:
            literal_errors = errors(results(self.case, by_definition), self.values)
        largest = max((size(value) for name, value in self.values.items() if name != "integral"), default=0.0)
        allowed = {name: max(self.plain_tolerance(name), RESPONSE * response[name]) for name in self.values}
        cancelling = CANCELLING[dtype] * max(1.0, self.scale**2) * (SATURATING if self.saturates else 1.0)
        for leaf_name, leaf in self.exact.leaves().items():
            name = f"d/d {leaf_name}"
            # scale of the gradient by this leaf alone if no terms cancelled
            natural = max(largest, size(self.values["integral"]) / max(size(leaf.nan_to_num()), 1e-6))
            excused = max(LIKE_LITERAL * literal_errors.get(name, 0.0), cancelling * natural)
            most = GRADIENT_AT_MOST * natural if not self.saturates else float("inf")
            allowed[name] = max(allowed[name], min(excused, most))
        return allowed

    @property
    def saturates(self) -> bool:
        """Whether rounding of a score can change results much: in a softmax of squares, or over a norm close to 0."""
        return isinstance(self.case.kernel, YatScored | kernels.Neumann | kernels.LinearInfiniteAttention)

    def plain_tolerance(self, name: str) -> float:
        """The dtype's tolerance times the entry's largest value, at least rounding at the signal's scale."""
        dtype = self.case.u.dtype
        return max(TOLERANCE[dtype] * size(self.values[name]), LAST_DIGITS * torch.finfo(dtype).eps * self.scale)

    def mismatch_of(self, compute: Callable[[Case], Tensor]) -> str:
        """The mismatch of a function's results on the case; empty where they agree."""
        try:
            got = results(self.case, compute)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return self.mismatch(got)

    def mismatch(self, got: Results) -> str:
        """A description of how results differ from the expected values; empty where they agree."""
        for name, value in self.values.items():
            if got[name].shape != value.shape:
                return f"{name} has shape {tuple(got[name].shape)}, not {tuple(value.shape)}"
        found = [
            f"{name} off by {error:.1e} of {size(self.values[name]):.1e}, where {self.allowed[name]:.0e} is allowed"
            for name, error in errors(got, self.values).items()
            if not error <= self.plain_tolerance(name) and not error <= self.allowed[name]
        ]
        if got["integral"][self.empty].any():
            found.append(NOT_ZERO)
        return "; ".join(found)


def size(t: Tensor) -> float:
    """The largest absolute value; 0 for an empty tensor."""
    return t.detach().abs().amax().item() if t.numel() else 0.0


def errors(got: Results, expected: Results) -> dict[str, float]:
    """The largest absolute difference of each entry; infinite where it is NaN."""
    differences = {name: size(got[name].double() - value.double()) for name, value in expected.items()}
    return {name: error if error == error else float("inf") for name, error in differences.items()}


class Wrong(NamedTuple):
    """A disagreement of a route with the definition."""

    cell: Cell
    route: str
    error: str

    def __str__(self) -> str:
        return f"{self.cell} · {self.route}: {self.error}"


def disagreements(cell: Cell, exercised: Counter[str] | None = None, only: str | None = None) -> list[Wrong]:
    """All disagreements of the routes and of the operator in a cell; with `only`, those of one route."""
    case = case_of(cell)
    try:
        expected = Expected(case, PRECISIONS[cell.precision].scale)
    except Exception as error:  # a cell that `fits` has an integral
        return [Wrong(cell, "matrix", f"{type(error).__name__}: {error}")]
    wrong = [
        Wrong(cell, "matrix", f"{name} is not finite") for name, v in expected.values.items() if not v.isfinite().all()
    ]
    for name, compute in accepted(case):
        if only not in (None, name):
            continue
        if exercised is not None:
            exercised[name] += 1
        found = expected.mismatch_of(compute)
        if found == NOT_ZERO and name.startswith(ZERO_TO_ROUNDING):
            continue
        # a route may refuse an equal domain only when it computes
        if found and not (found.startswith("ValueError") and case.at == "equal"):
            wrong.append(Wrong(cell, name, found))
    return wrong


class RouteQuota:
    """Limits the number of cases that each route computes."""

    def __init__(self, limit: int) -> None:
        self.used, self.limit = Counter[str](), limit

    def allows(self, name: str) -> bool:
        """Whether a route has computed fewer cases than the limit."""
        return self.used[name] < self.limit


def accepted(case: Case, quota: RouteQuota | None = None) -> Iterator[tuple[str, Callable[[Case], Tensor]]]:
    """The routes that accept a case, and the operator, by name; only those within a quota, if there is one."""
    arguments = case.arguments()
    routes = [(route.name + (" (eager)" if route in EAGER else ""), route) for route in ALL_ROUTES]
    for name, route in [*routes, ("operator", None)]:
        if quota is not None and not quota.allows(name):
            continue  # without checking whether the route refuses
        if route is None or not refusals(route, arguments):
            if quota is not None:
                quota.used[name] += 1
            yield name, by_operator if route is None else by_route(route)


def massless_queries(case: Case) -> Tensor:
    """Mask `(B, Nq)` of the existing queries that see no mass at all."""
    kernel, u, domain, _, query_domain = case.arguments()
    domain = domain.with_dense_pairs()
    queries = domain if query_domain is None else query_domain
    mass = domain.weights.detach().expand(len(u), domain.num_points)[:, None] > 0
    seen = mass.expand(-1, queries.num_points, -1)
    if domain.pair_weights is not None:
        seen = seen & (domain.pair_weights > 0).any(1)
    if kernel.is_causal and not kernel.reads_past_by_position:
        seen = seen & (torch.arange(domain.num_points) < preceding_counts(queries, domain)[..., None])
    nothing = ~seen.any(-1)
    return nothing if queries.mask is None else nothing & queries.mask


def main(arguments: list[str]) -> None:
    """Prints the counts, or the errors of the named cells."""
    if arguments:
        for text in arguments:
            found = disagreements(Cell.parse(text))
            print("\n".join(map(str, found)) or f"{text}: nothing wrong")
        return
    print(counts())


def counts() -> str:
    """Table with the number of cells of each kernel."""
    lines = [f"{'kernel':<28}{'variants':>9}{'× domain':>10}{'× query':>10}{'× route':>10}{'quick':>8}{'pairs':>8}"]
    total = Counter[str]()
    for name in ROWS:
        number = Counter[str]()
        number["variants"] = len(ROWS[name].variants)
        for variant in ROWS[name].variants:
            for domain in KINDS:
                cells = [cell for query in QUERIES if fits(cell := Cell(name, variant, domain, query=query))]
                number["domains"] += bool(cells)
                number["queries"] += len(cells)
                number["routes"] += sum(sum(1 for _ in accepted(case_of(cell))) - 1 for cell in cells)
        number["quick"], number["pairs"] = len(quick_cells(name)), len(covering_cells(name))
        total += number
        lines.append(_line(name, number))
    full = total["queries"] * len(MASKS) * len(WEIGHTS) * len(PAIRS) * len(PRECISIONS)
    lines.append(_line("all", total))
    lines.append(f"with masks, weights, pair weights and precisions: up to {full} cells")
    return "\n".join(lines)


def _line(name: str, number: Counter[str]) -> str:
    sizes = [number[column] for column in ("variants", "domains", "queries", "routes", "quick", "pairs")]
    return f"{name:<28}" + "".join(f"{size:>{width}}" for size, width in zip(sizes, (9, 10, 10, 10, 8, 8), strict=True))


if __name__ == "__main__":
    main(sys.argv[1:])
