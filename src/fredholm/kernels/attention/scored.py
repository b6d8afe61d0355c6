"""Scored kernels: a score for each pair of a query and a key, made a density by a normaliser.

Legend
    q_i, k_j     query and key of a head, d channels          b_j, ε   constant of a key; what softens a distance
    s_ij         score: a function of q_i·k_j + b_j, and of max(‖q_i - k_j‖², 0) + ε where it reads distances
    a            densities that the normaliser makes of a row of scores
    V_h          value matrix

    κ_ij = a_ij V_h

A content kernel of one's own is a `Score`, and a `Scored` kernel that says what queries and keys are. The score's value
is all that a tiled route needs: slopes are taken of it, unless `pull` gives them.
"""

import abc
import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, final

import torch
from torch import Tensor

from fredholm.domains import Domain
from fredholm.kernels.attention.normalisers import Normaliser, Numbered
from fredholm.kernels.attention.value_mixing import ValueMixing
from fredholm.kernels.heads import each_query_head
from fredholm.kernels.kernel import State, Stateful


class Score(Numbered, abc.ABC):
    """s of a query and a key, a frozen dataclass of numbers.

    Attributes:
        reads_distance: whether s depends on ‖q - k‖² beside q·k.
        is_nonnegative: whether s >= 0, as most normalisers need.
        is_homogeneous: whether c q, c > 0, has c times the score of q.
        dot_gain, distance_gain: factors that the two slopes of `pull` leave out.
    """

    reads_distance: ClassVar[bool] = False
    is_nonnegative: ClassVar[bool] = False
    is_homogeneous: ClassVar[bool] = False
    dot_gain: ClassVar[float] = 1.0
    distance_gain: ClassVar[float] = 1.0

    @abc.abstractmethod
    def value(self, dot: Tensor, distance: Tensor | None, *numbers: Tensor) -> Tensor:
        """s, in differentiable operations.

        Args:
            dot: q·k + b, `(..., Nq, N)`, in at least float32.
            distance: ‖q - k‖² + ε, alike; None unless `reads_distance`.
            numbers: `ScoreForm.numbers`, one after the other, broadcastable to `dot`.
        """

    def in_tile(self, dot: Tensor, distance: Tensor | None, numbers: Sequence[Tensor]) -> tuple[Tensor, Any]:
        """s of a tile, in memory that may be overwritten, and what `pull` needs; may overwrite what it is given."""
        s = self.value(dot, distance, *numbers)
        memory = s.untyped_storage().data_ptr()
        given = (t.untyped_storage().data_ptr() for t in (dot, distance) if t is not None)
        return (s.clone() if memory in given else s), (dot, distance)

    def pull(
        self, kept: Any, grad: Tensor, numbers: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor | None, Sequence[Tensor]]:
        """Gradients of `dot`, of `distance` and of each number, from that of s; may overwrite `grad` and what was kept.

        The first two may lack the factors `dot_gain` and `distance_gain`, and are in memory that may be overwritten.
        """
        with _autograd():
            leaves = [None if t is None else t.detach().requires_grad_() for t in (*kept, *numbers)]
            s = self.value(leaves[0], *leaves[1:])  # pyright: ignore[reportArgumentType]
            asked = [leaf for leaf in leaves if leaf is not None]
            if not s.requires_grad:
                found = iter([torch.zeros_like(t) for t in asked])
            else:
                found = iter(torch.autograd.grad(s, asked, grad, materialize_grads=True))
        by_dot, by_distance, *by_numbers = (None if leaf is None else next(found) for leaf in leaves)
        return by_dot, by_distance, by_numbers  # pyright: ignore[reportReturnType]


@contextlib.contextmanager
def _autograd() -> Iterator[None]:
    """Records gradients where an operator of PyTorch runs, which has turned that off."""
    keys, unset = torch._C.DispatchKey, torch._C._SetExcludeDispatchKeyGuard
    with unset(keys.AutogradFunctionality, False), unset(keys.ADInplaceOrView, False), torch.enable_grad():
        yield


@final
@dataclasses.dataclass(frozen=True)
class Dot(Score):
    """s = q·k."""

    is_homogeneous = True

    def value(self, dot: Tensor, distance: Tensor | None, *numbers: Tensor) -> Tensor:
        """See `Score.value`."""
        return dot

    def in_tile(self, dot: Tensor, distance: Tensor | None, numbers: Sequence[Tensor]) -> tuple[Tensor, Any]:
        """See `Score.in_tile`."""
        return dot, None

    def pull(self, kept: Any, grad: Tensor, numbers: Sequence[Tensor]) -> tuple[Tensor, Tensor | None, list[Tensor]]:
        """See `Score.pull`."""
        return grad, None, []


class ScoreForm(NamedTuple):
    """What scores and values are made of; keys and values may have fewer heads, each serving several in a row."""

    query: Tensor  # (B, H, Nq, d)
    key: Tensor  # (B, H', N, d)
    value: Tensor  # V ũ: (B, H', N, d_v)
    key_bias: Tensor | None = None  # b: (B, H', N)
    softening: Tensor | None = None  # ε: ()
    numbers: Tensor | None = None  # what else the score is given, (m,) or a number a head, (m, H)


class Scored(ValueMixing):
    """Marker: in each head κ is a score that went through `normaliser`, times a value matrix.

    The measure counts points, so that a sum over the points so far may be carried along a sequence.

    Attributes:
        score: s, of what `score_form` gives.
        normaliser: ρ.
        reads_bias: whether keys have constants b.
    """

    score: Score
    normaliser: Normaliser
    reads_bias: bool = False

    @abc.abstractmethod
    def score_form(self, u: Tensor, domain: Domain, query: Tensor, query_domain: Domain) -> ScoreForm:
        """Queries, keys and values on these signals, `(B, N, d_in)` and `(B, Nq, query_dim)`."""

    @final
    def check_score(self) -> None:
        """Raises a ValueError where scores may be below 0 and the normaliser takes no such."""
        if not (self.score.is_nonnegative or self.normaliser.takes_negative):
            raise ValueError(
                f"{type(self).__name__}: {type(self.normaliser).__name__} takes scores >= 0, and those of "
                f"{type(self.score).__name__} may be below; take Softmax() or Unnormalised(), or a score with "
                "is_nonnegative = True"
            )

    @final
    def density(self, u: Tensor, domain: Domain, query: Tensor | None, query_domain: Domain | None) -> Tensor:
        """See `ValueMixing.density`."""
        query, query_domain = (u if query is None else query), (domain if query_domain is None else query_domain)
        self.check_score()
        visible = self.visible(domain, query_domain)
        scores = scores_of(self.score, self.score_form(u, domain, query, query_domain))
        mass = self.pair_mass(domain, scores.dtype)
        return self.normaliser.density(scores, torch.where(visible, mass, 0.0)).to(u.dtype)


class CachedScored(Scored, Stateful):
    """Marker: a scored kernel along a sequence, whose state is all keys and values."""

    reads_query = True
    sees_simultaneous = True
    has_growing_state = True

    @abc.abstractmethod
    def continued_form(self, u: Tensor, domain: Domain, state: State | None) -> ScoreForm:
        """Queries of the next points of a sequence; keys and values of all so far, which are the state after them.

        Args:
            u: `(B, N, d_in)`.
            domain: the N next points.
            state: what earlier points left behind; None: nothing.
        """

    @final
    def attend(self, form: ScoreForm) -> tuple[Tensor, State]:
        """The integral over all keys of a form, `(B, Nq, H·d_v)`, and the state: its keys and values."""
        density = self.normaliser.density(scores_of(self.score, form), form.key.new_ones(()))
        out = density.to(form.value.dtype) @ each_query_head(form.value, self.num_heads)
        return out.transpose(1, 2).flatten(2), (form.key, form.value)


def appended(state: State | None, form: ScoreForm) -> ScoreForm:
    """A form with the state's keys and values before its own, in the dtypes of those."""
    if state is None:
        return form
    keys, values = state[0].to(form.key.dtype), state[1].to(form.value.dtype)
    return form._replace(key=torch.cat([keys, form.key], dim=2), value=torch.cat([values, form.value], dim=2))


def scores_of(score: Score, form: ScoreForm) -> Tensor:
    """s at every pair, `(B, H, Nq, N)`, in at least float32."""
    dtype, heads = torch.promote_types(form.query.dtype, torch.float32), form.query.shape[1]
    with torch.autocast(form.query.device.type, enabled=False):
        q, k = form.query.to(dtype), each_query_head(form.key.to(dtype), heads)
        dot = raw = q @ k.mT
        if form.key_bias is not None:
            dot = raw + each_query_head(form.key_bias.to(dtype), heads)[:, :, None]
        distance = None
        if score.reads_distance:
            distance = (q.square().sum(-1)[..., None] + k.square().sum(-1)[:, :, None] - 2 * raw).clamp_min(0)
            distance = distance if form.softening is None else distance + form.softening.to(dtype)
        return score.value(dot, distance, *numbers_by_head(form.numbers, heads, dtype))


def numbers_by_head(numbers: Tensor | None, heads: int, dtype: torch.dtype) -> list[Tensor]:
    """`ScoreForm.numbers` as they apply to scores `(..., H, Nq, N)`: `(H, 1, 1)` each."""
    if numbers is None:
        return []
    numbers = numbers if numbers.ndim == 2 else numbers[:, None].expand(-1, heads)
    return list(numbers.to(dtype)[..., None, None].unbind())
