"""Converts GPT-2, Llama, Mistral, Qwen2 and Mamba from checkpoints of `transformers`."""

import sys
from collections.abc import Mapping

from fredholm.kernels import Rotary
from fredholm.models import GPT2, Llama, Mamba
from fredholm.pretrained.checkpoint import Converted, Fields, Source, Tensors, laid_out, linear, part, transposed

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
"""Our activations by their names in `transformers`."""


def gpt2(fields: Fields, tensors: Tensors) -> Converted:
    """Converts GPT-2; the larger of its embedding and residual dropouts replaces both."""
    fields.require(scale_attn_weights=True, add_cross_attention=False)
    dim = fields.count("n_embd", 768)
    config = GPT2.Config(
        embed_dim=dim,
        depth=fields.depth("n_layer", 12, tensors),
        num_heads=fields.count("n_head", 12),
        expansion=fields.count("n_inner", 4 * dim) / dim,
        activation=fields.choice("activation_function", ACTIVATIONS, "gelu_new"),
        norm_epsilon=fields.number("layer_norm_epsilon", 1e-5),
        scale_by_layer=fields.flag("scale_attn_by_inverse_layer_idx", False),
        tied_head=fields.flag("tie_word_embeddings", True),
        dropout=max(fields.rate("embd_pdrop", 0.1), fields.rate("resid_pdrop", 0.1)),
    )
    tensors = tensors.without_prefix("transformer.")
    tensors.ignore(".attn.bias", ".attn.masked_bias")
    sources: dict[str, Source] = {"tokens.weight": laid_out("wte.weight"), "positions.weight": "wpe.weight"}
    for n in range(config.depth):
        mine, theirs = f"blocks.{n}", f"h.{n}"
        sources |= linear(f"{mine}.operator_norm", f"{theirs}.ln_1")
        sources |= linear(f"{mine}.feed_forward_norm", f"{theirs}.ln_2")
        for index, name in enumerate(("query", "key", "value")):
            for kind in ("weight", "bias"):
                sources[f"{mine}.operator.kernel.projections.{name}_{kind}"] = part(
                    f"{theirs}.attn.c_attn.{kind}", index, 3, transposed=True
                )
        for layer, name in (("expand", "c_fc"), ("contract", "c_proj")):
            sources[f"{mine}.feed_forward.{layer}.weight"] = transposed(f"{theirs}.mlp.{name}.weight")
            sources[f"{mine}.feed_forward.{layer}.bias"] = f"{theirs}.mlp.{name}.bias"
        sources[f"{mine}.operator.output_weight"] = transposed(f"{theirs}.attn.c_proj.weight")
        sources[f"{mine}.operator.bias"] = f"{theirs}.attn.c_proj.bias"
    sources |= linear("norm", "ln_f") | _head(config.tied_head, tensors)
    vocabulary, context = fields.count("vocab_size", 50257), fields.count("n_positions", 1024)
    return Converted(lambda: config.build(vocabulary, context), tensors, sources)


WINDOW = 4096
"""Default sliding window of Mistral and Qwen2, in tokens."""


def llama(fields: Fields, tensors: Tensors) -> Converted:
    """Converts Llama, and Mistral and Qwen2 within their sliding window, where they attend to the whole past."""
    kind, dim, heads = (
        fields.get("model_type"),
        fields.count("hidden_size", 4096),
        fields.count("num_attention_heads", 32),
    )
    context = fields.count("max_position_embeddings", 2048)
    fields.require(head_dim=dim // heads, pretraining_tp=1, partial_rotary_factor=1.0)
    if kind != "llama" and fields.flag("use_sliding_window", kind != "qwen2"):
        # null means no window, and a missing field the default one
        window = None if fields.names("sliding_window") else WINDOW
        if fields.get("sliding_window", window) is not None:
            # contexts up to the window attend to the whole past
            context = min(context, fields.count("sliding_window", window))
    has_bias = kind == "qwen2" or fields.flag("attention_bias", False)
    config = Llama.Config(
        embed_dim=dim,
        depth=fields.depth("num_hidden_layers", 32, tensors),
        num_heads=heads,
        num_kv_heads=fields.count("num_key_value_heads", heads),
        expansion=fields.count("intermediate_size", 11008) / dim,
        rotary=_rotary(fields),
        activation=fields.choice("hidden_act", ACTIVATIONS, "silu"),
        norm_epsilon=fields.number("rms_norm_eps", 1e-6),
        attention_bias=has_bias,
        output_bias=has_bias and kind != "qwen2",
        feed_forward_bias=fields.flag("mlp_bias", False),
        tied_head=fields.flag("tie_word_embeddings", False),
    )
    tensors = tensors.without_prefix("model.")
    tensors.ignore(".rotary_emb.inv_freq")
    sources: dict[str, Source] = {"tokens.weight": "embed_tokens.weight"}
    for n in range(config.depth):
        mine, theirs = f"blocks.{n}", f"layers.{n}"
        sources |= linear(f"{mine}.operator_norm", f"{theirs}.input_layernorm", bias=False)
        sources |= linear(f"{mine}.feed_forward_norm", f"{theirs}.post_attention_layernorm", bias=False)
        for name in ("query", "key", "value"):
            for each in ("weight", "bias") if config.attention_bias else ("weight",):
                stored = f"{theirs}.self_attn.{name[0]}_proj.{each}"
                sources[f"{mine}.operator.kernel.projections.{name}_{each}"] = stored
        sources[f"{mine}.operator.output_weight"] = f"{theirs}.self_attn.o_proj.weight"
        if config.output_bias:
            sources[f"{mine}.operator.bias"] = f"{theirs}.self_attn.o_proj.bias"
        for layer, name in (("gate", "gate_proj"), ("expand", "up_proj"), ("contract", "down_proj")):
            sources |= linear(f"{mine}.feed_forward.{layer}", f"{theirs}.mlp.{name}", bias=config.feed_forward_bias)
    sources |= linear("norm", "norm", bias=False) | _head(config.tied_head, tensors)
    vocabulary = fields.count("vocab_size", 32000)
    return Converted(lambda: config.build(vocabulary, context), tensors, sources)


def _rotary(fields: Fields) -> Rotary:
    """Rotary positions from `rope_parameters`, or from `rope_scaling`, its older name, which takes precedence.

    `rope_theta` may be inside or beside them, as in `transformers`.
    """
    name = "rope_scaling" if fields.get("rope_scaling") else "rope_parameters"
    given = fields.get(name, {})
    if not isinstance(given, Mapping):
        raise ValueError(f"{fields.source}: {name} must be an object; got {given!r}")
    rope = Fields({"rope_theta": fields.get("rope_theta"), **given}, f"{fields.source}: {name}")
    base, kind = rope.number("rope_theta", 10_000.0), rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return Rotary(base)
    if kind == "linear":
        return Rotary(base, stretch=rope.number("factor"))
    if kind == "llama3":
        band = rope.number("low_freq_factor"), rope.number("high_freq_factor")
        context = rope.count("original_max_position_embeddings")
        return Rotary(base, stretch=rope.number("factor"), trained_context=context, band=band)
    raise ValueError(f"{rope.source}: rope_type={kind!r} is not supported; supported: default, linear, llama3")


def mamba(fields: Fields, tensors: Tensors) -> Converted:
    """Converts Mamba, whose context is unlimited."""
    fields.require(use_bias=False, use_conv_bias=True, hidden_act="silu")
    dim, expansion = fields.count("hidden_size", 768), fields.count("expand", 2)
    fields.require(intermediate_size=expansion * dim)
    rank = fields.get("time_step_rank", "auto")
    config = Mamba.Config(
        embed_dim=dim,
        depth=fields.depth("num_hidden_layers", 32, tensors),
        expansion=expansion,
        state_dim=fields.count("state_size", 16),
        conv_width=fields.count("conv_kernel", 4),
        rank=None if rank == "auto" else fields.count("time_step_rank"),
        norm_epsilon=fields.number("layer_norm_epsilon", 1e-5),
        tied_head=fields.flag("tie_word_embeddings", True),
    )
    tensors = tensors.without_prefix("backbone.")
    sources: dict[str, Source] = {"tokens.weight": "embeddings.weight"}
    for n in range(config.depth):
        mine, theirs = f"blocks.{n}.mixer", f"layers.{n}.mixer"
        kernel = f"{mine}.operator.kernel"
        sources |= linear(f"blocks.{n}.norm", f"layers.{n}.norm", bias=False)
        sources |= linear(f"{mine}.in_projection", f"{theirs}.in_proj", bias=False)
        sources |= linear(f"{mine}.out_projection", f"{theirs}.out_proj", bias=False)
        sources[f"{mine}.convolution.weight"] = _filter(f"{theirs}.conv1d.weight")
        sources[f"{mine}.convolution.bias"] = f"{theirs}.conv1d.bias"
        sources[f"{kernel}.log_a"] = f"{theirs}.A_log"
        sources[f"{kernel}.content_weight"] = f"{theirs}.x_proj.weight"
        sources[f"{kernel}.step_weight"] = f"{theirs}.dt_proj.weight"
        sources[f"{kernel}.step_bias"] = f"{theirs}.dt_proj.bias"
        sources[f"{kernel}.feedthrough"] = f"{theirs}.D"
    sources |= linear("norm", "norm_f", bias=False) | _head(config.tied_head, tensors)
    vocabulary = fields.count("vocab_size", 50280)
    return Converted(lambda: config.build(vocabulary, sys.maxsize), tensors, sources)


def _filter(name: str) -> Source:
    """Filters of a depthwise convolution, one per channel."""
    return lambda tensors: tensors[name].squeeze(1)


def _head(is_tied: bool, tensors: Tensors) -> dict[str, Source]:
    if not is_tied:
        return {"head.weight": "lm_head.weight"}
    tensors.ignore("lm_head.weight")
    return {}


DECODERS = {"gpt2": gpt2, "llama": llama, "mistral": llama, "qwen2": llama, "mamba": mamba}
"""Converter of each `model_type`."""
