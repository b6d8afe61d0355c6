"""A dense layer of Yat units: the integral of a point against prototypes, one output per prototype.

It is a single PyTorch operator, which computes products and responses together, a run of rows at a time.
"""

import math
from typing import NamedTuple, final

import torch
from torch import Tensor

from fredholm._precision import wide_dtype
from fredholm._settings import check_count
from fredholm.evaluation.custom_op import Operator
from fredholm.kernels.attention.yat import response
from fredholm.layers.yat_layer import YatLayer, is_recorded
from fredholm.layers.yat_response import (
    BLOCK_ELEMENTS,
    Answers,
    Terms,
    Totals,
    block_elements,
    differentiate,
    kept_dtype,
    respond,
    runs,
    squares,
)

# entries of one matrix product, enough for its full speed
PRODUCT_ELEMENTS = 2**22


class DenseInputs(NamedTuple):
    """Inputs of a layer of Yat units."""

    x: Tensor  # points: (M, d)
    w: Tensor  # prototypes: (n, d), in the dtype of x, which is also that of Y; all else is in at least float32
    b: Tensor | None  # (n,)
    epsilon: Tensor  # 0-dim
    scale: Tensor | None  # 0-dim; None: 1


def _like(inputs: DenseInputs, keep: bool) -> Answers:
    out = inputs.x.new_empty(inputs.x.shape[0], inputs.w.shape[0])
    dtype = kept_dtype(out.dtype, has_bias=inputs.b is not None)
    return Answers(out, torch.empty_like(out, dtype=dtype) if keep else None)


def _forward(inputs: DenseInputs, keep: bool) -> Answers:
    (x, w, *_), (out, kept) = inputs, _like(inputs, keep)
    (m, n), wide = out.shape, w.to(wide_dtype(x))
    terms, (rows, step) = _terms(inputs, wide), _steps(m, n)
    products = wide.new_empty(min(rows, m), n) if x.dtype != wide.dtype else None
    free = wide.new_empty(2, min(step, m), 1, n, 1)
    for run in runs(m, rows):
        dot = out[run] if products is None else products[: run.stop - run.start]
        torch.mm(x[run].to(wide.dtype), wide.mT, out=dot)
        for part in runs(dot.shape[0], step):
            at, count = slice(run.start + part.start, run.start + part.stop), part.stop - part.start
            respond(
                _as_block(dot[part]),
                terms.at((at, _ALL, _ALL)),
                (free[0, :count], free[1, :count]),
                _as_block(out[at]),
                None if kept is None else _as_block(kept[at]),
            )
    return Answers(out, kept)


def _backward(
    inputs: DenseInputs, outputs: Answers, grads: Answers, wanted: frozenset[str], keep: bool
) -> dict[str, Tensor]:
    (x, w, *_, scale), (out, kept), (grad, _) = inputs, outputs, grads
    assert kept is not None
    (m, n), wide = out.shape, w.to(wide_dtype(x))
    terms, (rows, step) = _terms(inputs, wide), _steps(m, n)
    sums, totals = terms.scaled_sums(), Totals.zeros(terms)
    # ∂‖x‖²/∂x = 2 x shares the factor 2 s of ∂Y/∂S
    factor = 2.0 if scale is None else 2.0 * scale
    to_x, to_w = torch.empty_like(x, dtype=wide.dtype) if "x" in wanted else None, torch.zeros_like(wide)
    to_dot, free = wide.new_empty(min(rows, m), n), wide.new_empty(2, min(step, m), 1, n, 1)
    for run in runs(m, rows):
        for part in runs(run.stop - run.start, step):
            at, count = slice(run.start + part.start, run.start + part.stop), part.stop - part.start
            differentiate(
                _as_block(grad[at]),
                _as_block(out[at]),
                _as_block(kept[at]),
                (at, _ALL, _ALL),
                sums.at((at, _ALL, _ALL)),
                totals,
                (free[0, :count], free[1, :count]),
                _as_block(to_dot[part]),
            )
        pulled, points = to_dot[: run.stop - run.start], x[run].to(wide.dtype)
        to_w.addmm_(pulled.mT, points)
        if to_x is not None:
            torch.mm(pulled, wide, out=to_x[run])
            to_x[run].addcmul_(points, totals.query_square[run].view(-1, 1), value=-1).mul_(factor)
    to_w.addcmul_(wide, totals.key_square.view(n, 1), value=-1).mul_(factor)
    done = totals.finished(terms)
    found = {"x": to_x, "w": to_w, "b": done.bias, "epsilon": done.epsilon, "scale": done.scale}
    return {name: grad for name, grad in found.items() if grad is not None}


def _plain(inputs: DenseInputs, keep: bool) -> tuple[Tensor]:
    x, w, b, epsilon, scale = inputs
    dtype = wide_dtype(x)
    points, wide, bias = x.to(dtype), w.to(dtype), None if b is None else b.to(dtype)
    out = response(points @ wide.mT, squares(points)[:, None], squares(wide), bias, epsilon)
    return ((out if scale is None else out * scale).to(x.dtype),)


_ALL = slice(None)


def _terms(inputs: DenseInputs, wide: Tensor) -> Terms:
    x, _, b, epsilon, scale = inputs
    bias = None if b is None else b.to(wide.dtype).view(1, 1, -1, 1)
    return Terms(squares(x.to(wide.dtype)).view(-1, 1, 1, 1), squares(wide).view(1, 1, -1, 1), bias, epsilon, scale)


def _steps(m: int, n: int) -> tuple[int, int]:
    """Number of rows of one matrix product, without a small remainder, and of one block."""
    most = max(1, PRODUCT_ELEMENTS // max(1, n))
    return max(1, math.ceil(m / math.ceil(max(1, m) / most))), max(1, block_elements(BLOCK_ELEMENTS) // max(1, n))


def _as_block(rows: Tensor) -> Tensor:
    """`(M, n)` as M signals of one group of n units at one point."""
    return rows[:, None, :, None]


yat_dense = Operator(
    "yat_dense",
    DenseInputs,
    Answers,
    _forward,
    _like,
    _backward,
    results=("out",),
    keeps=("out", "kept"),
    plain=_plain,
)
"""Y, `(M, n)`. Option: whether to keep the residuals for a backward pass."""


@final
class YatDense(YatLayer):
    """Y_j = s (x·w_j + b_j)² / (‖x - w_j‖² + ε), j = 1 … n (Yat, eq. 1 and section 2.3), in place of a linear layer
    and its activation.

    It is the integral of `kernels.Yat` over n prototypes that each count once and contribute one unit vector. For the
    backward it stores, besides input and output, one byte per entry, or one number with a bias; forward mode and second
    derivatives need several arrays of the output's size. Products and everything after them are computed in at least
    float32, under autocast too; the output has the dtype of the signal, or autocast's. In bfloat16 entries up to 10⁴
    give finite values and gradients. A NaN gives NaN, and so does a point that is infinite or, in float32, longer than
    10¹⁹.

    Prototypes start so that responses are of order 1 for points of length 1 to √d (`reset_parameters`), b at 0.
    Default ε: 10⁻³ is above the rounding of a squared distance in float32, about 10⁻⁷ (‖x‖² + ‖w‖²), up to ‖x‖² = 10⁴;
    longer points need more. The response of one unit may reach s (‖w‖⁴/ε + ‖w‖²), next to its prototype.

    Args:
        in_features: d, >= 1.
        out_features: prototypes n, >= 1.
        bias: whether units have a constant b.
        epsilon: ε > 0, in units of a squared distance.
        learn_epsilon: whether ε is learned, starting from `epsilon`.
        scale: whether s = (n / log(1 + n))^α, with α learned from 1; else s = 1.

    Attributes:
        weight: the prototypes, `(n, d)`.
        bias: b, `(n,)`, or None.

    Raises:
        ValueError: on sizes below 1 and an ε that is not positive and finite.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        epsilon: float = 1e-3,
        learn_epsilon: bool = False,
        scale: bool = True,
    ) -> None:
        for what, size in (("in_features", in_features), ("out_features", out_features)):
            check_count("YatDense", what, size)
        shape = out_features, in_features
        super().__init__(shape, bias=bias, epsilon=epsilon, learn_epsilon=learn_epsilon, scale=scale)
        self.in_features, self.out_features = in_features, out_features

    def forward(self, x: Tensor) -> Tensor:
        """`(..., d)` to `(..., n)`.

        Raises:
            ValueError: on another number of features.
            TypeError: on float16, and on a signal of another dtype than the layer's outside autocast.
        """
        self._check_tensor(x)
        if x.ndim < 1 or x.shape[-1] != self.in_features:
            raise ValueError(f"YatDense: expected a signal (..., {self.in_features}); got {tuple(x.shape)}")
        dtype = self._answering_dtype(x)
        epsilon, scale = self.softening(), None if self.scale is None else self.scale()
        keep = is_recorded(x, self.weight, self.bias, epsilon, scale)
        rows = x.reshape(-1, self.in_features).to(dtype)
        out, _ = yat_dense(DenseInputs(rows, self.weight.to(dtype), self.bias, epsilon, scale), keep)
        return out.view(*x.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        """The options that `print(module)` shows."""
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
