"""The route to the fused sums over Yat scores."""

import dataclasses
from typing import final

from torch import Tensor

from fredholm.domains import Domain
from fredholm.evaluation.evaluation import StatefulEvaluation
from fredholm.evaluation.triton.machine import LARGEST_DIM, machine_refusals
from fredholm.evaluation.triton.yat_op import yat_sums_triton
from fredholm.evaluation.yat_sums import YatInputs
from fredholm.evaluation.yat_tiled import continue_scores, integrate_scores
from fredholm.kernels import Kernel, Softermax, Softmax, State, StatefulYat, YatScored


@final
@dataclasses.dataclass(frozen=True)
class TritonYat(StatefulEvaluation):
    """For `YatScored` kernels on a GPU: `YatTiled` in one fused pass, scores in registers.

    Machines, dtypes, precision and determinism as in `TritonTiled`. Signals in bfloat16 are multiplied exactly and
    summed in float32, so that distances are those of float32.
    """

    marker = YatScored

    def refusals(
        self, kernel: Kernel, u: Tensor, domain: Domain, query: Tensor | None, query_domain: Domain | None
    ) -> list[str]:
        """Refuses machines and dtypes without such kernels, normalisers that do not compete, and large heads."""
        assert isinstance(kernel, YatScored)
        reasons = machine_refusals(u)
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

    def integrate(
        self, kernel: Kernel, u: Tensor, domain: Domain, query: Tensor | None = None, query_domain: Domain | None = None
    ) -> Tensor:
        """See `Evaluation.integrate`."""
        assert isinstance(kernel, YatScored)
        query, query_domain = (u if query is None else query), (domain if query_domain is None else query_domain)
        form = kernel.yat_form(u, domain, query, query_domain)
        return integrate_scores(kernel, form, domain, query_domain, _fused)

    def run(
        self, kernel: Kernel, u: Tensor, domain: Domain, state: State | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """See `StatefulEvaluation.run`, and `continue_scores`."""
        assert isinstance(kernel, StatefulYat)
        return continue_scores(kernel, u, domain, state, reset, _fused)


def _fused(inputs: YatInputs, normaliser: list[float]) -> Tensor:
    return yat_sums_triton(list(inputs), normaliser)[0]
