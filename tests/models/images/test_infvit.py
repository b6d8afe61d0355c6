import dataclasses
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from fredholm import analysis, encoders
from fredholm.blocks.discounted import DiscountedBlock
from fredholm.blocks.residual import ResidualBlock
from fredholm.domains import Domain, Points
from fredholm.models.images.infvit import AttentionKind, InfViT
from tests.refusals import refused

KINDS: tuple[AttentionKind, ...] = ("softmax", "pure", "resolvent", "factorised", "linear")
Config = InfViT.Config


def model(image_size: tuple[int, int] = (4, 6), num_outputs: int = 3, *, any_size: bool = False, **more: Any) -> InfViT:
    settings: dict[str, Any] = {"embed_dim": 8, "depth": 3, "num_heads": 2} | more
    config = Config(**settings)
    image = encoders.Image.Config(
        image_size=image_size, patch_size=2, channels=1, num_frequencies=2, sigma=1.0, any_size=any_size
    )
    return InfViT(encoders.Image(image, config.embed_dim), num_outputs, config)


def randomised(net: InfViT) -> InfViT:
    """The model in float64, with noise on every parameter."""
    net = net.double()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return net


def images(batch: int = 2, image_size: tuple[int, int] = (4, 6), dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(batch, 1, *image_size, generator=torch.Generator().manual_seed(0), dtype=dtype)


def hop(block: Any, u: Tensor, domain: Domain) -> Tensor:
    """A V of a layer, head by head, from the full weights, `(B, N, C)`."""
    kernel, v = block.operator.kernel, block.operator_norm(u)
    values = torch.einsum("hoi,bni->bhno", kernel.value_matrices(), kernel.multiplicand(v))
    return (analysis.attention_weights(kernel, v, domain) @ values).transpose(1, 2).flatten(2)


def formula(net: InfViT, x: Tensor) -> Tensor:
    """The whole model, layer by layer, following its docstring."""
    c = net.config
    u, domain = net.encoder(x)
    if c.pool == "cls":
        assert net.cls_token is not None
        u = torch.cat([net.cls_token.expand(len(x), 1, -1), u], 1)
        domain = Points(torch.cat([torch.full((1, 2), 0.5, dtype=torch.float64), domain.pos]))
    hops: list[Tensor] = []
    for layer, block in enumerate(cast(Any, net.blocks), start=1):
        Z = hop(block, u, domain)
        if c.attention in ("pure", "linear"):
            gamma = torch.full((2,), 0.7, dtype=torch.float64)
            if c.learn_gamma:
                assert net.discount is not None
                gamma = torch.sigmoid(cast(Tensor, net.discount.raw))
            by_channel = (gamma**layer if c.decay == "power" else gamma).repeat_interleave(c.embed_dim // 2)
            hops.append(by_channel * Z)
            branch = block.output(sum(hops) if c.accumulation == "running" else hops[-1])
        else:
            branch = Z @ block.operator.output_weight.T + block.operator.bias
        z = u + branch
        u = z + block.feed_forward(block.feed_forward_norm(z))
    u = net.norm(u)
    return net.head(u[:, 0] if c.pool == "cls" else u.mean(1))


VARIANTS: list[dict[str, Any]] = [
    *({"attention": kind} for kind in KINDS),
    {"attention": "pure", "accumulation": "running", "learn_gamma": True, "pool": "mean"},
    {"attention": "pure", "activation": "abs", "normaliser": "rows", "decay": "constant"},
    {"attention": "linear", "decay": "constant", "num_central": 2, "power_steps": 2},
    {"attention": "linear", "accumulation": "running", "learn_gamma": True},
    {"attention": "factorised", "normaliser": "rows", "learn_gamma": True, "pool": "mean"},
    {"attention": "resolvent", "activation": "abs", "normaliser": "rows", "learn_gamma": True},
]


@pytest.mark.parametrize("settings", VARIANTS, ids=lambda s: ", ".join(str(v) for v in s.values()))
def test_outputs_and_gradients_follow_the_formula(settings: dict[str, Any]) -> None:
    net, x = randomised(model(**settings)), images(6, dtype=torch.float64)
    got, expected = net(x), formula(net, x)
    torch.testing.assert_close(got, expected, atol=1e-10, rtol=1e-10)
    named = dict(net.named_parameters())
    for name, a, b in zip(
        named,
        torch.autograd.grad(got.square().sum(), list(named.values())),
        torch.autograd.grad(expected.square().sum(), list(named.values())),
        strict=True,
    ):
        assert a.any(), name  # every parameter has a gradient
        assert (a - b).abs().max() <= 1e-9 * b.abs().max() + 1e-12, name


@pytest.mark.parametrize("kind", KINDS)
def test_other_resolutions_follow_the_formula(kind: AttentionKind) -> None:
    net = randomised(model(attention=kind, any_size=True))
    for size in ((2, 2), (6, 10), (4, 6)):
        x = images(3, size, torch.float64)
        torch.testing.assert_close(net(x), formula(net, x), atol=1e-10, rtol=1e-10)
    with refused(ValueError, "(batch, 1, a multiple of 2, a multiple of 2)", "(1, 1, 5, 6)"):
        net(torch.zeros(1, 1, 5, 6, dtype=torch.float64))


def test_a_position_is_encoded_alike_at_every_resolution() -> None:
    encoder = model(any_size=True).encoder
    coarse, grid = encoder(torch.ones(1, 1, 2, 2))  # one patch in the middle
    fine, other = encoder(torch.ones(1, 1, 6, 6))
    assert torch.equal(other.pos[4], grid.pos[0])
    torch.testing.assert_close(fine[:, 4], coarse[:, 0])
    assert not torch.allclose(fine[:, 0], fine[:, 4])


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_recorded_layer_by_layer(kind: AttentionKind) -> None:
    net = model(attention=kind)
    with analysis.record_weights(net) as weights:
        net(images())
    assert list(weights) == [f"blocks.{layer}.operator" for layer in range(3)]
    assert all(w.shape == (2, 2, 7, 7) for w in weights.values())
    maps = analysis.patch_relevance(weights["blocks.2.operator"], (2, 3))
    assert maps.shape == (2, 2, 3)


def test_blocks_follow_the_kind_of_attention() -> None:
    for kind in KINDS:
        block = DiscountedBlock if kind in ("pure", "linear") else ResidualBlock
        assert all(isinstance(layer, block) for layer in model(attention=kind).blocks)


def test_all_layers_share_one_discount_per_head() -> None:
    net = model(attention="pure", learn_gamma=True, gamma=0.4)
    learned = {name: p for name, p in net.named_parameters() if "discount" in name}
    assert {name: tuple(p.shape) for name, p in learned.items()} == {"discount.raw": (2,)}
    assert torch.sigmoid(learned["discount.raw"]).tolist() == pytest.approx([0.4, 0.4])
    own = model(attention="resolvent", learn_gamma=True).named_parameters()
    assert sum("discount" in name for name, _ in own) == 3


def test_dropout_is_active_only_in_training() -> None:
    net, x = model(attention="pure", dropout=0.3, drop_path=0.3), images(8)
    assert not torch.equal(net(x), net(x))
    net.eval()
    assert torch.equal(net(x), net(x))
    blocks = cast(Any, model(depth=4, drop_path=0.2).blocks)
    assert [block.drop_path.probability for block in blocks] == pytest.approx([0.05, 0.1, 0.15, 0.2])


@pytest.mark.parametrize("kind", KINDS)
def test_training_under_autocast(kind: AttentionKind) -> None:
    net = model(attention=kind, learn_gamma=kind != "softmax")
    with torch.autocast("cpu", torch.bfloat16):
        loss = net(images()).float().square().sum()
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())


@pytest.mark.long
@pytest.mark.parametrize("kind", ["pure", "factorised", "linear"])
def test_the_model_compiles_to_one_graph(kind: AttentionKind) -> None:
    running: dict[str, Any] = {} if kind == "factorised" else {"accumulation": "running"}
    net, x = model(attention=kind, depth=2, **running).eval(), images()
    torch.compiler.reset()
    got, expected = torch.compile(net, fullgraph=True, backend="aot_eager")(x), net(x)
    torch.testing.assert_close(got, expected)
    parameters = list(net.parameters())
    for a, b in zip(
        torch.autograd.grad(got.sum(), parameters), torch.autograd.grad(expected.sum(), parameters), strict=True
    ):
        torch.testing.assert_close(a, b)
    torch.compiler.reset()


def test_golden_parameter_shapes() -> None:
    net = model(attention="linear", depth=1, learn_gamma=True)
    shapes = {name: tuple(p.shape) for name, p in net.named_parameters() if not name.startswith("encoder")}
    block = {
        "operator_norm.weight": (8,),
        "operator_norm.bias": (8,),
        "operator.kernel.query_weight": (8, 8),
        "operator.kernel.value_weight": (8, 8),
        "operator.kernel.query_bias": (8,),
        "operator.kernel.value_bias": (8,),
        "output.weight": (8, 8),
        "output.bias": (8,),
        "feed_forward_norm.weight": (8,),
        "feed_forward_norm.bias": (8,),
        "feed_forward.expand.weight": (32, 8),
        "feed_forward.expand.bias": (32,),
        "feed_forward.contract.weight": (8, 32),
        "feed_forward.contract.bias": (8,),
    }
    whole = {"cls_token": (8,), "norm.weight": (8,), "norm.bias": (8,), "head.weight": (3, 8), "head.bias": (3,)}
    assert shapes == whole | {"discount.raw": (2,)} | {f"blocks.0.{name}": shape for name, shape in block.items()}


def counted(config: Config) -> int:
    """Number of parameters, from the documented layers, with 1000 outputs and an image encoder of 64 frequencies."""
    d = config.embed_dim
    maps = 3 if config.attention == "linear" else 4  # tied queries and keys
    layer = maps * (d * d + d) + (4 * d * d + 4 * d) + (4 * d * d + d) + 2 * 2 * d
    encoder = (768 * d + d) + ((d + 128) * d + d)
    return encoder + config.depth * layer + d + 2 * d + (1000 * d + 1000)


@pytest.mark.parametrize(
    ("config", "whole"),
    [
        (Config.four_layers_64_heads("softmax"), 53_381_096),
        (Config.four_layers_64_heads(), 49_182_696),
        (Config.four_layers_16_heads(), 53_381_096),
        (Config.twenty_four_layers_16_heads("pure"), 305_305_576),
        (Config.twenty_four_layers_16_heads(), 280_115_176),
        (Config.four_layers_64_heads("softmax", 768), 30_402_280),
        (Config.four_layers_64_heads("linear", 768), 28_039_912),
        (Config.twenty_four_layers_16_heads("pure", 768), 172_159_720),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else "",
)
def test_the_configurations_have_their_golden_sizes(config: Config, whole: int) -> None:
    with torch.device("meta"):
        net = InfViT(encoders.Image(encoders.Image.Config(), config.embed_dim), 1000, config)
    assert sum(p.numel() for p in net.parameters()) == whole == counted(config)


def test_the_configurations_match_the_paper() -> None:
    def sizes(config: Config) -> tuple[Any, ...]:
        return config.depth, config.embed_dim, config.num_heads, config.attention

    assert sizes(Config.four_layers_64_heads()) == (4, 1024, 64, "linear")
    assert sizes(Config.four_layers_16_heads()) == (4, 1024, 16, "pure")
    assert sizes(Config.twenty_four_layers_16_heads()) == (24, 1024, 16, "linear")
    assert Config.four_layers_64_heads("softmax", 768).embed_dim // 64 == 12
    assert Config() == Config.four_layers_64_heads()
    assert (Config().gamma, Config().activation, Config().normaliser, Config().pool) == (
        0.7, "relu", "frobenius", "cls",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"depth": 0}, ["depth must be at least 1", "got 0"]),
        ({"expansion": 0}, ["expansion must be at least 1"]),
        ({"dropout": 1.0}, ["dropout must be in [0, 1)", "got 1.0"]),
        ({"drop_path": -0.1}, ["drop_path must be in [0, 1)", "got -0.1"]),
        ({"attention": "sparse"}, ["attention must be one of", "got 'sparse'"]),
        ({"accumulation": "all"}, ["accumulation must be one of", "got 'all'"]),
        ({"decay": "none"}, ["decay must be one of", "got 'none'"]),
        ({"pool": "max"}, ["pool must be one of", "got 'max'"]),
        ({"num_heads": 3}, ["num_heads must divide embed_dim", "3 heads for 8 channels"]),
        ({"attention": "pure", "gamma": 1.0}, ["gamma must be in (0, 1)", "got 1.0"]),
        ({"attention": "resolvent", "gamma": 0.0}, ["gamma must be in (0, 1)", "got 0.0"]),
        ({"activation": "tanh"}, ["activation must be one of", "got 'tanh'"]),
        ({"normaliser": "columns"}, ["normaliser must be one of", "got 'columns'"]),
        ({"num_outputs": 0}, ["num_outputs must be at least 1"]),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: list[str]) -> None:
    with refused(ValueError, *message):
        model(**settings)


def test_mismatched_parts_are_refused() -> None:
    encoder = encoders.Image(encoders.Image.Config(image_size=(4, 4), patch_size=2), 6)
    with refused(ValueError, "the encoder gives 6 channels", "embed_dim 8"):
        InfViT(encoder, 3, Config(embed_dim=8, num_heads=2))
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().depth = 1  # pyright: ignore[reportAttributeAccessIssue]
    assert isinstance(Config(embed_dim=6, num_heads=2).build(encoder, 3), nn.Module)
