"""The low-rank kernel of ITNet.

Legend
    Φ_i, Ψ_j    (r, d) matrices, linear in the features of the query and of the key (`factorised.py`)
    B           constant (d, d) matrix per head

    κ(x, y, u_x, u_y) = Φ(x, u_x)ᵀ Ψ(y, u_y) + B,   vec Φ = W_Φ h(x, u_x),   vec Ψ = W_Ψ h'(y, u_y)

Source: ITNet (arXiv 2606.19538), 3.3. Deviation: B, because a kernel that starts as the mean of the signal needs the
identity, which no rank below d holds. The rank is counted per head (r_h in the paper's appendix L, whose total is
r = H r_h). The paper leaves open what Φ and Ψ are: here perceptrons with one hidden layer, as its exact kernel.
"""

import math
from typing import final

import torch
from torch import Tensor, nn

from fredholm._precision import wide_dtype
from fredholm._settings import check_whole
from fredholm.kernels.kernel import State
from fredholm.kernels.perceptron.factorised import LowRank, LowRankForm, PointInputs
from fredholm.kernels.perceptron.mlp import Activation, check_scale


@final
class LowRankMLP(LowRank):
    """κ = Φ(x, u(x))ᵀ Ψ(y, u(y)) + B, head by head: cost linear in the points, and the same for every rank.

    Args:
        embed_dim: channels of the signal, in and out; a multiple of `num_heads`.
        num_heads: heads H; head h acts on its own d = embed_dim / H channels.
        pos_dim: coordinates s of a position.
        rank: r, rows of Φ and Ψ, per head; at most (width + 1)·d, which represents every bilinear map of the features.
        width: hidden units w of both perceptrons.
        activation: exact GELU, its tanh approximation, or ReLU.
        inputs: the inputs of each point; all by default.
        num_frequencies: frozen random Fourier frequencies L; 0 reads raw coordinates.
        sigma: standard deviation of the frequencies, in cycles per unit length.
        head_shared: one kernel for all heads instead of one per head.
        is_causal: the mean over the past: κ = 0 where y comes after x, divided by the mass of the past. Such a kernel
            can go step by step, with the state Σ Ψ u, Σ u and the number of points; if it reads positions, on points
            with times.
        constant: whether to add B.
        epsilon: scale of Φᵀ Ψ at the start.

    Initialisation: perceptrons as in `kernels.MLP`; W_Φ, W_Ψ ~ N(0, ε / (w √r)), but 0 for the feature 1; B = I, so
    that with a measure of total mass 1 the operator starts as mean + identity. Without B it starts near the identity.

    Raises:
        ValueError: on heads that do not divide the channels, sizes below 1, a rank that is out of range, or frequencies
            without effect.
    """

    no_weight_decay = frozenset({"constant"})

    def __init__(
        self,
        embed_dim: int,
        num_heads: int = 1,
        pos_dim: int = 1,
        *,
        rank: int,
        width: int = 128,
        activation: Activation = "gelu",
        inputs: PointInputs | None = None,
        num_frequencies: int = 64,
        sigma: float = 10.0,
        head_shared: bool = False,
        is_causal: bool = False,
        constant: bool = True,
        epsilon: float = 1e-3,
    ) -> None:
        super().__init__(
            embed_dim, num_heads, pos_dim, width, activation, inputs, num_frequencies, sigma, head_shared, is_causal
        )
        kernels, d = (1 if head_shared else num_heads), embed_dim // num_heads
        check_whole("kernels.LowRankMLP", "rank", rank)
        if not 1 <= rank <= (width + 1) * d:
            raise ValueError(
                f"kernels.LowRankMLP: rank must be from 1 to {(width + 1) * d} = (width + 1) · channels of a head, "
                f"beyond which it adds nothing; got {rank}"
            )
        check_scale("kernels.LowRankMLP", epsilon)
        self.rank = rank
        scale = math.sqrt(epsilon / width / math.sqrt(rank))
        # (G, r, w + 1, d): flattened rows multiply S; entries of the feature 1 start at 0
        self.query_weight = nn.Parameter(scale * torch.randn(kernels, rank, width + 1, d))
        self.key_weight = nn.Parameter(scale * torch.randn(kernels, rank, width + 1, d))
        self.constant = nn.Parameter(torch.eye(d).repeat(kernels, 1, 1)) if constant else None
        with torch.no_grad():
            self.query_weight[:, :, -1] = self.key_weight[:, :, -1] = 0

    def low_rank_form(self) -> LowRankForm:
        """See `LowRank.low_rank_form`."""
        return LowRankForm(self.query_weight, self.key_weight, self.constant)

    def join(self, query: Tensor, key: Tensor) -> Tensor:
        """Φᵀ Ψ + B; see `FeatureFactorised.join`."""
        heads = (self.num_heads, -1, -1, -1)
        phi = torch.einsum("bhqa,hrao->bhqro", query, self.query_weight.expand(heads))
        psi = torch.einsum("bhka,hrai->bhkri", key, self.key_weight.expand(heads))
        kappa = torch.einsum("bhqro,bhkri->bhqkoi", phi, psi)
        return kappa if self.constant is None else kappa + self.constant[:, None, None]

    def initial_state(self, batch_size: int) -> State:
        """Zeros: Σ Ψ u `(B, H, r)`, with B also Σ u, `(B, H, r + d)`, and the number of points `(B,)`."""
        like = self.query_weight
        carried = self.rank + (0 if self.constant is None else like.shape[-1])
        dtype = wide_dtype(like)
        total = torch.zeros(batch_size, self.num_heads, carried, dtype=dtype, device=like.device)
        return total, total.new_zeros(batch_size)

    def step(self, u: Tensor, state: State, time: Tensor | None = None) -> tuple[Tensor, State]:
        """Adds Ψ u to the state and reads its mean with Φ; see `Stateful.step`."""
        h, key = self.step_features(u, time)
        total, count = state
        value, weights = u.unflatten(-1, (self.num_heads, -1)).to(total.dtype), (self.num_heads, -1, -1, -1)
        psi = torch.einsum("bha,hrai->bhri", key, self.key_weight.expand(weights)).to(total.dtype)
        read = (psi * value[:, :, None]).sum(-1)
        total = total + (read if self.constant is None else torch.cat([read, value], dim=-1))
        count = count + 1
        mean = total / count[:, None, None]
        phi = torch.einsum("bha,hrao->bhro", h, self.query_weight.expand(weights)).to(total.dtype)
        out = (phi * mean[:, :, : self.rank, None]).sum(-2)
        if self.constant is not None:
            out = out + (self.constant.to(total.dtype) @ mean[:, :, self.rank :, None])[..., 0]
        return out.flatten(1).to(h.dtype), (total, count)

    def extra_repr(self) -> str:
        """The options that `print(module)` shows."""
        return (
            f"embed_dim={self.in_dim}, num_heads={self.num_heads}, rank={self.rank}, is_causal={self.is_causal}, "
            f"constant={self.constant is not None}"
        )
