"""What all launches of one integral share. Legend: `launch.py`."""

from typing import Any, final

import torch
from torch import Tensor

from fredholm.evaluation.perceptron.tiles import Block, PairInputs

WORKSPACE_BYTES = 1 << 26
"""What S, Y or T of the owners that are launched at once may fill: more than a launch needs to fill a GPU, little
enough to stay in its cache."""


@final
class Problem:
    """One integral's tensors, contiguous and by role, and the constants of its kernels."""

    def __init__(self, inputs: PairInputs, block: list[int], activation: str) -> None:
        self.t: Any = PairInputs(*(inputs.query.new_empty(0) if t is None else t.contiguous() for t in inputs))
        t = self.t
        self.block = Block(block[0], block[1], tuple(block[2:]))
        self.batch, self.kernels, self.num_queries, self.dim = t.query.shape
        self.num_keys, self.width, self.out_dim = t.key.shape[2], t.key_bias.shape[-1], t.output_weight.shape[-1]
        self.values = (t.key * t.weights[:, None, :, None]).contiguous()
        self.table = t.table.flatten(2).mT.contiguous() if self.block.size else t.table
        self.entry, self.cell = entries_of(self.block.shape, t.query.device)
        self.geometry = int(t.key_bias.shape[0] > 1)
        self.shared = {
            "seen": t.seen,
            "product": t.product_weight,
            "table": self.table,
            "entry": self.entry,
            "kernels": self.kernels,
            "geometry": self.geometry,
            "seen_geometry": int(t.seen.ndim == 2 and t.seen.shape[0] > 1),
            "block": self.block.size,
            "entries": self.table.shape[1] if self.block.size else 0,
            "ACTIVATION": activation_for(activation, t.query.dtype),
            "PRECISION": precision(),
            "CAUSAL": t.seen.numel() > 0,
            "PRODUCT": t.product_weight.numel() > 0,
            "WIDTH": self.width,
            "DIM": self.dim,
            "D": padded(self.dim),
        }
        beside = self.block.size < max(self.num_queries, self.num_keys)
        frequencies = t.sin_weight.shape[-1] if beside and t.sin_weight.numel() else 0
        self.relative = {
            "sin_weight": t.sin_weight,
            "cos_weight": t.cos_weight,
            "distance_weight": t.distance_weight,
            "TABLE": self.block.size > 0,
            "BESIDE": beside,
            "DISTANCE": beside and t.distance_weight.numel() > 0,
            "FREQUENCIES": frequencies,
            "DIMENSIONS": t.key_pos.shape[-1],
            "L": padded(frequencies),
            "S": padded(t.key_pos.shape[-1], at_least=2),
        }

    def content(self, *, own_queries: bool) -> dict[str, Any]:
        """Arguments that tell what the owners, queries or else keys, and the points that they meet, contain."""
        t = self.t
        queries = {"u": t.query, "bias": t.query_bias, "weight": t.query_weight, "num": self.num_queries}
        keys = {"u": t.key, "bias": t.key_bias, "weight": t.key_weight, "num": self.num_keys}
        queries["start"], keys["start"] = self.block.query_start, self.block.key_start
        own, other = (queries, keys) if own_queries else (keys, queries)
        # the other points' features meet the weights of the other points
        named = {f"own_{name}": value for name, value in own.items()} | other
        return {**named, "OWN_WEIGHT": own["weight"].numel() > 0, "WEIGHT": other["weight"].numel() > 0}

    def positions(self, *, own_queries: bool) -> dict[str, Any]:
        """Arguments that tell where the owners and the other points lie."""
        t = self.t
        queries, keys = {"phase": t.query_phase, "pos": t.query_pos}, {"phase": t.key_phase, "pos": t.key_pos}
        own, other = (queries, keys) if own_queries else (keys, queries)
        return {**{f"own_{name}": value for name, value in own.items()}, **other}

    def by_kernel(self, value: Tensor) -> Tensor:
        """`(B, G, N, c)` to `(G, B·N, c)`, the order in which owners are numbered."""
        return value.transpose(0, 1).flatten(1, 2)

    def by_batch(self, value: Tensor, points: int) -> Tensor:
        """`(G, B·N, c)` to `(B, G, N, c)`."""
        return value.unflatten(1, (self.batch, points)).transpose(0, 1)

    def owners_at_once(self, bytes_per_owner: int) -> int:
        """How many owners fill the workspace."""
        return max(1, WORKSPACE_BYTES // max(1, bytes_per_owner))


def activation_for(activation: str, dtype: torch.dtype) -> str:
    """φ as the kernels name it."""
    return "gelu_short" if activation == "gelu" and dtype != torch.float32 else activation


def precision() -> str:
    """How float32 matrices are multiplied: as torch does it."""
    return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"


def padded(size: int, at_least: int = 16) -> int:
    """The power of two that holds `size`; tensor cores take no less than 16."""
    return max(at_least, 1 << max(0, size - 1).bit_length())


def entries_of(shape: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Where cells lie in a table of displacements, and the inverse, -1 where no cell does.

    Query i, counted backwards through the grid, and key j are entry_i + entry_j apart.
    """
    if not shape:
        return torch.zeros(1, dtype=torch.int64, device=device), torch.zeros(1, dtype=torch.int64, device=device)
    entry = torch.zeros((), dtype=torch.int64, device=device)
    for extent in shape:
        entry = (entry * (2 * extent - 1))[..., None] + torch.arange(extent, device=device)
    entry = entry.flatten()
    size = 1
    for extent in shape:
        size *= 2 * extent - 1
    cell = torch.full((size,), -1, dtype=torch.int64, device=device)
    cell[entry] = torch.arange(len(entry), device=device)
    return entry, cell
