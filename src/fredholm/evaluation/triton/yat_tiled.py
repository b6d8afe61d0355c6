"""The fused sum over Yat scores: the route, and the operator with its gradient."""

import dataclasses
from typing import final

import torch
from torch import Tensor

from fredholm.evaluation.attention.score_tiled import (
    ScoreInputs,
    continuation_refusals,
    continue_scores,
    integrate_scores,
    plain_scores,
)
from fredholm.evaluation.custom_op import Operator
from fredholm.evaluation.evaluation import StatefulRoute
from fredholm.evaluation.integral import Integral
from fredholm.evaluation.triton.machine import LARGEST_DIM, FusedRoute
from fredholm.evaluation.triton.yat_sums import YatOutputs, empty_outputs, settings_of
from fredholm.kernels import Normaliser, Softermax, Softmax, State
from fredholm.kernels.attention.scored import Score
from fredholm.kernels.attention.yat import YatScore, YatScored


@final
@dataclasses.dataclass(frozen=True)
class TritonYat(FusedRoute[YatScored], StatefulRoute[YatScored]):
    """For `YatScored` kernels on a GPU: `ScoreTiled` in one fused pass, scores in registers.

    Machines, dtypes, precision and determinism as in `TritonTiled`. Signals in bfloat16 are multiplied exactly and
    summed in float32, so that distances are those of float32. For signals in float16 everything is computed in float32.
    """

    marker = YatScored

    def unfused(self, integral: Integral[YatScored]) -> list[str]:
        """Refuses elementwise normalisers, constants of keys, and large heads; see `FusedRoute.unfused`."""
        kernel, reasons = integral.kernel, []
        if type(kernel.normaliser) not in (Softmax, Softermax):
            reasons.append(f"softmax and softermax are fused, not {type(kernel.normaliser).__name__}")
        if kernel.reads_bias:
            reasons.append("keys have constants, which are not fused")
        dim = max(kernel.product_dim, kernel.out_dim // kernel.num_heads)
        if dim > LARGEST_DIM:
            reasons.append(f"a head has {dim} channels, above {LARGEST_DIM}")
        return reasons

    def compute(self, integral: Integral[YatScored]) -> Tensor:
        """See `Route.compute`."""
        return integrate_scores(integral, _fused)

    def run_refusals(self, integral: Integral[YatScored], state: State | None, reset: Tensor | None) -> list[str]:
        """Refuses kernels whose state is not keys and values, and resets, masks and weights, which a cache lacks."""
        return continuation_refusals(integral, reset)

    def advance(
        self, integral: Integral[YatScored], state: State | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """See `StatefulRoute.advance`, and `continue_scores`."""
        return continue_scores(integral, state, _fused)


def _fused(inputs: ScoreInputs, score: Score, normaliser: Normaliser) -> Tensor:
    # squares, and slopes where a query is near a key, leave the range of float16
    inputs = inputs._make(t if t is None or t.dtype != torch.float16 else t.float() for t in inputs)
    return yat_sums_triton(inputs, normaliser.encoded()).out


def _forward(inputs: ScoreInputs, normaliser: list[float]) -> YatOutputs:
    # the library can be imported without triton
    from fredholm.evaluation.triton.yat import yat_forward

    with torch.cuda.device_of(inputs.query):
        return yat_forward(inputs, settings_of(Normaliser.decoded(normaliser)))


def _like(inputs: ScoreInputs, normaliser: list[float]) -> YatOutputs:
    return empty_outputs(inputs)


def _backward(
    inputs: ScoreInputs, outputs: YatOutputs, grads: YatOutputs, wanted: frozenset[str], normaliser: list[float]
) -> dict[str, Tensor]:
    # the library can be imported without triton
    from fredholm.evaluation.triton.yat import yat_backward

    with torch.cuda.device_of(inputs.query):
        return yat_backward(grads.out, outputs, inputs, wanted, settings_of(Normaliser.decoded(normaliser)))


yat_sums_triton = Operator(
    "yat_sums_triton",
    ScoreInputs,
    YatOutputs,
    _forward,
    _like,
    _backward,
    results=("out",),
    keeps=YatOutputs._fields,
    plain=lambda inputs, normaliser: plain_scores(inputs, YatScore().encoded(), normaliser),
    is_counted=False,
)
"""The sum over Yat scores. Option: a normaliser as `encoded`."""
