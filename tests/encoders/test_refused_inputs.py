"""Inputs that are no tensors or of another dtype than the encoder are refused before they reach its layers."""

from typing import Any

import pytest
import torch

from fredholm import encoders
from tests.refusals import refused

IMAGES = encoders.Image.Config(image_size=(4, 4), patch_size=2, channels=1)
SCALES = encoders.MultiScaleImage.Config(image_size=(4, 4), patch_sizes=(1, 2), channels=1)
ENCODERS: dict[str, tuple[encoders.Encoder, Any, str]] = {
    "Image": (encoders.Image(IMAGES, 8), torch.rand(2, 1, 4, 4), "encoders.Image: images"),
    "MultiScaleImage": (encoders.MultiScaleImage(SCALES, 8), torch.rand(2, 1, 4, 4), "encoders."),
    "Series": (encoders.Series(2, 8), torch.rand(2, 5, 2), "encoders.Series: values"),
    "Text": (encoders.Text(11, 8), torch.randint(11, (2, 5)), "encoders.Text: tokens"),
    "Graph": (
        encoders.Graph(3, 8, 2),
        encoders.GraphBatch(torch.rand(1, 4, 3), torch.zeros(1, 2, 3, dtype=torch.int64), torch.rand(1, 4, 2)),
        "encoders.Graph: features",
    ),
    "TableRow": (
        encoders.TableRow(2, [], 8),
        encoders.TableRowBatch(torch.rand(3, 2), None),
        "encoders.TableRow: numbers",
    ),
}


def changed(inputs: Any, change: Any) -> Any:
    """A batch with its first tensor changed."""
    return (
        change(inputs)
        if isinstance(inputs, torch.Tensor)
        else inputs._replace(**{inputs._fields[0]: change(inputs[0])})
    )


@pytest.mark.parametrize("name", ENCODERS)
def test_non_tensors_are_refused(name: str) -> None:
    encoder, inputs, message = ENCODERS[name]
    encoder(inputs)
    with refused(TypeError, message, "must be a tensor; got ndarray; torch.as_tensor makes one"):
        encoder(changed(inputs, lambda values: values.numpy()))


@pytest.mark.parametrize("name", [name for name in ENCODERS if name != "Text"])
def test_values_of_another_dtype_are_refused(name: str) -> None:
    encoder, inputs, message = ENCODERS[name]
    with refused(TypeError, message, "are torch.float64 and the encoder torch.float32; convert one of them"):
        encoder(changed(inputs, torch.Tensor.double))
    with torch.autocast("cpu", torch.bfloat16):
        encoder(inputs)
