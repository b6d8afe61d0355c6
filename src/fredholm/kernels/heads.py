"""Heads: groups of channels with separate queries, keys and values."""

from typing import final

import torch
from torch import Tensor, nn

from fredholm._settings import check_count


def check_heads(name: str, embed_dim: int, num_heads: int, num_kv_heads: int) -> None:
    """Raises ValueError, in the name of a kernel, unless heads divide channels, and key heads divide query heads."""
    for what, size in (("embed_dim", embed_dim), ("num_heads", num_heads), ("num_kv_heads", num_kv_heads)):
        check_count(name, what, size)
    if embed_dim % num_heads:
        raise ValueError(f"{name}: num_heads must divide embed_dim; got {num_heads} heads for {embed_dim} channels")
    if num_heads % num_kv_heads:
        raise ValueError(
            f"{name}: num_kv_heads must divide num_heads, so that each serves equally many; "
            f"got {num_kv_heads} for {num_heads} heads"
        )


def split_heads(u: Tensor, num_heads: int) -> Tensor:
    """`(B, N, C)` to `(B, H, N, d)`: head h has channels h·d … (h + 1)·d - 1, d = C / H."""
    return u.unflatten(-1, (num_heads, u.shape[-1] // num_heads)).transpose(1, 2)


def each_query_head(keys: Tensor, heads: int) -> Tensor:
    """Repeats keys, values or constants of H' heads `(B, H', ...)`, H' a divisor of H, for each of H query heads."""
    return keys if keys.shape[1] == heads else keys.repeat_interleave(heads // keys.shape[1], dim=1)


def block_diagonal(blocks: Tensor) -> Tensor:
    """κ head by head, `(B, H, Nq, N, d, d)`, as matrices on all channels, `(B, Nq, N, H·d, H·d)`."""
    full = torch.diag_embed(blocks.permute(0, 2, 3, 4, 5, 1), dim1=3, dim2=5)  # (B, Nq, N, H, d, H, d)
    return full.flatten(5).flatten(3, 4)


def weigh_by_head(kappa: Tensor, pair_weights: Tensor) -> Tensor:
    """κ `(B, Nq, N, d_out, d_in)` times m `(B', H', Nq, N)`; heads are equal consecutive groups of output channels.

    Raises:
        ValueError: when heads do not divide the output channels.
    """
    heads = pair_weights.shape[1]
    if kappa.shape[-2] % heads:
        raise ValueError(
            f"Dense: pair weights for {heads} heads do not fit a kernel with {kappa.shape[-2]} output channels"
        )
    by_head = kappa.unflatten(-2, (heads, -1)) * pair_weights.movedim(1, -1)[..., None, None].to(kappa.dtype)
    return by_head.flatten(-3, -2)


@final
class HeadProjections(nn.Module):
    """q = W_Q u(x) + b_Q at the queries; k = W_K u(y) + b_K and v = W_V u(y) + b_V at the keys.

    Args:
        query_dim, key_dim, value_dim: channels that W_Q, W_K, W_V read.
        num_heads: heads H of the queries.
        num_kv_heads: heads of keys and values, a divisor of H; each serves H / num_kv_heads query heads in a row.
        head_dim: channels d of a head, of queries, keys and values alike.
        separate_values: the signal at a key is [input of W_K; input of W_V], `key_dim + value_dim` channels; otherwise
            both read all of it.
        bias: whether to add b_Q, b_K and b_V.
    """

    def __init__(
        self,
        query_dim: int,
        key_dim: int,
        value_dim: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        separate_values: bool = False,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, head_dim
        self.query_dim, self.key_dim, self.value_dim = query_dim, key_dim, value_dim
        self.separate_values = separate_values
        inner, shared = num_heads * head_dim, num_kv_heads * head_dim
        self.query_weight = nn.Parameter(torch.empty(inner, query_dim))
        self.key_weight = nn.Parameter(torch.empty(shared, key_dim))
        self.value_weight = nn.Parameter(torch.empty(shared, value_dim))
        self.query_bias = nn.Parameter(torch.zeros(inner)) if bias else None
        self.key_bias = nn.Parameter(torch.zeros(shared)) if bias else None
        self.value_bias = nn.Parameter(torch.zeros(shared)) if bias else None
        for weight in (self.query_weight, self.key_weight, self.value_weight):
            nn.init.xavier_uniform_(weight)

    @property
    def signal_dim(self) -> int:
        """Channels of the signal at a key."""
        return self.key_dim + self.value_dim if self.separate_values else self.key_dim

    def queries(self, u: Tensor) -> Tensor:
        """`(B, N, query_dim)` to `(B, H, N, d)`."""
        return self._heads(nn.functional.linear(u, self.query_weight, self.query_bias), self.num_heads)

    def keys(self, u: Tensor) -> Tensor:
        """`(B, N, signal_dim)` to `(B, num_kv_heads, N, d)`."""
        return self._key_heads(u[..., : self.key_dim] if self.separate_values else u)

    def values(self, u: Tensor) -> Tensor:
        """`(B, N, signal_dim)` to `(B, num_kv_heads, N, d)`."""
        return self._value_heads(u[..., self.key_dim :] if self.separate_values else u)

    def of_signals(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of three signals `(B, N, query_dim)`, `(B, N, key_dim)` and `(B, N, value_dim)`."""
        return self.queries(query), self._key_heads(key), self._value_heads(value)

    def value_matrices(self) -> Tensor:
        """[W_V, b_V] of every query head as it acts on the whole signal, `(H, d, signal_dim)`, or + 1 with a bias."""
        weight = self.value_weight
        if self.separate_values:
            weight = torch.cat([weight.new_zeros(weight.shape[0], self.key_dim), weight], dim=1)
        if self.value_bias is not None:
            weight = torch.cat([weight, self.value_bias[:, None]], dim=1)
        by_head = weight.unflatten(0, (self.num_kv_heads, self.head_dim))
        return by_head.repeat_interleave(self.num_heads // self.num_kv_heads, dim=0)

    def _key_heads(self, key: Tensor) -> Tensor:
        return self._heads(nn.functional.linear(key, self.key_weight, self.key_bias), self.num_kv_heads)

    def _value_heads(self, value: Tensor) -> Tensor:
        return self._heads(nn.functional.linear(value, self.value_weight, self.value_bias), self.num_kv_heads)

    def _heads(self, projected: Tensor, count: int) -> Tensor:
        return projected.view(*projected.shape[:2], count, self.head_dim).transpose(1, 2)

    def extra_repr(self) -> str:
        """The sizes that `print(module)` shows."""
        return (
            f"query_dim={self.query_dim}, key_dim={self.key_dim}, value_dim={self.value_dim}, "
            f"num_heads={self.num_heads}, num_kv_heads={self.num_kv_heads}, head_dim={self.head_dim}"
        )
