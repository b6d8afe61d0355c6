"""Features of points, chunk by chunk, with their gradients.

Legend of this folder (kernel g of G, G = 1 or H; batch entry b; point j; hidden unit k; see `FeatureFactorised`)
    p_j   P γ_j + R u_j + c              h_j   [φ(p_j); 1], w + 1 features
    S     Σ_j ω_j h_j ⊗ v_j, (w + 1, d)  T     a table (w + 1, n), so that h_i T is n numbers per point
    A_j   Σ_a h_ja A_a, (n, m): a matrix of every point, linear in its features

Points are processed in chunks. A point's w features exist only within its chunk, and the backward pass recomputes them:
memory is O(N·C) plus a chunk. Inside a chunk arrays are (H, b, c, …), so that heads are the batch of matrix products.
"""

from typing import NamedTuple, final

import torch
from torch import Tensor
from torch.nn.functional import pad

from fredholm._precision import wide_dtype
from fredholm.evaluation.perceptron.sums import activate_into, activation_gradient_into
from fredholm.evaluation.tiling import ranges
from fredholm.kernels.perceptron.factorised import FeaturePair, PointFeatures
from fredholm.kernels.perceptron.mlp import activate


class FeatureInputs(NamedTuple):
    """All tensors of the features of one side; weights of unread inputs have no columns. B' is 1 or B.

    They are the first inputs of every operator, followed by the factors of the features.
    """

    lifted: Tensor  # γ: (B', N, f)
    content: Tensor  # u: (B, N, H, e)
    position_weight: Tensor  # P: (G, w, f)
    content_weight: Tensor  # R: (G, w, e)
    bias: Tensor  # c: (G, w)

    def to(self, dtype: torch.dtype) -> "FeatureInputs":
        """Converts all tensors to one dtype."""
        return FeatureInputs(*(t.to(dtype) for t in self))


class FeatureOutputs(NamedTuple):
    """The output of an operator of features."""

    out: Tensor


def feature_inputs(pair: FeaturePair, side: PointFeatures, u: Tensor, lifted: Tensor) -> FeatureInputs:
    """The tensors of one side, unconverted; arguments as in `FeaturePair.inputs`."""
    at = lifted if side.reads_position else lifted[..., :0]
    content = apart(u, pair.num_heads) if side.reads_content else u.new_empty(*u.shape[:2], pair.num_heads, 0)
    position_weight, content_weight = (
        side.bias.new_empty(*side.bias.shape, 0) if weight is None else weight
        for weight in (side.position_weight, side.content_weight)
    )
    return FeatureInputs(at, content, position_weight, content_weight, side.bias)


def apart(u: Tensor, heads: int) -> Tensor:
    """`(B, N, C)` as `(B, N, H, C / H)`."""
    return u.view(*u.shape[:2], heads, u.shape[-1] // heads)


def chunk_elements(u: Tensor) -> int:
    """Number of features that exist at one time: those that fit into a CPU's cache, or fill an accelerator."""
    return 1 << (19 if u.device.type == "cpu" else 26)


class Chunk(NamedTuple):
    """Batch entries and points of a chunk: some points of one entry, or all points of several."""

    batch: slice
    points: slice


def by_head(value: Tensor, at: Chunk) -> Tensor:
    """A chunk of `(B, N, H, d)` as `(H, b, c, d)`."""
    return value[at.batch, at.points].permute(2, 0, 1, 3)


def by_point(value: Tensor) -> Tensor:
    """`(H, b, c, d)` as `(b, c, H, d)`."""
    return value.permute(1, 2, 0, 3)


def stacked(value: Tensor) -> Tensor:
    """`(H, b, c, d)` as one stack of matrices `(H·b, c, d)`."""
    return value.flatten(0, 1)


def plain_features(inputs: FeatureInputs, activation: str) -> Tensor:
    """h of all points, `(B, N, H, w + 1)`, in differentiable operations."""
    read = inputs.content[..., : inputs.content_weight.shape[-1]]
    content = read.unflatten(2, (len(inputs.bias), -1))  # (B, N, G, H / G, e)
    at_positions = inputs.bias.expand(*content.shape[:3], -1)
    if inputs.position_weight.shape[-1]:  # ONNX has no empty sums
        at_positions = at_positions + torch.einsum("bnf,gwf->bngw", inputs.lifted, inputs.position_weight)
    p = at_positions[:, :, :, None].expand(*content.shape[:4], -1)
    if inputs.content_weight.shape[-1]:
        p = p + torch.einsum("bngke,gwe->bngkw", content, inputs.content_weight)
    return pad(activate(p, activation).flatten(2, 3), (0, 1), value=1.0)


@final
class Features:
    """The perceptron of one side; after `begin_gradients`, also the gradients of its inputs.

    Args:
        inputs: its tensors, in one dtype.
        activation: φ.
    """

    def __init__(self, inputs: FeatureInputs, activation: str) -> None:
        self.t = inputs
        self.reads_content = inputs.content_weight.shape[-1] > 0
        self.activation = activation
        self.batch, self.num_points, self.heads = inputs.content.shape[:3]
        self.kernels, self.width = inputs.bias.shape
        self.folds = self.heads // self.kernels  # heads that share a kernel
        self.shares_positions = inputs.lifted.shape[0] == 1
        # [P, c] goes with [γ; 1]: the constant and its gradient join the product with γ
        self.position_weight = torch.cat([inputs.position_weight, inputs.bias[..., None]], dim=-1)
        self._last: tuple[slice, Tensor] | None = None

    def chunks(self, elements: int, numbers: int = 0) -> list[Chunk]:
        """Chunks of at most `elements` entries of p, or of `numbers` entries per point and head if these are more.

        The batch is innermost; a chunk has at least one point.
        """
        size = max(1, elements // (self.heads * max(self.width, numbers)))
        entries = max(1, size // max(1, self.num_points))
        return [Chunk(b, points) for points in ranges(self.num_points, size) for b in ranges(self.batch, entries)]

    def pre_activation(self, at: Chunk) -> Tensor:
        """p, `(H, b, c, w)`, in memory of its own."""
        content, weight = self._content(at), self.t.content_weight.mT
        if self.batch == 1 and self.folds == 1:
            p = self._product(self._lifted(at))
            return p.baddbmm_(content.flatten(1, 3), weight)[:, None] if self.reads_content else p[:, None]
        p = content.flatten(1, 3) @ weight
        p = p.view(self.kernels, self.folds, *content.shape[2:4], self.width)
        return p.add_(self._at_positions(at)[:, None]).flatten(0, 1)

    def activated(self, p: Tensor, out: Tensor | None = None) -> Tensor:
        """φ(p): the features without the constant 1."""
        return activate_into(p, torch.empty_like(p) if out is None else out, self.activation)

    def begin_gradients(self, wanted: frozenset[str]) -> None:
        """Sets all gradients to 0; those of γ and u are computed only where `wanted`."""
        self.wanted, t = wanted, self.t
        self.to_lifted = t.lifted.new_zeros(t.lifted.shape if "lifted" in wanted else 0, dtype=wide_dtype(t.lifted))
        self.to_content = t.content.new_zeros(t.content.shape if "content" in wanted else 0)
        self.to_position_weight = t.bias.new_zeros(self.position_weight.shape, dtype=wide_dtype(t.bias))
        self.to_content_weight = t.bias.new_zeros(t.content_weight.shape, dtype=wide_dtype(t.bias))

    def collect(self, at: Chunk, p: Tensor, grad: Tensor) -> None:
        """Adds to the gradients of all inputs from that of φ(p), `(H, b, c, w)`; `grad` is overwritten."""
        grad = activation_gradient_into(grad, p, self.activation)
        if self.reads_content:
            flat = grad.view(self.kernels, -1, self.width)
            self.to_content_weight += flat.mT @ self._content(at).flatten(1, 3)
            if "content" in self.wanted:
                below = (flat @ self.t.content_weight).view(*grad.shape[:3], -1)
                self.to_content[at.batch, at.points] = by_point(below)
        shared = (1, 2) if self.shares_positions else (1,)
        by_kernel = grad.unflatten(0, (self.kernels, self.folds)).sum(shared, keepdim=True)[:, 0].flatten(1, 2)
        lifted = self._lifted(at)
        self.to_position_weight += by_kernel.mT @ lifted.flatten(0, 1)
        if "lifted" in self.wanted and self.to_lifted.numel():
            below = (by_kernel @ self.t.position_weight).sum(0).unflatten(0, lifted.shape[:2])
            self.to_lifted[self._entries(at), at.points] += below

    def results(self) -> dict[str, Tensor]:
        """The gradients."""
        found = {
            "lifted": self.to_lifted,
            "content": self.to_content,
            "position_weight": self.to_position_weight[..., :-1],
            "content_weight": self.to_content_weight,
            "bias": self.to_position_weight[..., -1],
        }
        return {name: found[name] for name in found if name in self.wanted}

    def _entries(self, at: Chunk) -> slice:
        return slice(None) if self.shares_positions else at.batch

    def _lifted(self, at: Chunk) -> Tensor:
        """[γ; 1], `(b or 1, c, f + 1)`."""
        return pad(self.t.lifted[self._entries(at), at.points], (0, 1), value=1.0)

    def _content(self, at: Chunk) -> Tensor:
        """The channels of u that are read, `(G, H / G, b, c, e)`."""
        read = self.t.content[..., : self.t.content_weight.shape[-1]]
        return by_head(read, at).unflatten(0, (self.kernels, self.folds))

    def _product(self, lifted: Tensor) -> Tensor:
        """P γ + c, `(G, b·c, w)`."""
        return lifted.flatten(0, 1).expand(self.kernels, -1, -1) @ self.position_weight.mT

    def _at_positions(self, at: Chunk) -> Tensor:
        """P γ + c, `(G, b or 1, c, w)`; where the batch shares positions, computed once for all its chunks."""
        if self._last is not None and self._last[0] == at.points:
            return self._last[1]
        lifted = self._lifted(at)
        part = self._product(lifted).unflatten(1, lifted.shape[:2])
        if self.shares_positions:
            self._last = (at.points, part)
        return part
