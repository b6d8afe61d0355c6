"""Pretrained checkpoints, also of other libraries, for inference and fine-tuning; kernel exchange; quantisation."""

from fredholm.pretrained.add_kernel import add_kernel
from fredholm.pretrained.fine_tune import PretrainedImages, PretrainedMasked, PretrainedSentences, PretrainedText
from fredholm.pretrained.linearise import LayerFit, Linearised, linearise
from fredholm.pretrained.quantise import Quantised, quantise

__all__ = [
    "LayerFit",
    "Linearised",
    "PretrainedImages",
    "PretrainedMasked",
    "PretrainedSentences",
    "PretrainedText",
    "Quantised",
    "add_kernel",
    "linearise",
    "quantise",
]
