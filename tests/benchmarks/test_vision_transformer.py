"""The vision transformer used as a reference is the published one."""

import torch
from torch import nn

from benchmarks.peers.vision_transformer import VisionTransformer


def test_vit_b_has_the_published_number_of_parameters():
    with torch.device("meta"):
        model = VisionTransformer()
    assert sum(parameter.numel() for parameter in model.parameters()) == 86_567_656


def test_its_blocks_are_the_pre_norm_encoder_layers_of_torch():
    model = VisionTransformer(image_size=8, patch_size=4, embed_dim=12, depth=2, num_heads=3, num_outputs=5).double()
    images = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    with torch.no_grad():
        model.cls_token.normal_()
    assert model.patches.bias is not None
    patches = nn.functional.unfold(images, 4, stride=4).transpose(1, 2)
    u = patches @ model.patches.weight.flatten(1).T + model.patches.bias
    u = torch.cat([model.cls_token.expand(2, -1, -1), u], dim=1) + model.positions
    for block in model.blocks:
        layer = nn.TransformerEncoderLayer(
            12, 3, 48, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        ).double()
        own = block.state_dict()
        names = {
            "norm1": "attention_norm",
            "norm2": "mlp_norm",
            "linear1": "mlp.0",
            "linear2": "mlp.2",
            "self_attn.out_proj": "projection",
        }
        state = {
            f"{theirs}.{kind}": own[f"{ours}.{kind}"] for theirs, ours in names.items() for kind in ("weight", "bias")
        }
        state |= {f"self_attn.in_proj_{kind}": own[f"qkv.{kind}"] for kind in ("weight", "bias")}
        layer.load_state_dict(state)
        u = layer(u)
    expected = model.head(model.norm(u)[:, 0])
    torch.testing.assert_close(model(images), expected, rtol=1e-12, atol=1e-12)
