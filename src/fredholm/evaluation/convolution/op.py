"""The filter made of features as a PyTorch operator with a gradient, opaque to the compiler."""

from typing import Any

import torch
from torch import Tensor

from fredholm.evaluation.convolution.spectra import FeatureSpectra, Window
from fredholm.evaluation.custom_op import differentiable, pullback


@torch.library.custom_op("fredholm::feature_convolution", mutates_args=())
def feature_convolution(
    image: Tensor,
    features: Tensor,
    weight: Tensor,
    first: list[int],
    results: list[int],
    lengths: list[int],
    elements: int,
) -> Tensor:
    """v(x) = Σ_t Σ_k φ_k(t) M_k u(x + t), u = 0 beyond its grid: `(B, d_out, *results)`.

    Args:
        image: u, `(B, d_in, *n)`, B >= 1.
        features: φ, `(w, *k)`.
        weight: M, `(w, d_out, d_in / groups)`.
        first, results, lengths: the fields of `Window`.
        elements: entries of the filters' spectrum that exist at one time.
    """
    spectra = _spectra(image, features, weight, first, results, lengths, elements)
    with torch.autocast(image.device.type, enabled=False):
        return spectra.forward().contiguous()


@torch.library.custom_op("fredholm::feature_convolution_backward", mutates_args=())
def feature_convolution_backward(
    grad: Tensor,
    image: Tensor,
    features: Tensor,
    weight: Tensor,
    first: list[int],
    results: list[int],
    lengths: list[int],
    elements: int,
    wanted: list[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of signal, features and matrices; empty where not wanted."""
    spectra = _spectra(image, features, weight, first, results, lengths, elements)
    with torch.autocast(image.device.type, enabled=False):
        grads = spectra.backward(grad, (wanted[0], wanted[1], wanted[2]))
        to_image, to_features, to_weight = (grad.new_empty(0) if part is None else part.contiguous() for part in grads)
        return to_image, to_features, to_weight


def _spectra(
    image: Tensor,
    features: Tensor,
    weight: Tensor,
    first: list[int],
    results: list[int],
    lengths: list[int],
    elements: int,
) -> FeatureSpectra:
    window = Window(tuple(first), tuple(results), tuple(lengths))
    return FeatureSpectra(image, features, weight, window, elements)


@feature_convolution.register_fake
def _(
    image: Tensor,
    features: Tensor,
    weight: Tensor,
    first: list[int],
    results: list[int],
    lengths: list[int],
    elements: int,
) -> Tensor:
    return image.new_empty(image.shape[0], weight.shape[1], *results)


@feature_convolution_backward.register_fake
def _(
    grad: Tensor,
    image: Tensor,
    features: Tensor,
    weight: Tensor,
    first: list[int],
    results: list[int],
    lengths: list[int],
    elements: int,
    wanted: list[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    to_image, to_features, to_weight = (
        part.new_empty(part.shape if wants else 0)
        for part, wants in zip((image, features, weight), wanted, strict=True)
    )
    return to_image, to_features, to_weight


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    image, features, weight, *ctx.options = inputs
    ctx.save_for_backward(image, features, weight)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    wanted = list(ctx.needs_input_grad[:3])
    grads = feature_convolution_backward(grad.contiguous(), *ctx.saved_tensors, *ctx.options, wanted)
    return *(part if wants else None for part, wants in zip(grads, wanted, strict=True)), None, None, None, None


def _plain(image: Tensor, features: Tensor, weight: Tensor, *options: Any) -> Tensor:
    with torch.autocast(image.device.type, enabled=False):
        return _spectra(image, features, weight, *options).plain()


def _plain_backward(grad: Tensor, image: Tensor, features: Tensor, weight: Tensor, *options: Any) -> tuple[Tensor, ...]:
    *window, wanted = options
    return tuple(pullback(lambda moved: [_plain(*moved, *window)], [grad], [image, features, weight], wanted))


differentiable(feature_convolution, _backward, setup_context=_setup_context, plain=_plain)
differentiable(feature_convolution_backward, plain=_plain_backward)
