"""Outputs of the fused sum over Yat scores, and the kernels' settings of its normaliser."""

from typing import NamedTuple

import torch
from torch import Tensor

from fredholm.evaluation.attention.score_tiled import ScoreInputs
from fredholm.kernels import Normaliser, Softermax


class YatOutputs(NamedTuple):
    """The sums, and further tensors for the backward pass; all in float32."""

    out: Tensor  # (B, H, Nq, d_v), a point's heads side by side in memory
    reference: Tensor  # σ: (B, H, Nq)
    total: Tensor  # Z: (B, H, Nq)
    query_square: Tensor  # ‖q‖² + ε: (B, H, Nq)
    key_square: Tensor  # ‖k‖²: (B, H, N)


def empty_outputs(inputs: ScoreInputs) -> YatOutputs:
    """Memory for the results of these inputs."""
    batch, heads, num_queries, _ = inputs.query.shape
    rows, columns = (x.new_empty(x.shape[:3], dtype=torch.float32) for x in (inputs.query, inputs.key))
    out = rows.new_empty(batch, num_queries, heads, inputs.value.shape[-1]).transpose(1, 2)
    return YatOutputs(out, rows, torch.empty_like(rows), torch.empty_like(rows), columns)


class Settings(NamedTuple):
    """A competitive normaliser for the kernels: power 0 is softmax."""

    power: float
    floor: float


def settings_of(normaliser: Normaliser) -> Settings:
    """The `Settings` of softmax or softermax."""
    return Settings(normaliser.power, normaliser.epsilon) if isinstance(normaliser, Softermax) else Settings(0.0, 0.0)
