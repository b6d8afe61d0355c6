"""Converts BERT, RoBERTa, DistilBERT, ViT and DeiT from checkpoints of `transformers`."""

from typing import Any

import torch

from fredholm.models import Bert, ViT
from fredholm.pretrained.checkpoint import Converted, Fields, Source, Tensors, linear
from fredholm.pretrained.decoders import ACTIVATIONS


def bert(fields: Fields, tensors: Tensors) -> Converted:
    """Converts BERT and RoBERTa, with the checkpoint's head: tokens, classes or none.

    RoBERTa's positions start after the padding token's index. The rows before are dropped: ours start at 0.
    """
    fields.require(is_decoder=False, add_cross_attention=False, position_embedding_type="absolute")
    fields.require(tie_word_embeddings=True)
    kind = fields.get("model_type")
    tensors = tensors.without_prefix(f"{kind}.")
    tensors.ignore("embeddings.position_ids", "embeddings.token_type_ids")
    first = fields.count("pad_token_id", 1, least=0) + 1 if kind == "roberta" else 0
    config = Bert.Config(
        embed_dim=fields.count("hidden_size", 768),
        depth=fields.depth("num_hidden_layers", 12, tensors),
        num_heads=fields.count("num_attention_heads", 12),
        expansion=fields.count("intermediate_size", 3072) / fields.count("hidden_size", 768),
        num_segments=fields.count("type_vocab_size", 2, least=0),
        activation=fields.choice("hidden_act", ACTIVATIONS, "gelu"),
        norm_epsilon=fields.number("layer_norm_eps", 1e-12),
        dropout=fields.rate("hidden_dropout_prob", 0.1),
        **_head(tensors, "classifier.out_proj.weight" if kind == "roberta" else "classifier.weight"),
    )
    sources: dict[str, Source] = {"tokens.weight": "embeddings.word_embeddings.weight"}
    sources["positions.weight"] = lambda tensors: tensors["embeddings.position_embeddings.weight"][first:]
    if config.num_segments:
        sources["segments.weight"] = "embeddings.token_type_embeddings.weight"
    sources |= linear("norm", "embeddings.LayerNorm")
    for n in range(config.depth):
        sources |= _block(f"blocks.{n}", f"encoder.layer.{n}", _BERT)
    if config.head == "tokens" and kind == "bert":
        sources |= linear("head.map", "cls.predictions.transform.dense")
        sources |= linear("head.norm", "cls.predictions.transform.LayerNorm") | {"head.bias": "cls.predictions.bias"}
        tensors.ignore("cls.predictions.decoder.weight", "cls.predictions.decoder.bias", "pooler.dense.weight")
        tensors.ignore("pooler.dense.bias", "cls.seq_relationship.weight", "cls.seq_relationship.bias")
    elif config.head == "tokens":
        if config.activation != "gelu":  # RoBERTa's head always uses gelu; that of `Bert` uses the blocks' activation
            raise ValueError(
                f"{fields.source}: hidden_act={fields.get('hidden_act')!r} is not supported beside RoBERTa's head over "
                "tokens (lm_head), which is made with gelu; supported: gelu, or a checkpoint without this head"
            )
        sources |= linear("head.map", "lm_head.dense") | linear("head.norm", "lm_head.layer_norm")
        sources |= {"head.bias": "lm_head.bias"}
        tensors.ignore("lm_head.decoder.weight", "lm_head.decoder.bias", "pooler.dense.weight", "pooler.dense.bias")
    elif config.head == "classes" and kind == "bert":
        sources |= linear("head.map", "pooler.dense") | linear("head.classes", "classifier")
    elif config.head == "classes":
        sources |= linear("head.map", "classifier.dense") | linear("head.classes", "classifier.out_proj")
    else:
        tensors.ignore("pooler.dense.weight", "pooler.dense.bias")
    vocabulary = fields.count("vocab_size", 30522)
    context = fields.count("max_position_embeddings", 512) - first
    pooler = _if_there(tensors, "classifier.dense" if kind == "roberta" else "pooler.dense")
    is_bert = kind == "bert"
    return Converted(lambda: config.build(vocabulary, context), tensors, sources, pooler, marks_second=is_bert)


def distilbert(fields: Fields, tensors: Tensors) -> Converted:
    """Converts DistilBERT, with the checkpoint's head: tokens, classes or none."""
    fields.require(tie_word_embeddings=True)
    tensors = tensors.without_prefix("distilbert.")
    config = Bert.Config(
        embed_dim=fields.count("dim", 768),
        depth=fields.depth("n_layers", 6, tensors),
        num_heads=fields.count("n_heads", 12),
        expansion=fields.count("hidden_dim", 3072) / fields.count("dim", 768),
        num_segments=0,
        activation=fields.choice("activation", ACTIVATIONS, "gelu"),
        dropout=fields.rate("dropout", 0.1),
        **_head(tensors, "classifier.weight", "relu"),
    )
    sources: dict[str, Source] = {
        "tokens.weight": "embeddings.word_embeddings.weight",
        "positions.weight": "embeddings.position_embeddings.weight",
    }
    sources |= linear("norm", "embeddings.LayerNorm")
    for n in range(config.depth):
        sources |= _block(f"blocks.{n}", f"transformer.layer.{n}", _DISTILBERT)
    if config.head == "tokens":
        sources |= linear("head.map", "vocab_transform") | linear("head.norm", "vocab_layer_norm")
        sources |= {"head.bias": "vocab_projector.bias"}
        tensors.ignore("vocab_projector.weight")
    elif config.head == "classes":
        sources |= linear("head.map", "pre_classifier") | linear("head.classes", "classifier")
    vocabulary, context = fields.count("vocab_size", 30522), fields.count("max_position_embeddings", 512)
    pooler = _if_there(tensors, "pre_classifier")
    return Converted(lambda: config.build(vocabulary, context), tensors, sources, pooler, "relu")


def _if_there(tensors: Tensors, name: str) -> dict[str, Source]:
    """Sources of the weight and bias of a linear map, where the checkpoint has it."""
    return {kind: f"{name}.{kind}" for kind in ("weight", "bias")} if f"{name}.weight" in tensors else {}


def _head(tensors: Tensors, classes: str, pooling: str = "tanh") -> dict[str, Any]:
    """Settings of the head, inferred from the checkpoint's tensors."""
    if classes in tensors:
        return {"head": "classes", "num_classes": tensors.shape(classes)[0], "pooling": pooling}
    tokens = ("cls.predictions.bias", "lm_head.bias", "vocab_projector.bias")
    return {"head": "tokens" if any(name in tensors for name in tokens) else "none"}


_BERT = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "output": "attention.output.dense",
    "operator_norm": "attention.output.LayerNorm",
    "expand": "intermediate.dense",
    "contract": "output.dense",
    "feed_forward_norm": "output.LayerNorm",
}
_DISTILBERT = {
    "query": "attention.q_lin",
    "key": "attention.k_lin",
    "value": "attention.v_lin",
    "output": "attention.out_lin",
    "operator_norm": "sa_layer_norm",
    "expand": "ffn.lin1",
    "contract": "ffn.lin2",
    "feed_forward_norm": "output_layer_norm",
}
_VIT = {
    "query": "attention.attention.query",
    "key": "attention.attention.key",
    "value": "attention.attention.value",
    "output": "attention.output.dense",
    "operator_norm": "layernorm_before",
    "expand": "intermediate.dense",
    "contract": "output.dense",
    "feed_forward_norm": "layernorm_after",
}


def _block(mine: str, theirs: str, names: dict[str, str], *, attention_bias: bool = True) -> dict[str, Source]:
    """Sources of the tensors of one block."""
    sources: dict[str, Source] = {}
    for name in ("query", "key", "value"):
        for kind in ("weight", "bias") if attention_bias else ("weight",):
            sources[f"{mine}.operator.kernel.projections.{name}_{kind}"] = f"{theirs}.{names[name]}.{kind}"
    sources[f"{mine}.operator.output_weight"] = f"{theirs}.{names['output']}.weight"
    sources[f"{mine}.operator.bias"] = f"{theirs}.{names['output']}.bias"
    for norm in ("operator_norm", "feed_forward_norm"):
        sources |= linear(f"{mine}.{norm}", f"{theirs}.{names[norm]}")
    for layer in ("expand", "contract"):
        sources |= linear(f"{mine}.feed_forward.{layer}", f"{theirs}.{names[layer]}")
    return sources


def vit(fields: Fields, tensors: Tensors) -> Converted:
    """Converts ViT and DeiT; without a classifier the output is the last signal at the class token."""
    kind = fields.get("model_type")
    tensors = tensors.without_prefix(f"{kind}.")
    two_heads = "distillation_classifier.weight" in tensors
    head = "cls_classifier" if two_heads else "classifier"
    has_bias, channels = fields.flag("qkv_bias", True), fields.count("num_channels", 3)
    config = ViT.Config(
        image_size=_sides(fields, "image_size", 224),
        patch_size=_sides(fields, "patch_size", 16),
        channels=channels,
        embed_dim=fields.count("hidden_size", 768),
        depth=fields.depth("num_hidden_layers", 12, tensors),
        num_heads=fields.count("num_attention_heads", 12),
        expansion=fields.count("intermediate_size", 3072) / fields.count("hidden_size", 768),
        num_classes=tensors.shape(f"{head}.weight")[0] if f"{head}.weight" in tensors else 0,
        distillation_token=kind == "deit",
        distillation_head=two_heads,
        attention_bias=has_bias,
        activation=fields.choice("hidden_act", ACTIVATIONS, "gelu"),
        norm_epsilon=fields.number("layer_norm_eps", 1e-12),
        dropout=fields.rate("hidden_dropout_prob", 0.0),
    )
    tensors.ignore("pooler.dense.weight", "pooler.dense.bias", "embeddings.mask_token")
    sources: dict[str, Source] = {"positions": lambda tensors: tensors["embeddings.position_embeddings"][0]}
    tokens = ("cls_token", "distillation_token") if kind == "deit" else ("cls_token",)
    sources["leading"] = rows(*(f"embeddings.{name}" for name in tokens))
    sources |= linear("patches", "embeddings.patch_embeddings.projection") | linear("norm", "layernorm")
    for n in range(config.depth):
        sources |= _block(f"blocks.{n}", f"encoder.layer.{n}", _VIT, attention_bias=has_bias)
    if config.num_classes:
        sources |= linear("head", head)
    if two_heads:
        sources |= linear("distillation_head", "distillation_classifier")
    return Converted(config.build, tensors, sources)


def rows(*names: str) -> Source:
    """Tensors `(1, n, C)` concatenated along n, `(N, C)`."""

    def read(tensors: Tensors) -> torch.Tensor:
        return torch.cat([tensors[name][0] for name in names])

    return read


def _sides(fields: Fields, name: str, default: int) -> tuple[int, int]:
    """Height and width, from one number or two."""
    value = fields.get(name, default)
    pair = (value, value) if isinstance(value, int) else value
    if not isinstance(pair, list | tuple) or len(pair) != 2 or not all(isinstance(n, int) and n > 0 for n in pair):
        raise ValueError(f"{fields.source}: {name} must be a number of pixels, or height and width; got {value!r}")
    return pair[0], pair[1]


ENCODERS = {"bert": bert, "roberta": bert, "distilbert": distilbert, "vit": vit, "deit": vit}
"""Converter of each `model_type`."""
