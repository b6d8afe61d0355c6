"""The tensors of one side of a kernel, as the operators take them."""

import torch
from torch import Tensor

from fredholm.evaluation.features.inputs import FeatureInputs
from fredholm.kernels.perceptron.factorised import FeaturePair, PointFeatures


def working_dtype(u: Tensor) -> torch.dtype:
    """The dtype of products: that of autocast where it is on, else that of the signal."""
    kind = u.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else u.dtype


def chunk_elements(u: Tensor) -> int:
    """Features that exist at one time: what stays in a CPU's cache, or fills an accelerator."""
    return 1 << (19 if u.device.type == "cpu" else 26)


def feature_inputs(
    pair: FeaturePair, side: PointFeatures, u: Tensor, lifted: Tensor, dtype: torch.dtype
) -> FeatureInputs:
    """All tensors in one dtype; arguments as in `FeaturePair.inputs`."""
    at, content = pair.inputs(side, u, lifted)
    nothing = side.bias.new_empty(*side.bias.shape, 0)
    weights = (nothing if weight is None else weight for weight in (side.position_weight, side.content_weight))
    return FeatureInputs(*(t.to(dtype) for t in (at, content.transpose(1, 2), *weights, side.bias)))
