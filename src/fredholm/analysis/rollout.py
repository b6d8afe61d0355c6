"""Attention rollout: the product of the attention weights of a model's layers.

Legend
    A⁽ˡ⁾         weights of layer l, the mean of its heads, rows scaled to sum 1

    R = Ā⁽ᴸ⁾ ⋯ Ā⁽¹⁾,   Ā = (A + I) / 2

Source: Abnar and Zuidema 2020, section 3. The half is for the residual connection. Deviation: rows are scaled to sum 1,
which softmax's do already; a row of zeros keeps the residual connection alone.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fredholm.analysis.checks import checked_matrix


def attention_rollout(weights: Sequence[Tensor] | Mapping[str, Tensor]) -> Tensor:
    """Attribution of every point's output to every point's input, by the product of the weights of all layers.

    Args:
        weights: weights of the layers in order, `(B, H, N, N)` each and >= 0, as from `record_weights`, or a list.

    Returns:
        R, `(B, N, N)`; rows sum to 1.

    Raises:
        TypeError, ValueError: without layers, or on weights that are invalid or of different shapes.
    """
    if isinstance(weights, Mapping):
        weights = list(weights.values())
    if not weights:
        raise ValueError("analysis.attention_rollout: needs the weights of at least one layer; got none")
    rolled = None
    for layer, given in enumerate(weights):
        matrix = checked_matrix("attention_rollout", given)
        if matrix.ndim != 4 or (matrix.shape[0], *matrix.shape[2:]) != (len(weights[0]), *weights[0].shape[-2:]):
            raise ValueError(
                f"analysis.attention_rollout: layers must be (B, H, N, N) on the same points; layer {layer} is "
                f"{tuple(matrix.shape)} after {tuple(weights[0].shape)}"
            )
        identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
        mean = matrix.mean(1)
        total = mean.sum(-1, keepdim=True)
        mixed = torch.where(total > 0, (mean / torch.where(total > 0, total, 1.0) + identity) / 2, identity)
        rolled = mixed if rolled is None else mixed @ rolled
    assert rolled is not None
    return rolled
