"""Attention weights as relevance maps over the patches of an image."""

import torch
from torch import Tensor


def patch_relevance(weights: Tensor, shape: tuple[int, int], query: int | None = 0) -> Tensor:
    """Relevance of patches: a query's weights, averaged over heads, clamped at 0 and scaled to sum 1.

    The class token of a vision transformer is point 0 and the patches follow it, so that the default is the map from
    it (Infinite Self-Attention, supplement, section 13).

    Args:
        weights: weights of one layer, `(B, H, Nq, N)`, or `(B, Nq, N)` as from `attention_rollout`; the last
            rows · columns points are the patches, in row-major order.
        shape: rows and columns of patches.
        query: index of the query; None: the mean over the queries, for models that pool over their points.

    Returns:
        `(B, rows, columns)`; 0 where the query gives no weight to any patch.

    Raises:
        ValueError: on other shapes, or values that are not finite.
    """
    rows, columns = shape
    if weights.ndim not in (3, 4) or weights.shape[-1] < rows * columns or min(rows, columns) < 1:
        raise ValueError(
            f"analysis.patch_relevance: weights must be (B, H, Nq, N) or (B, Nq, N) with N >= {rows} x {columns} "
            f"patches; got {tuple(weights.shape)}"
        )
    num_queries = weights.shape[-2]
    if num_queries < 1 or (query is not None and not -num_queries <= query < num_queries):
        raise ValueError(f"analysis.patch_relevance: query must be one of {num_queries} queries; got {query}")
    if not bool(weights.isfinite().all()):
        raise ValueError("analysis.patch_relevance: weights hold NaN or infinite values")
    heads = weights if weights.ndim == 4 else weights[:, None]
    mean = heads.to(torch.promote_types(weights.dtype, torch.float32)).mean(1)
    row = mean.mean(1) if query is None else mean[:, query]
    patches = row[:, -rows * columns :].clamp_min(0)
    total = patches.sum(-1, keepdim=True)
    return torch.where(total > 0, patches / torch.where(total > 0, total, 1.0), 0.0).unflatten(-1, shape)
