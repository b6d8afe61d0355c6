"""A kernel of one learned number per pair.

Legend
    h_i, h'_j    features of query and key (`factorised.py`)
    m            (w + 1, w + 1) matrix per head: φ_i = mᵀ h_i and ψ_j = h'_j are w + 1 signed features each
    V            (d, d) matrix per head

    κ(x, y, u_x, u_y) = (φ(x, u_x) · ψ(y, u_y)) V,   φ · ψ = h(x, u_x)ᵀ m h'(y, u_y)

The form of linear attention (ITNet, arXiv 2606.19538, eq. 91) with learned features of position and content, which may
be negative, and without its normalisation. Compared with Φᵀ Ψ (`low_rank_mlp.py`) it has d times fewer directions in
the channels of a pair, but all w + 1 of the features, where rank r keeps r.
"""

import math
from typing import final

import torch
from torch import Tensor, nn

from fredholm._precision import wide_dtype
from fredholm.kernels.kernel import State
from fredholm.kernels.perceptron.factorised import PointInputs, Separable, SeparableForm
from fredholm.kernels.perceptron.mlp import Activation, check_scale


@final
class SeparableMLP(Separable):
    """κ = (φ(x, u(x)) · ψ(y, u(y))) V, head by head: cost linear in the points, (w + 1) x d numbers of state per head.

    Args:
        embed_dim: channels of the signal, in and out; a multiple of `num_heads`.
        num_heads: heads H; head h acts on its own d = embed_dim / H channels.
        pos_dim: coordinates s of a position.
        width: hidden units w of both perceptrons.
        activation: exact GELU, its tanh approximation, or ReLU.
        inputs: the inputs of each point; all by default.
        num_frequencies: frozen random Fourier frequencies L; 0 reads raw coordinates.
        sigma: standard deviation of the frequencies, in cycles per unit length.
        head_shared: one kernel for all heads instead of one per head.
        is_causal: the mean over the past: κ = 0 where y comes after x, divided by the mass of the past. Such a kernel
            can go step by step, with the state Σ ψ ⊗ u and the number of points; if it reads positions, on points
            with times.
        epsilon: scale of the random part of m at the start.

    Initialisation: perceptrons as in `kernels.MLP`, V = I, m ~ ε N(0, 1/w) but for m = 1 where both features are the
    constant, so that with a measure of total mass 1 the operator starts as mean + identity.

    Raises:
        ValueError: on heads that do not divide the channels, sizes below 1, or frequencies without effect.
    """

    no_weight_decay = frozenset({"score_weight", "value_weight"})

    def __init__(
        self,
        embed_dim: int,
        num_heads: int = 1,
        pos_dim: int = 1,
        *,
        width: int = 128,
        activation: Activation = "gelu",
        inputs: PointInputs | None = None,
        num_frequencies: int = 64,
        sigma: float = 10.0,
        head_shared: bool = False,
        is_causal: bool = False,
        epsilon: float = 1e-3,
    ) -> None:
        super().__init__(
            embed_dim, num_heads, pos_dim, width, activation, inputs, num_frequencies, sigma, head_shared, is_causal
        )
        check_scale("kernels.SeparableMLP", epsilon)
        kernels, d = (1 if head_shared else num_heads), embed_dim // num_heads
        # (G, w + 1, w + 1), one row for each feature of the query
        self.score_weight = nn.Parameter(epsilon / math.sqrt(width) * torch.randn(kernels, width + 1, width + 1))
        self.value_weight = nn.Parameter(torch.eye(d).repeat(kernels, 1, 1))
        with torch.no_grad():
            self.score_weight[:, -1, -1] = 1

    def separable_form(self) -> SeparableForm:
        """See `Separable.separable_form`."""
        return SeparableForm(self.score_weight, self.value_weight)

    def mix(self, sums: Tensor) -> Tensor:
        """T = m S Vᵀ; see `FeatureFactorised.mix`."""
        return self.score_weight.to(sums.dtype) @ sums @ self.value_weight.mT.to(sums.dtype)

    def initial_state(self, batch_size: int) -> State:
        """Zeros: Σ ψ ⊗ u `(B, H, w + 1, d)`, and the number of points `(B,)`."""
        like = self.score_weight
        dtype = wide_dtype(like)
        shape = (batch_size, self.num_heads, like.shape[-1], self.value_weight.shape[-1])
        total = torch.zeros(shape, dtype=dtype, device=like.device)
        return total, total.new_zeros(batch_size)

    def step(self, u: Tensor, state: State, time: Tensor | None = None) -> tuple[Tensor, State]:
        """Adds ψ ⊗ u to the state and reads its mean with φ; see `Stateful.step`."""
        h, psi = self.step_features(u, time)
        total, count = state
        value = u.unflatten(-1, (self.num_heads, -1)).to(total.dtype)
        total = total + psi.to(total.dtype)[..., None] * value[:, :, None]
        count = count + 1
        phi = (h[:, :, None] @ self.score_weight).to(total.dtype)  # (B, H, 1, w + 1)
        out = phi @ total / count[:, None, None, None] @ self.value_weight.mT.to(total.dtype)
        return out.flatten(1).to(h.dtype), (total, count)

    def extra_repr(self) -> str:
        """The options that `print(module)` shows."""
        return f"embed_dim={self.in_dim}, num_heads={self.num_heads}, is_causal={self.is_causal}"
