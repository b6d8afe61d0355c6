"""Opens models from folders of this library, `transformers` and `timm`."""

from pathlib import Path

import torch
from torch import nn

from fredholm.models.saved_model import load_model
from fredholm.pretrained import timm
from fredholm.pretrained.checkpoint import Converted, Fields, Tensors, fill, find_tensors, read_config
from fredholm.pretrained.decoders import DECODERS
from fredholm.pretrained.encoders import ENCODERS
from fredholm.pretrained.sentence_modules import sentence_modules
from fredholm.storage.model_folder import ModelFolder

CONVERTERS = DECODERS | ENCODERS


def open_model(folder: Path, dtype: torch.dtype | None) -> nn.Module:
    """Loads a folder as a model whose mixers are integral operators; its outputs equal the original library's.

    From this library: folders of `save_pretrained`.

    From `transformers`: GPT-2, Llama, Mistral and Qwen2 (`models.GPT2`, `models.Llama`), Mamba (`models.Mamba`), BERT,
    RoBERTa and DistilBERT (`models.Bert`), ViT and DeiT (`models.ViT`); from `timm`: ViT, DeiT, DeiT III and DINOv2,
    ConvNeXt (`models.ConvNeXt`); from `sentence-transformers` the transformer alone. Masked padding changes nothing
    here, on either side; `transformers` counts padding on the left in its positions, unless positions are passed.

    Args:
        folder: a folder with config.json and safetensors, in shards or not. Pickles are never read.
        dtype: dtype of the parameters; None: as stored.

    Returns:
        The model, in evaluation mode, on the CPU.

    Raises:
        ValueError, OSError: a file or tensor is missing or damaged, or a setting is not supported.
    """
    if ModelFolder.is_one(folder):
        return load_model(folder, dtype).eval()
    converted = convert(sentence_modules(folder).transformer)
    with torch.device("meta"):
        model = converted.build()
    fill(model, converted.tensors, converted.sources, dtype)
    return model.eval()


def convert(folder: Path) -> Converted:
    """Converts a checkpoint of `transformers` or `timm` without reading its tensors; raises as `open_model`."""
    return _converted(Fields(read_config(folder), str(folder / "config.json")), find_tensors(folder))


def _converted(fields: Fields, tensors: Tensors) -> Converted:
    kind, architecture = fields.get("model_type"), fields.get("architecture")
    if kind is None and isinstance(architecture, str):
        found = [convert for start, convert in timm.ARCHITECTURES.items() if architecture.startswith(start)]
        if found:
            return found[0](fields, tensors)
        raise ValueError(
            f"{fields.source}: architecture={architecture!r} is not supported; supported are names of timm that start "
            f"with {', '.join(timm.ARCHITECTURES)}"
        )
    if kind not in CONVERTERS:
        raise ValueError(
            f"{fields.source}: model_type={kind!r} is not supported; supported: {', '.join(CONVERTERS)}, and ViT and "
            "ConvNeXt of timm"
        )
    return CONVERTERS[kind](fields, tensors)
