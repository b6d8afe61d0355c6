"""The route to the fused sums over Yat scores."""

import dataclasses
from typing import final

from torch import Tensor

from fredholm.evaluation.attention.sums.inputs import YatInputs
from fredholm.evaluation.attention.yat_tiled import continue_scores, integrate_scores
from fredholm.evaluation.evaluation import StatefulRoute, cache_refusals
from fredholm.evaluation.integral import Integral
from fredholm.evaluation.triton.machine import LARGEST_DIM, machine_refusals
from fredholm.evaluation.triton.yat_op import yat_sums_triton
from fredholm.kernels import Softermax, Softmax, State
from fredholm.kernels.attention.yat import YatScored


@final
@dataclasses.dataclass(frozen=True)
class TritonYat(StatefulRoute[YatScored]):
    """For `YatScored` kernels on a GPU: `YatTiled` in one fused pass, scores in registers.

    Machines, dtypes, precision and determinism as in `TritonTiled`. Signals in bfloat16 are multiplied exactly and
    summed in float32, so that distances are those of float32.
    """

    marker = YatScored

    def refusals(self, integral: Integral[YatScored]) -> list[str]:
        """Refuses machines and dtypes without such kernels, normalisers that do not compete, and large heads."""
        kernel, domain = integral.kernel, integral.domain
        reasons = machine_refusals(integral.u)
        if reasons:
            return reasons
        if type(kernel.normaliser) not in (Softmax, Softermax):
            reasons.append(f"softmax and softermax are fused, not {type(kernel.normaliser).__name__}")
        if kernel.reads_bias:
            reasons.append("keys have constants, which are not fused")
        if domain.pair_bias is not None:
            reasons.append("the measure differs from query to query")
        dim = max(kernel.query_dim, kernel.out_dim) // kernel.num_heads
        if dim > LARGEST_DIM:
            reasons.append(f"a head has {dim} channels, above {LARGEST_DIM}")
        return reasons

    def compute(self, integral: Integral[YatScored]) -> Tensor:
        """See `Route.compute`."""
        return integrate_scores(integral, _fused)

    def run_refusals(self, integral: Integral[YatScored], state: State | None, reset: Tensor | None) -> list[str]:
        """Refuses what a cache of keys does not remember."""
        return cache_refusals(integral, reset)

    def advance(
        self, integral: Integral[YatScored], state: State | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """See `StatefulRoute.advance`, and `continue_scores`."""
        return continue_scores(integral, state, _fused)


def _fused(inputs: YatInputs, normaliser: list[float]) -> Tensor:
    return yat_sums_triton(inputs, normaliser).out
