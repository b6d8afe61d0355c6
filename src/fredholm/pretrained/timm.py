"""Converts ViT and ConvNeXt from checkpoints of `timm`: an architecture's name, a few settings, and tensors.

Settings that are only in timm's own code are inferred from the tensors' names and shapes. The number of heads follows
from the size in the architecture's name. Activations and norms cannot be inferred: `OWN` lists the architectures that
differ from their family in one of these.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from fredholm.models import ConvNeXt, ViT
from fredholm.pretrained.checkpoint import Converted, Fields, Source, Tensors, linear, part
from fredholm.pretrained.encoders import rows

HEADS = {
    "tiny": (192, 3),
    "small": (384, 6),
    "medium": (512, 8),
    "base": (768, 12),
    "large": (1024, 16),
    "huge": (1280, 16),
    "giant": (1408, 16),
    "gigantic": (1664, 16),
    "so400m": (1152, 16),
}
"""Channels and heads of each size of a ViT."""

OWN: Mapping[str, Mapping[str, Any]] = {
    "vit_base_patch16_gap_224": {"num_heads": 16},
    "vit_base_patch32_siglip_gap_256": {"activation": "gelu_tanh"},
    "vit_large_patch16_siglip_gap_512": {"activation": "gelu_tanh"},
    "vit_so400m_patch16_siglip_gap_256": {"activation": "gelu_tanh"},
    "vit_so400m_patch16_siglip_gap_384": {"activation": "gelu_tanh"},
    "vit_so400m_patch16_siglip_gap_512": {"activation": "gelu_tanh"},
    "convnext_xxlarge": {"norm_epsilon": 1e-5},
}
"""Settings of single architectures that differ from their family and cannot be inferred from a checkpoint."""


def vit(fields: Fields, tensors: Tensors) -> Converted:
    """Converts ViT, DeiT, DeiT III and DINOv2; without classes the output is the pooled signal."""
    architecture = str(fields.get("architecture"))
    settings = _settings(fields, {"in_chans", "num_classes", "global_pool", "img_size"})
    patch, dim = tensors.shape("patch_embed.proj.weight"), tensors.shape("patch_embed.proj.weight")[0]
    heads = next((heads for size, (channels, heads) in HEADS.items() if size in architecture and channels == dim), None)
    # timm's rpn variants have norms after their branches, under the names of the norms before them
    if heads is None or "quickgelu" in architecture or "_rpn_" in architecture:
        sizes = ", ".join(f"{size} ({channels})" for size, (channels, _) in HEADS.items())
        raise ValueError(
            f"{fields.source}: architecture={architecture!r} with {dim} channels is not supported; supported are ViTs "
            f"with GELU and norms before their branches of the sizes {sizes}"
        )
    pool = settings.choice("global_pool", {"token": "cls", "avg": "mean"}, "token")
    leading = [name for name in ("cls_token", "dist_token", "reg_token") if name in tensors]
    image = _image_size(settings, fields)
    patches = image[0] // patch[2] * (image[1] // patch[3])
    num_leading = sum(tensors.shape(name)[1] for name in leading)
    scale = "blocks.0.ls1.gamma" in tensors
    depth = 1 + max((int(found[1]) for name in tensors if (found := re.match(r"blocks\.(\d+)\.", name))), default=-1)
    if depth == 0:
        raise ValueError(f"{fields.source}: there is no tensor 'blocks.0.norm1.weight', which a ViT has")
    config = ViT.Config(
        image_size=image,
        patch_size=(patch[2], patch[3]),
        channels=patch[1],
        embed_dim=dim,
        depth=depth,
        num_heads=heads,
        expansion=tensors.shape("blocks.0.mlp.fc1.weight")[0] / dim,
        num_classes=tensors.shape("head.weight")[0] if "head.weight" in tensors else 0,
        class_token="cls_token" in tensors,
        distillation_token="dist_token" in tensors,
        distillation_head="head_dist.weight" in tensors,
        num_registers=tensors.shape("reg_token")[1] if "reg_token" in tensors else 0,
        placed_tokens=num_leading > 0 and tensors.shape("pos_embed")[1] == patches + num_leading,
        pool=pool,
        norm_after_pooling=pool == "mean" and "fc_norm.weight" in tensors,
        norm_before_blocks="norm_pre.weight" in tensors,
        branch_scale=1.0 if scale else None,
        attention_bias="blocks.0.attn.qkv.bias" in tensors,
        patch_bias="patch_embed.proj.bias" in tensors,
        # only CLIP's towers norm the signal first, and they use LayerNorm's default epsilon
        norm_epsilon=1e-5 if "norm_pre.weight" in tensors else 1e-6,
    )
    config = dataclasses.replace(config, **OWN.get(architecture, {}))
    sources: dict[str, Source] = {"positions": _first("pos_embed")}
    if leading:
        sources["leading"] = rows(*leading)
    sources |= linear("patches", "patch_embed.proj", bias=config.patch_bias)
    sources |= linear("norm", "fc_norm" if "fc_norm.weight" in tensors else "norm")
    if config.norm_before_blocks:
        sources |= linear("first_norm", "norm_pre")
    for n in range(depth):
        sources |= _block(n, has_bias=config.attention_bias, has_scale=scale)
    if config.num_classes:
        sources |= linear("head", "head")
    if config.distillation_head:
        sources |= linear("distillation_head", "head_dist")
    return Converted(config.build, tensors, sources)


def _block(n: int, *, has_bias: bool, has_scale: bool) -> dict[str, Source]:
    mine = theirs = f"blocks.{n}"
    sources: dict[str, Source] = {}
    for index, name in enumerate(("query", "key", "value")):
        for kind in ("weight", "bias") if has_bias else ("weight",):
            sources[f"{mine}.operator.kernel.projections.{name}_{kind}"] = part(f"{theirs}.attn.qkv.{kind}", index, 3)
    sources[f"{mine}.operator.output_weight"] = f"{theirs}.attn.proj.weight"
    sources[f"{mine}.operator.bias"] = f"{theirs}.attn.proj.bias"
    for layer, name in (
        ("operator_norm", "norm1"),
        ("feed_forward_norm", "norm2"),
        ("feed_forward.expand", "mlp.fc1"),
        ("feed_forward.contract", "mlp.fc2"),
    ):
        sources |= linear(f"{mine}.{layer}", f"{theirs}.{name}")
    if has_scale:
        sources[f"{mine}.operator_scale"] = f"{theirs}.ls1.gamma"
        sources[f"{mine}.feed_forward_scale"] = f"{theirs}.ls2.gamma"
    return sources


def convnext(fields: Fields, tensors: Tensors) -> Converted:
    """Converts ConvNeXt; without classes the output is the normed mean."""
    settings = _settings(fields, {"in_chans", "num_classes", "global_pool"})
    settings.require(global_pool="avg")
    patch = tensors.shape("stem.0.weight")
    found = [re.match(r"stages\.(\d+)\.blocks\.(\d+)\.norm\.weight$", name) for name in tensors]
    blocks = [(int(each[1]), int(each[2])) for each in found if each]
    depths = tuple(sum(stage == s for stage, _ in blocks) for s in range(1 + max((s for s, _ in blocks), default=-1)))
    if not depths:
        raise ValueError(f"{fields.source}: there is no tensor 'stages.0.blocks.0.norm.weight', which a ConvNeXt has")
    dims = tuple(tensors.shape(f"stages.{s}.blocks.0.norm.weight")[0] for s in range(len(depths)))
    if patch[2] != patch[3]:
        raise ValueError(
            f"{fields.source}: patches of {patch[2]} x {patch[3]} pixels are not supported; take square ones"
        )
    scale = "stages.0.blocks.0.gamma" in tensors
    config = ConvNeXt.Config(
        channels=patch[1],
        patch_size=patch[2],
        depths=depths,
        dims=dims,
        kernel_size=tensors.shape("stages.0.blocks.0.conv_dw.weight")[2],
        expansion=tensors.shape("stages.0.blocks.0.mlp.fc1.weight")[0] / dims[0],
        branch_scale=1.0 if scale else None,
        num_classes=tensors.shape("head.fc.weight")[0] if "head.fc.weight" in tensors else 0,
    )
    config = dataclasses.replace(config, **OWN.get(str(fields.get("architecture")), {}))
    sources: dict[str, Source] = linear("patches", "stem.0") | linear("patch_norm", "stem.1")
    for s, depth in enumerate(depths):
        if s:
            sources |= linear(f"stages.{s}.halving_norm", f"stages.{s}.downsample.0")
            sources |= linear(f"stages.{s}.halving", f"stages.{s}.downsample.1")
        for n in range(depth):
            block = f"stages.{s}.blocks.{n}"
            sources[f"{block}.operator.kernel.weight"] = f"{block}.conv_dw.weight"
            sources[f"{block}.operator.bias"] = f"{block}.conv_dw.bias"
            sources |= linear(f"{block}.norm", f"{block}.norm")
            for layer, name in (("expand", "fc1"), ("contract", "fc2")):
                sources[f"{block}.feed_forward.{layer}.weight"] = _matrix(f"{block}.mlp.{name}.weight")
                sources[f"{block}.feed_forward.{layer}.bias"] = f"{block}.mlp.{name}.bias"
            if scale:
                sources[f"{block}.scale"] = f"{block}.gamma"
    sources |= linear("norm", "head.norm")
    if config.num_classes:
        sources |= linear("head", "head.fc")
    return Converted(config.build, tensors, sources)


def _settings(fields: Fields, known: set[str]) -> Fields:
    """Settings of the architecture that differ from its defaults; unsupported ones are refused."""
    given = dict(fields.get("model_args") or {})
    given.setdefault("global_pool", fields.get("global_pool"))
    unknown = sorted(name for name in given if name not in known)
    if unknown:
        raise ValueError(
            f"{fields.source}: model_args {unknown[0]}={given[unknown[0]]!r} is not supported; supported: "
            f"{', '.join(sorted(known))}"
        )
    return Fields(given, f"{fields.source}: model_args")


def _image_size(settings: Fields, fields: Fields) -> tuple[int, int]:
    size = settings.get("img_size")
    if size is None:
        given: Mapping[str, object] = fields.get("pretrained_cfg") or {}
        whole = given.get("input_size")
        size = list(whole)[1:] if isinstance(whole, list | tuple) else None
    size = [size, size] if isinstance(size, int) else size
    if not isinstance(size, list | tuple) or len(size) != 2 or not all(isinstance(n, int) and n > 0 for n in size):
        raise ValueError(f"{fields.source}: img_size must be height and width in pixels; got {size!r}")
    return size[0], size[1]


def _first(name: str) -> Source:
    return lambda tensors: tensors[name][0]


def _matrix(name: str) -> Source:
    """Weights of a linear map, which some variants store as a 1 x 1 convolution."""

    def read(tensors: Tensors) -> Tensor:
        return tensors[name].flatten(1)

    return read


ARCHITECTURES = {"vit_": vit, "deit_": vit, "deit3_": vit, "convnext_": convnext}
"""Converters by the prefix of the architecture's name."""
