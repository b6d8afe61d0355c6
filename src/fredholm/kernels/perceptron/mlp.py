"""The perceptron kernel of ITNet.

Legend
    x, y        query and key position, s coordinates     u_x, u_y    their features, d = embed_dim / num_heads per head
    γ           Fourier features with L frequencies, or the identity ("raw coordinates") when L = 0
    z           the inputs [γ(x); γ(y); γ(x - y); ‖x - y‖; u_x; u_y; u_x ⊙ u_y], those switched on
    w           hidden width                              G           distinct kernels: num_heads, or 1 if head-shared

    vec κ(x, y, u_x, u_y) = W2 φ(W1 z + b1) + b2,  with further hidden layers of width w between the two when depth > 2

Source: ITNet (arXiv 2606.19538), eq. 2-4, 196-199 and H.3.1.
"""

import abc
import dataclasses
import math
from collections.abc import Callable
from typing import Literal, NamedTuple, Self, final

import torch
from torch import Tensor, nn

from fredholm._precision import wide_dtype, without_autocast
from fredholm._settings import check_count, check_number, check_positive, check_whole, refuse_idle
from fredholm.domains import Domain, GridBlock, Sequence, preceding_counts
from fredholm.domains.checks import values_can_be_read
from fredholm.kernels.convolution.stationary import DisplacementFilter
from fredholm.kernels.fourier_features import Lifting, sample_frequencies
from fredholm.kernels.heads import block_diagonal, split_heads
from fredholm.kernels.kernel import MultiHead, State, Stateful

Activation = Literal["gelu", "gelu_tanh", "relu"]


def activate(p: Tensor, activation: str) -> Tensor:
    """φ(p): exact GELU, its tanh approximation, or ReLU."""
    if activation == "relu":
        return torch.relu(p)
    return nn.functional.gelu(p, approximate="tanh" if activation == "gelu_tanh" else "none")


class PairwiseForm(NamedTuple):
    """The pieces of a multilayer-perceptron kernel whose first layer splits over the two points of a pair.

    For G distinct kernels, each on `d` channels, with hidden width w and the pre-activation of pair (i, j), unit k

        p_ijk = query_bias_ik + key_bias_jk + Q_k·u_i + (K_k + P_k ⊙ u_i)·u_j
                + s_k·sin(θ_i - θ_j) + c_k·cos(θ_i - θ_j) + r_k ‖x_i - x_j‖ + e_k·γ(x_i - x_j) + f_k·e_ij,

    the kernel is vec κ_ij = W φ(M_m … φ(M_1 φ(p_ij) + b_1) … + b_m) + b. A part that a kernel lacks is None. Pairs
    listed with features (`Domain.list_pairs`) have e_ij; else e = 0. Positions may be shared by the
    batch: B' is 1 or B. Sines and cosines of a displacement that wraps round the unit box do not split over the two
    points: then s and c are None, and e and r read the wrapped displacement.
    """

    query_bias: Tensor  # (B', G, Nq, w), or (B', G, 1, w) where it is the same at all queries
    key_bias: Tensor  # (B', G, N or 1, w)
    query_weight: Tensor | None  # Q: (G, w, d)
    key_weight: Tensor | None  # K: (G, w, d)
    product_weight: Tensor | None  # P: (G, w, d)
    sin_weight: Tensor | None  # s: (G, w, L)
    cos_weight: Tensor | None  # c: (G, w, L)
    query_phase: Tensor | None  # [sin θ_i, cos θ_i]: (B', Nq, 2L)
    key_phase: Tensor | None  # (B', N, 2L)
    distance_weight: Tensor | None  # r: (G, w)
    wrapped_weight: Tensor | None  # e: (G, w, 2L), or (G, w, s) where L = 0
    feature_weight: Tensor | None  # f: (G, w, c)
    frequencies: Tensor | None  # those of γ, (L, s); None unless x - y wraps round
    query_pos: Tensor  # (B', Nq, s)
    key_pos: Tensor  # (B', N, s)
    hidden_weight: Tensor | None  # M: (m, G, w, w)
    hidden_bias: Tensor | None  # (m, G, w)
    output_weight: Tensor  # W: (G, w, d, d_out)
    output_bias: Tensor  # b: (G, d_out, d)


class PairwiseMLP(Stateful):
    """Marker: κ is a perceptron of two points whose first layer splits as in `PairwiseForm`, in `num_heads` heads.

    Head h reads and writes channels h·d … (h + 1)·d - 1 of the signal, d = in_dim / num_heads. With `head_shared` all
    heads share one kernel (G = 1), else each has its own (G = num_heads). The state of a causal kernel is the signal
    at all points so far, `(B, n, in_dim)`, and, where positions are read, their times, `(B, n, 1)` in float64.

    Attributes:
        width: hidden units w.
        depth: number of linear layers, 2 without hidden layers between first and last.
        num_frequencies: Fourier frequencies L of the displacement; 0 without them.
    """

    has_growing_state = True
    sees_simultaneous = True
    num_heads: int
    head_shared: bool
    activation: str
    width: int
    depth: int
    num_frequencies: int

    @final
    def unsteppable(self, domain: Domain) -> list[str]:
        """See `Stateful.unsteppable`: shares of the whole measure, and positions with several coordinates."""
        reasons = []
        if self.is_causal and not self.averages_past:
            reasons.append(
                "each point takes its share of the whole measure, which a step cannot know; build the kernel with "
                "causal_measure='past'"
            )
        if self.reads_time and self.pos_dim != 1:
            reasons.append(f"the kernel reads positions with {self.pos_dim} coordinates, and a step has a time alone")
        return reasons

    @final
    def out_of_order(self, pos: Tensor, state: State) -> list[str]:
        """Reasons why points at `(B', n, 1)` cannot follow those of a state, if any; empty without positions."""
        if not self.reads_time or 0 in (pos.numel(), state[1].numel()) or not values_can_be_read(pos, state[1]):
            return []
        since = (pos[:, 0] - state[1][:, -1]).min()
        if since > 0:
            return []
        return [f"the first point comes {since.item():.4g} after the last one before it, and must come later"]

    @final
    def appended(self, u: Tensor, pos: Tensor | None, state: State) -> State:
        """The state after the next points, from their signal `(B, n, in_dim)` and positions, if these are read."""
        signal = torch.cat([state[0].to(u.dtype), u], dim=1)
        if not self.reads_time or pos is None:
            return (signal,)
        return signal, torch.cat([state[1], pos.to(state[1].dtype).expand(u.shape[0], -1, -1)], dim=1)

    @final
    def places(self, state: State, count: int) -> tuple[Domain, Domain]:
        """Domains of all points of a state, and of its last `count` points."""
        if not self.reads_time:
            total, device = state[0].shape[1], state[0].device
            return Sequence(total, device=device), Sequence(count, device=device)
        times = state[1][..., 0]
        return Sequence(times=times), Sequence(times=times[:, times.shape[1] - count :])

    @abc.abstractmethod
    def pairwise_form(self, domain: Domain, query_domain: Domain | None = None) -> PairwiseForm:
        """The pieces of the kernel on these points, in the parameters' dtype; without queries they are the points."""

    @abc.abstractmethod
    def relative_part(self, displacement: Tensor, distance: Tensor, *, is_periodic: bool) -> Tensor:
        """R: the part of p that depends on x - y and does not split over the two points, `(G, T, w)`.

        Args:
            displacement: x - y, `(T, s)`.
            distance: ‖x - y‖, `(T,)`.
            is_periodic: whether displacements wrap round, so that fewer parts split.
        """

    @abc.abstractmethod
    def reads_displacement(self, domain: Domain) -> bool:
        """Whether p on this domain has a part in displacement or distance that does not split over the two points."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class KernelInputs:
    """Switches for the seven input groups of the kernel; with none on, κ is one constant matrix per head."""

    query_position: bool = True
    key_position: bool = True
    relative_position: bool = True
    distance: bool = True
    query_content: bool = True
    key_content: bool = True
    product: bool = True

    @property
    def has_frequencies(self) -> bool:
        """Whether a group is read through Fourier features."""
        return self.query_position or self.key_position or self.relative_position

    @property
    def has_positions(self) -> bool:
        """Whether a group depends on where the points are."""
        return self.has_frequencies or self.distance


@final
class MLP(PairwiseMLP, MultiHead, DisplacementFilter, Lifting):
    """κ = a small perceptron of positions, displacement, distance and features; matrices, block-diagonal over heads.

    Args:
        embed_dim: channels of the signal, in and out; a multiple of `num_heads`.
        num_heads: heads H; head h acts on its own d = embed_dim / H channels.
        pos_dim: coordinates s of a position.
        width: hidden units w of the perceptron.
        depth: number of its linear layers, >= 2.
        activation: exact GELU (the paper's), its tanh approximation, or ReLU.
        inputs: the input groups that are read.
        num_frequencies: frozen random Fourier frequencies L; 0 reads raw coordinates.
        sigma: standard deviation of the frequencies, in cycles per unit length.
        head_shared: one kernel for all heads instead of one per head.
        is_causal: κ = 0 where y comes after x; such a kernel can go step by step, its state being the signal at all
            points so far and, if it reads positions, their times.
        causal_measure: measure of a causal kernel. "past": the points up to x, with total mass 1, so that later points
            change nothing. "total": the whole measure, of which x sees a share, as operators between functions on an
            interval need it; such a kernel cannot go step by step. None: "past" where `is_causal`.
        epsilon: scale of the output layer's initial values.
        edge_dim: number c of features of a pair, such as those of a graph's edges, that the perceptron also reads; 0
            for domains whose pairs have no features.

    Initialisation: W1 ~ N(0, 0.02²), b1 = 0, W2 ~ ε N(0, 1/w), and b2 = I, so that with a measure of total mass 1 the
    operator starts as mean + identity. The paper states b2 = I/n, which together with the weights 1/n would give
    mean/n, not the mean that it intends. Hidden layers between (depth > 2, which the paper does not specify) start at
    N(0, 2/w), b = 0. A causal mean is one over the past, which the paper does not specify either.

    Raises:
        ValueError: on heads that do not divide the channels, a depth below 2, sizes below 1, or frequencies without
            effect.
    """

    no_weight_decay = frozenset({"output_bias"})

    def __init__(
        self,
        embed_dim: int,
        num_heads: int = 1,
        pos_dim: int = 1,
        *,
        width: int = 128,
        depth: int = 2,
        activation: Activation = "gelu",
        inputs: KernelInputs | None = None,
        num_frequencies: int = 64,
        sigma: float = 10.0,
        head_shared: bool = False,
        is_causal: bool = False,
        causal_measure: Literal["past", "total"] | None = None,
        epsilon: float = 1e-3,
        edge_dim: int = 0,
    ) -> None:
        super().__init__()
        check_count("kernels.MLP", "edge_dim", edge_dim, least=0)
        check_sizes("kernels.MLP", embed_dim, num_heads, pos_dim, width, num_frequencies, activation)
        if depth < 2:
            raise ValueError(f"kernels.MLP: depth counts linear layers and must be at least 2; got {depth}")
        if causal_measure not in (None, "past", "total"):
            raise ValueError(f"kernels.MLP: causal_measure must be 'past' or 'total'; got {causal_measure!r}")
        if causal_measure is not None and not is_causal:
            raise ValueError(
                f"kernels.MLP: causal_measure={causal_measure!r} has no effect without is_causal=True; leave it out"
            )
        self.averages_past = is_causal and causal_measure != "total"
        self.inputs = inputs if inputs is not None else KernelInputs()
        check_frequencies("kernels.MLP", MLP, self.inputs.has_frequencies, num_frequencies, sigma)
        check_scale("kernels.MLP", epsilon)
        self.in_dim = self.out_dim = embed_dim
        self.num_heads, self.pos_dim, self.width, self.depth = num_heads, pos_dim, width, depth
        self.groups, self.head_dim = num_heads, embed_dim // num_heads
        self.activation, self.head_shared, self.is_causal = activation, head_shared, is_causal
        self.reads_query = self.inputs.query_content or self.inputs.product
        self.reads_time = self.inputs.has_positions
        self.num_frequencies = num_frequencies
        self.register_buffer("frequencies", sample_frequencies(num_frequencies, pos_dim, sigma))
        kernels, d, hidden = (1 if head_shared else num_heads), self.head_dim, depth - 2
        self.group_sizes = _group_sizes(self.inputs, 2 * num_frequencies or pos_dim, d)
        self.is_filter = not self._read_beyond_displacement()
        self.input_weight = self.hidden_weight = self.hidden_bias = None
        if self.group_sizes:
            self.input_weight = nn.Parameter(0.02 * torch.randn(kernels, width, sum(self.group_sizes.values())))
        self.edge_dim = edge_dim
        # f: (G, w, c)
        self.edge_weight = nn.Parameter(0.02 * torch.randn(kernels, width, edge_dim)) if edge_dim else None
        self.input_bias = nn.Parameter(torch.zeros(kernels, width))
        if hidden:
            self.hidden_weight = nn.Parameter(math.sqrt(2 / width) * torch.randn(hidden, kernels, width, width))
            self.hidden_bias = nn.Parameter(torch.zeros(hidden, kernels, width))
        # (G, w, d_in, d_out): the layout in which routes apply it to sums over keys
        self.output_weight = nn.Parameter(epsilon / math.sqrt(width) * torch.randn(kernels, width, d, d))
        self.output_bias = nn.Parameter(torch.eye(d).repeat(kernels, 1, 1))

    def _columns(self) -> dict[str, Tensor]:
        """W1 by input group: name to `(G, w, size)`."""
        if self.input_weight is None:
            return {}
        columns = self.input_weight.split(list(self.group_sizes.values()), dim=-1)
        return dict(zip(self.group_sizes, columns, strict=True))

    @property
    def reads_position(self) -> bool:
        """See `Lifting.reads_position`; γ(x) and γ(y) also give γ(x - y), by the angle sums."""
        return self.inputs.has_frequencies

    @property
    def lifted_dtype(self) -> torch.dtype:
        """See `Lifting.lifted_dtype`."""
        return self.input_bias.dtype

    def _pair_bias(self, domain: Domain) -> Tensor | None:
        """f·e of the pairs that the points of a domain represent, `(B, G, N, w)`; None without features."""
        if self.edge_weight is None or domain.features is None:
            return None
        if domain.features.shape[-1] != self.edge_dim:
            raise ValueError(
                f"kernels.MLP: the kernel reads edge_dim={self.edge_dim} features of a pair; the domain has "
                f"{domain.features.shape[-1]}"
            )
        return _project(domain.features.to(self.input_bias.dtype), self.edge_weight)

    def _later_layers(self, p: Tensor) -> Tensor:
        """κ from p `(..., G, a, b, w)`, for any axes a and b: `(..., G, a, b, d_out, d_in)`."""
        hidden = activate(p, self.activation)
        if self.hidden_weight is not None and self.hidden_bias is not None:
            for weight, bias in zip(self.hidden_weight, self.hidden_bias, strict=True):
                hidden = hidden @ weight.mT[:, None] + bias[:, None, None]
                hidden = activate(hidden, self.activation)
        flat = self.output_weight.mT.flatten(2)  # (G, w, d_out·d_in)
        return (hidden @ flat[:, None]).unflatten(-1, (self.head_dim, self.head_dim)) + self.output_bias[:, None, None]

    def head_matrices(
        self, u: Tensor, domain: Domain, query: Tensor | None = None, query_domain: Domain | None = None
    ) -> Tensor:
        """κ head by head, `(B, H, Nq, N, d, d)`, computed as written on paper: z at every pair, then the perceptron."""
        query = u if query is None else query
        query_domain = domain if query_domain is None else query_domain
        content_q = split_heads(query, self.num_heads)[:, :, :, None]
        content_k = split_heads(u, self.num_heads)[:, :, None]
        batch, heads, n_q, n_k = content_q.shape[0], self.num_heads, query_domain.num_points, domain.num_points
        # routes compute the difference in the parameters' precision at least
        displacement = domain.displacement(query_domain.pos.to(wide_dtype(query_domain.pos, self.input_bias)))
        parts = {
            "query_position": lambda: self.lift_positions(query_domain.pos)[..., None, :, None, :],
            "key_position": lambda: self.lift_positions(domain.pos)[..., None, None, :, :],
            "relative_position": lambda: self.lift_positions(displacement)[..., None, :, :, :],
            "distance": lambda: norm(displacement)[..., None, :, :, None],
            "query_content": lambda: content_q,
            "key_content": lambda: content_k,
            "product": lambda: content_q * content_k,
        }
        pairs = (batch, heads, n_q, n_k)
        pieces = [parts[name]().to(u.dtype).expand(*pairs, size) for name, size in self.group_sizes.items()]
        p = self.input_bias[:, None, None].expand(*pairs, -1)
        if self.input_weight is not None:
            p = torch.cat(pieces, dim=-1) @ self.input_weight.mT[:, None] + self.input_bias[:, None, None]
        pair_bias = self._pair_bias(domain)
        if pair_bias is not None:
            p = p + pair_bias[:, :, None].to(p.dtype)
        kappa = self._later_layers(p)
        if not self.is_causal:
            return kappa
        seen = torch.arange(n_k, device=u.device) < preceding_counts(query_domain, domain)[..., None]  # (B', Nq, N)
        share = self.past_share(domain, query_domain)
        share = seen if share is None else seen * share[..., None]
        share = share.to(kappa.dtype)[:, None, :, :, None, None]
        return torch.where(seen[:, None, :, :, None, None], kappa, 0.0) * share

    def matrix(
        self, u: Tensor, domain: Domain, query: Tensor | None = None, query_domain: Domain | None = None
    ) -> Tensor:
        """κ, `(B, Nq, N, embed_dim, embed_dim)`, block-diagonal over heads; see `Kernel.matrix`."""
        return block_diagonal(self.head_matrices(u, domain, query, query_domain))

    def initial_state(self, batch_size: int) -> State:
        """No points: signals `(B, 0, embed_dim)`, and times `(B, 0, 1)` where positions are read; see `PairwiseMLP`.

        Raises:
            ValueError: where no step can be made; see `unsteppable`.
        """
        self._check_steppable()
        like = self.input_bias
        signal = like.new_zeros(batch_size, 0, self.in_dim)
        if not self.reads_time:
            return (signal,)
        return signal, torch.zeros(batch_size, 0, 1, dtype=torch.float64, device=like.device)

    def step(self, u: Tensor, state: State, time: Tensor | None = None) -> tuple[Tensor, State]:
        """The mean of κ u over all points so far, by evaluating κ, which routes avoid; see `Stateful.step`.

        Raises:
            ValueError: without a time, or with one that is not after the last, when positions are read; where no step
                can be made.
        """
        self._check_steppable()
        if time is None and self.reads_time:
            raise ValueError(
                "kernels.MLP: a step needs the time of its point, because the kernel reads positions; give it "
                "(Sequence(times=...) for a whole sequence), or switch positions off in inputs="
            )
        pos = None if time is None else time[:, None, None]
        if pos is not None and (reasons := self.out_of_order(pos, state)):
            raise ValueError(f"kernels.MLP: {reasons[0]}")
        here = u[:, None]
        state = self.appended(here, pos, state)
        domain, last = self.places(state, 1)
        kappa = self.head_matrices(state[0], domain, here, last)
        with without_autocast(u):
            value = split_heads(state[0], self.num_heads).to(wide_dtype(kappa)) / domain.num_points
            mean = torch.einsum("bhqjoi,bhji->bqho", kappa.to(value.dtype), value)
        return mean.flatten(1).to(u.dtype), state

    def _check_steppable(self) -> None:
        if reasons := self.unsteppable(Sequence(0)):
            raise ValueError(f"kernels.MLP: {'; '.join(reasons)}")

    def head(self, index: int) -> Self:
        """See `MultiHead.head`: the same kernel with one head's slices of the parameters, which it shares."""
        one = type(self).__new__(type(self))
        vars(one).update(vars(self), _parameters={}, num_heads=1, groups=1, in_dim=self.head_dim, out_dim=self.head_dim)
        own = slice(None) if self.head_shared else slice(index, index + 1)
        for name, parameter in self._parameters.items():
            of_head = (slice(None), own) if name in ("hidden_weight", "hidden_bias") else own
            vars(one)[name] = None if parameter is None else parameter[of_head]
        return one

    def reads_displacement(self, domain: Domain) -> bool:
        """See `PairwiseMLP.reads_displacement`: raw relative coordinates split unless they wrap round."""
        splits = self.num_frequencies == 0 and not domain.is_periodic
        return self.inputs.distance or (self.inputs.relative_position and not splits)

    def pairwise_form(self, domain: Domain, query_domain: Domain | None = None) -> PairwiseForm:
        """See `PairwiseMLP.pairwise_form`."""
        columns, dtype = self._columns(), self.input_bias.dtype
        wraps = domain.is_periodic and self.reads_displacement(domain)
        queries = domain if query_domain is None else query_domain
        query_pos, key_pos = (p.pos if p.pos.ndim == 3 else p.pos[None] for p in (queries, domain))
        splits = "relative_position" in columns and not wraps and self.num_frequencies > 0
        at_query = self.lift(queries) if splits or "query_position" in columns else None
        if at_query is not None and query_domain is None:
            at_key = at_query
        else:
            at_key = self.lift(domain) if splits or "key_position" in columns else None
        query_bias, key_bias = self.input_bias[None, :, None], None
        sin_weight = cos_weight = query_phase = key_phase = None
        if "relative_position" in columns and not wraps:
            if self.num_frequencies:
                # the angle-sum identities split x - y
                sin_weight, cos_weight = columns["relative_position"].chunk(2, dim=-1)
                query_phase, key_phase = at_query, at_key
            else:
                middle = domain.middle  # centred, so that differences stay accurate
                query_bias = query_bias + _project((query_pos - middle).to(dtype), columns["relative_position"])
                key_bias = _project((middle - key_pos).to(dtype), columns["relative_position"])
        if "query_position" in columns and at_query is not None:
            query_bias = query_bias + _project(at_query, columns["query_position"])
        if "key_position" in columns and at_key is not None:
            key_bias = _plus(key_bias, _project(at_key, columns["key_position"]))
        distance, pair_bias = columns.get("distance"), self._pair_bias(domain)
        if pair_bias is not None:
            key_bias = _plus(key_bias, pair_bias)
        return PairwiseForm(
            query_bias=query_bias,
            key_bias=torch.zeros_like(self.input_bias)[None, :, None] if key_bias is None else key_bias,
            query_weight=columns.get("query_content"),
            key_weight=columns.get("key_content"),
            product_weight=columns.get("product"),
            sin_weight=sin_weight,
            cos_weight=cos_weight,
            query_phase=query_phase,
            key_phase=key_phase,
            distance_weight=None if distance is None else distance[..., 0],
            wrapped_weight=columns.get("relative_position") if wraps else None,
            feature_weight=self.edge_weight,
            frequencies=self.frequencies if wraps else None,
            query_pos=query_pos,
            key_pos=key_pos,
            hidden_weight=self.hidden_weight,
            hidden_bias=self.hidden_bias,
            output_weight=self.output_weight,
            output_bias=self.output_bias,
        )

    def relative_part(self, displacement: Tensor, distance: Tensor, *, is_periodic: bool) -> Tensor:
        """See `PairwiseMLP.relative_part`."""
        # raw coordinates split over the two points unless they wrap round
        splits = self.num_frequencies == 0 and not is_periodic
        return self._of_displacement(displacement, distance, with_coordinates=not splits)

    def _of_displacement(self, displacement: Tensor, distance: Tensor, *, with_coordinates: bool = True) -> Tensor:
        """The part of p that depends only on x - y `(T, s)` and its norm, without b1: `(G, T, w)`."""
        columns, parts, weights = self._columns(), [], []
        if with_coordinates and "relative_position" in columns:
            parts.append(self.lift_positions(displacement))
            weights.append(columns["relative_position"])
        if "distance" in columns:
            parts.append(distance.to(self.input_bias.dtype)[:, None])
            weights.append(columns["distance"])
        if not parts:
            return self.input_bias.new_zeros(self.input_bias.shape[0], displacement.shape[0], self.width)
        return torch.cat(parts, dim=-1) @ torch.cat(weights, dim=-1).mT

    def _read_beyond_displacement(self) -> list[str]:
        """Names of the inputs that are not functions of x - y."""
        return [name for name in self.group_sizes if name not in ("relative_position", "distance")]

    def unfiltered(self, keys: GridBlock, queries: GridBlock) -> str | None:
        """See `DisplacementFilter.unfiltered`: inputs of a point, and an order by index, are no functions of x - y."""
        if read := self._read_beyond_displacement():
            return f"the kernel reads more than the displacement of a pair: {', '.join(read)}"
        by_displacement = self.pos_dim == 1 and not keys.periodic and keys.same_geometry(queries)
        if self.is_causal and not by_displacement:
            return "the past of a query is not given by displacements here"
        return None

    def filter_weight(self, keys: GridBlock, queries: GridBlock) -> Tensor:
        """See `Stationary.filter_weight`: κ at every displacement, `(embed_dim, d, *size)`."""
        displacement = self.tap_displacements(keys, queries)
        flat = displacement.flatten(0, -2)
        with without_autocast(self.input_bias):
            p = self._of_displacement(flat, norm(flat)) + self.input_bias[:, None]
            kappa = self._later_layers(p[:, None])[:, 0].movedim(1, -1)  # (G, d_out, d_in, T)
        kappa = kappa.expand(self.num_heads, -1, -1, -1).flatten(0, 1)
        return kappa.unflatten(-1, displacement.shape[:-1])

    def extra_repr(self) -> str:
        """The sizes that `print(module)` shows."""
        off = [f.name for f in dataclasses.fields(KernelInputs) if not getattr(self.inputs, f.name)]
        return (
            f"embed_dim={self.in_dim}, num_heads={self.num_heads}, pos_dim={self.pos_dim}, width={self.width}, "
            f"depth={self.depth}, activation={self.activation}, num_frequencies={self.num_frequencies}, "
            f"head_shared={self.head_shared}, is_causal={self.is_causal}" + (f", without={off}" if off else "")
        )


def _group_sizes(inputs: KernelInputs, lifted: int, content: int) -> dict[str, int]:
    """Name and width of the input groups that are on, in the paper's order."""
    names = [field.name for field in dataclasses.fields(KernelInputs)]
    widths = (lifted, lifted, lifted, 1, content, content, content)
    return {name: size for name, size in zip(names, widths, strict=True) if getattr(inputs, name)}


def _project(features: Tensor, weight: Tensor) -> Tensor:
    """`(B', N, f)` with `(G, w, f)` to `(B', G, N, w)`."""
    projected = nn.functional.linear(features, weight.flatten(0, 1))
    return projected.unflatten(-1, weight.shape[:2]).transpose(1, 2)


def _plus(total: Tensor | None, part: Tensor) -> Tensor:
    return part if total is None else total + part


def norm(displacement: Tensor) -> Tensor:
    """‖x - y‖ with gradient 0, not NaN, where the points coincide."""
    squared = displacement.square().sum(-1)
    differ = squared > 0
    return torch.where(differ, squared, 1.0).sqrt() * differ


def check_sizes(
    name: str, embed_dim: int, num_heads: int, pos_dim: int, width: int, num_frequencies: int, activation: str
) -> None:
    """Raises ValueError, in the name of a kernel, on sizes out of range."""
    sizes = {"embed_dim": embed_dim, "num_heads": num_heads, "pos_dim": pos_dim, "width": width}
    for what, size in sizes.items():
        check_count(name, what, size)
    if embed_dim % num_heads:
        raise ValueError(f"{name}: num_heads must divide embed_dim; got {num_heads} heads for {embed_dim} channels")
    check_whole(name, "num_frequencies", num_frequencies)
    if num_frequencies < 0:
        raise ValueError(f"{name}: num_frequencies must be >= 0 (0 = raw coordinates); got {num_frequencies}")
    if activation not in ("gelu", "gelu_tanh", "relu"):
        raise ValueError(f"{name}: activation is 'gelu', 'gelu_tanh' or 'relu'; got {activation!r}")


def check_scale(name: str, epsilon: float) -> None:
    """Raises ValueError, in the name of a kernel, unless the scale of its initial values is finite and at least 0."""
    check_number(name, "epsilon", epsilon)
    if not 0 <= epsilon < math.inf:
        raise ValueError(f"{name}: epsilon must be finite and at least 0; got {epsilon}")


def check_frequencies(
    name: str, owner: Callable[..., object], has_frequencies: bool, num_frequencies: int, sigma: float
) -> None:
    """Raises ValueError, in the name of a kernel, on frequency settings without effect, or a bad deviation.

    Args:
        name: prefix of messages.
        owner: class whose signature states the defaults.
        has_frequencies: whether an input is read through Fourier features.
        num_frequencies: L.
        sigma: their deviation.
    """
    if not has_frequencies:
        refuse_idle(
            name,
            owner,
            "inputs that have no position",
            "switch one on",
            num_frequencies=num_frequencies,
            sigma=sigma,
        )
    elif num_frequencies == 0:
        refuse_idle(name, owner, "num_frequencies=0, raw coordinates", "give num_frequencies", sigma=sigma)
    check_positive(name, "sigma", sigma)
