import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fredholm import encoders, kernels
from fredholm.domains import Domain, Grid, Points, Union
from fredholm.evaluation import Dense, Tiled, Toeplitz
from fredholm.models import ConvolutionConfig, ITNet, LowRankConfig, MLPConfig
from fredholm.operators import collect_auxiliary_losses
from tests.refusals import refused

KERNEL = MLPConfig(width=5, num_frequencies=3, sigma=1.0)
LOW_RANK = LowRankConfig(rank=3, width=5, num_frequencies=3, sigma=1.0)
SMALL = {"embed_dim": 8, "depth": 2, "num_heads": 2, "kernel": KERNEL}


def model(image_size: tuple[int, int] = (4, 6), num_outputs: int = 3, **settings: Any) -> ITNet:
    config = ITNet.Config(**(SMALL | settings))
    image = encoders.Image.Config(image_size=image_size, patch_size=2, channels=1, num_frequencies=2)
    return ITNet(encoders.Image(image, config.embed_dim), num_outputs, config)


def images(batch: int = 2, image_size: tuple[int, int] = (4, 6)) -> Tensor:
    return torch.randn(batch, 1, *image_size, generator=torch.Generator().manual_seed(0))


class CloudEncoder(encoders.Encoder):
    """Raw positions of points in space, `(B, N, 3)`, projected."""

    def __init__(self, embed_dim: int) -> None:
        super().__init__()
        self.embed_dim, self.pos_dim = embed_dim, 3
        self.projection = nn.Linear(3, embed_dim)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Domain]:
        return self.projection(inputs), Points(inputs)


@pytest.mark.parametrize("pool", ["cls", "mean", "none"])
@pytest.mark.parametrize(("image_size", "patches"), [((4, 6), 6), ((8, 2), 4), ((2, 2), 1)])
def test_outputs_follow_the_formula(pool: str, image_size: tuple[int, int], patches: int) -> None:
    net, x = model(image_size, pool=pool).eval(), images(3, image_size)
    u, domain = net.encoder(x)
    assert u.shape == (3, patches, 8)
    if pool == "cls":
        assert net.cls_token is not None
        u = torch.cat([net.cls_token.expand(3, 1, 8), u], 1)
        centre = torch.tensor([[0.5, 0.5]], dtype=torch.float64)
        domain = Points(torch.cat([centre, domain.pos]))  # each point has weight 1 / (N + 1)
    for block in net.blocks:
        u = block(u, domain)
    u = net.norm(u)
    out = net(x)
    assert out.shape == ((3, patches, 3) if pool == "none" else (3, 3))
    torch.testing.assert_close(out, net.head({"cls": u[:, 0], "mean": u.mean(1), "none": u}[pool]))


def test_settings_select_low_rank_and_sampled_operators() -> None:
    x = images()
    low = model(kernel=LOW_RANK)
    assert sum(isinstance(module, kernels.LowRankMLP) for module in low.modules()) == len(low.blocks)
    low(x).sum().backward()
    sampled = model(num_samples=2)
    torch.manual_seed(0)
    drawn = sampled(x)
    assert not torch.equal(sampled(x), drawn)
    assert torch.equal(sampled.eval()(x), sampled(x))
    with collect_auxiliary_losses() as losses:
        sampled.train()(x)
    assert len(losses) == len(sampled.blocks)
    both = model(kernel=LOW_RANK, num_samples=2)
    both(x)
    with refused(ValueError, "num_samples=2 samples points, which kernel=ConvolutionConfig does not support"):
        model(kernel=ConvolutionConfig(), num_heads=None, num_samples=2)


def test_pooling_uses_the_weights_of_points() -> None:
    class Weighted(encoders.Encoder):
        def __init__(self) -> None:
            super().__init__()
            self.embed_dim, self.pos_dim = 8, 1

        def forward(self, inputs: Tensor) -> tuple[Tensor, Domain]:
            weights = torch.tensor([0.7, 0.3, 0.0])
            return inputs, Points(torch.rand(3, 1), weights, torch.tensor([True, True, False]))

    net = ITNet(Weighted(), 3, ITNet.Config(**SMALL, pool="mean")).eval()
    seen: list[Tensor] = []

    def note(_module: nn.Module, _args: Any, out: Tensor) -> None:
        seen.append(out)

    net.norm.register_forward_hook(note)
    out = net(torch.randn(2, 3, 8))
    torch.testing.assert_close(out, net.head(0.7 * seen[0][:, 0] + 0.3 * seen[0][:, 1]))


@pytest.mark.parametrize(
    "settings", [{}, {"pool": "mean", "kernel": dataclasses.replace(KERNEL, depth=3, head_shared=True)}]
)
def test_every_parameter_has_a_gradient(settings: dict[str, Any]) -> None:
    net = model(**settings, dropout=0.0, drop_path=0.0)
    nn.functional.cross_entropy(net(images(4)), torch.tensor([0, 1, 2, 0])).backward()
    missing = [name for name, p in net.named_parameters() if p.numel() and (p.grad is None or not p.grad.any())]
    assert missing == []
    assert all(p.grad.isfinite().all() for p in net.parameters() if p.grad is not None)


def test_dropout_is_active_only_in_training() -> None:
    net, x = model(dropout=0.3, drop_path=0.3), images(8)
    assert not torch.equal(net(x), net(x))
    torch.manual_seed(1)
    first = net(x)
    torch.manual_seed(1)
    assert torch.equal(net(x), first)
    net.eval()
    assert torch.equal(net(x), net(x))
    plain = model(dropout=0.0, drop_path=0.0)
    plain.load_state_dict(net.state_dict())
    assert plain.training
    assert torch.equal(plain(x), net(x))


def test_dropout_acts_on_the_embedding() -> None:
    net, x, seen = model(dropout=0.5, drop_path=0.0), images(64), []
    net.blocks[0].register_forward_pre_hook(lambda _module, args: seen.append(args[0]))
    net(x)
    assert (seen[0] == 0).float().mean().item() == pytest.approx(0.5, abs=0.05)
    net.eval()(x)
    assert (seen[1] == 0).float().mean().item() < 0.01
    assert {block.dropout.p for block in net.blocks} == {0.5}  # pyright: ignore[reportAttributeAccessIssue]


def test_stochastic_depth_rises_linearly() -> None:
    rates = [block.drop_path.probability for block in model(depth=4, drop_path=0.2).blocks]  # pyright: ignore
    assert rates == pytest.approx([0.05, 0.1, 0.15, 0.2])


@pytest.mark.parametrize("depth", [1, 8])
def test_branches_start_with_smaller_weights_in_deeper_models(depth: int) -> None:
    net = model(embed_dim=64, depth=depth)
    gain = 1 / math.sqrt(2 * depth)
    for block in net.blocks:
        state = dict(block.named_parameters())
        bound = gain * math.sqrt(6 / (64 + 64))
        assert state["operator.output_weight"].abs().max().item() == pytest.approx(bound, rel=1e-2)
        bound = gain * math.sqrt(6 / (64 + 256))
        assert state["feed_forward.contract.weight"].abs().max().item() == pytest.approx(bound, rel=1e-2)
        bound = math.sqrt(6 / (64 + 256))
        assert state["feed_forward.expand.weight"].abs().max().item() == pytest.approx(bound, rel=1e-2)
        assert torch.equal(state["operator.residual_weight"], torch.eye(64))


def test_the_head_starts_with_small_weights() -> None:
    head = model(embed_dim=64, num_outputs=100).head
    assert head.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert not head.bias.any()


def test_layers_draw_their_own_frozen_frequencies() -> None:
    net = model(depth=3)
    drawn = [b for name, b in net.named_buffers() if name.startswith("blocks")]
    assert [b.shape for b in drawn] == [(3, 2)] * 3
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[1], drawn[2])
    assert not any("frequencies" in name for name, _ in net.named_parameters())


def test_the_kernels_output_biases_are_exempt_from_decay() -> None:
    net = model()
    exempt = {
        f"{path}.{name}" for path, module in net.named_modules() for name in getattr(module, "no_weight_decay", ())
    }
    assert exempt == {f"blocks.{layer}.operator.kernel.output_bias" for layer in range(2)}
    assert exempt <= dict(net.named_parameters()).keys()


def test_settings_reach_the_kernels() -> None:
    inputs = kernels.KernelInputs(distance=False, product=False)
    kernel = MLPConfig(
        width=5, depth=3, head_shared=True, activation="relu", inputs=inputs, epsilon=0.0, num_frequencies=0
    )
    net = model(kernel=kernel, expansion=3)
    for block in net.blocks:
        kernel = block.operator.kernel  # pyright: ignore[reportAttributeAccessIssue]
        assert isinstance(kernel, kernels.MLP)
        assert (kernel.in_dim, kernel.num_heads, kernel.pos_dim, kernel.width, kernel.depth) == (8, 2, 2, 5, 3)
        assert (kernel.activation, kernel.head_shared, kernel.inputs, kernel.num_frequencies) == (
            "relu",
            True,
            inputs,
            0,
        )
        assert not kernel.is_causal
        assert not kernel.output_weight.any()
        assert block.feed_forward.expand.out_features == 24  # pyright: ignore[reportAttributeAccessIssue]
    wide = [
        b
        for name, b in model(kernel=MLPConfig(num_frequencies=500, sigma=7.0)).named_buffers()
        if name.startswith("blocks")
    ]
    assert [b.std().item() for b in wide] == pytest.approx([7.0] * 2, rel=0.1)


def test_a_class_token_keeps_the_fast_route_of_the_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    routes: list[str] = []
    for kind in (Dense, Tiled, Toeplitz):

        def spy(self: Any, *args: Any, compute: Any = kind.compute) -> Tensor:
            routes.append(self.name)
            return compute(self, *args)

        monkeypatch.setattr(kind, "compute", spy)
    model(pool="cls")(images())
    model(pool="mean")(images())
    assert routes == ["Toeplitz"] * 4


def test_any_encoder_can_be_used() -> None:
    config = dataclasses.replace(ITNet.Config.point_cloud(), kernel=KERNEL, embed_dim=16, depth=2)
    net, clouds = ITNet(CloudEncoder(16), 5, config).eval(), torch.randn(3, 7, 3)
    out = net(clouds)
    assert out.shape == (3, 5)
    for entry in range(3):
        torch.testing.assert_close(net(clouds[entry : entry + 1]), out[entry : entry + 1])
    shuffled = clouds[:, torch.randperm(7)]
    torch.testing.assert_close(net(shuffled), out)  # a set has no order


def test_training_under_autocast() -> None:
    net = model()
    with torch.autocast("cpu", torch.bfloat16):
        loss = net(images()).float().square().sum()
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters() if p.numel())


@pytest.mark.slow
def test_the_model_compiles_to_one_graph() -> None:
    net, x = model(depth=1).eval(), images()
    torch.compiler.reset()
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    got, expected = compiled(x), net(x)
    torch.testing.assert_close(got, expected)
    parameters = [p for p in net.parameters() if p.numel()]
    for a, b in zip(
        torch.autograd.grad(got.sum(), parameters), torch.autograd.grad(expected.sum(), parameters), strict=True
    ):
        torch.testing.assert_close(a, b)
    torch.compiler.reset()


def test_golden_parameter_shapes() -> None:
    net = model(depth=1, kernel=dataclasses.replace(KERNEL, depth=3))
    shapes = {name: tuple(p.shape) for name, p in net.named_parameters() if not name.startswith("encoder")}
    block = {
        "operator_norm.weight": (8,),
        "operator_norm.bias": (8,),
        "operator.output_weight": (8, 8),
        "operator.residual_weight": (8, 8),
        "operator.bias": (8,),
        "operator.kernel.input_weight": (2, 5, 3 * 6 + 1 + 3 * 4),
        "operator.kernel.input_bias": (2, 5),
        "operator.kernel.hidden_weight": (1, 2, 5, 5),
        "operator.kernel.hidden_bias": (1, 2, 5),
        "operator.kernel.output_weight": (2, 5, 4, 4),
        "operator.kernel.output_bias": (2, 4, 4),
        "feed_forward_norm.weight": (8,),
        "feed_forward_norm.bias": (8,),
        "feed_forward.expand.weight": (32, 8),
        "feed_forward.expand.bias": (32,),
        "feed_forward.contract.weight": (8, 32),
        "feed_forward.contract.bias": (8,),
    }
    whole = {"cls_token": (8,), "norm.weight": (8,), "norm.bias": (8,), "head.weight": (3, 8), "head.bias": (3,)}
    assert shapes == whole | {f"blocks.0.{name}": shape for name, shape in block.items()}
    assert "cls_token" not in dict(model(pool="mean").named_parameters())


def counted(config: ITNet.Config) -> int:
    """Number of parameters of the stack without its encoder, from the layers listed in the paper."""
    assert isinstance(config.kernel, MLPConfig)
    d, heads, w, lifted = config.embed_dim, config.heads, config.kernel.width, 2 * config.kernel.num_frequencies
    per_head = d // heads
    inputs = 3 * lifted + 1 + 3 * per_head
    kernel = (w * inputs + w) + (w * per_head**2 + per_head**2)
    kernels_ = kernel * (1 if config.kernel.head_shared else heads)
    operator = kernels_ + d * d + d * d + d
    feed_forward = (4 * d * d + 4 * d) + (4 * d * d + d)
    norm = 2 * d
    return config.depth * (operator + feed_forward + 2 * norm) + norm + d + (1000 * d + 1000)


@pytest.mark.parametrize(
    ("config", "whole"),
    [
        (ITNet.Config.small(), 61_989_736),
        (ITNet.Config.base(), 159_662_824),
        (ITNet.Config.large(), 486_209_512),
        (ITNet.Config.point_cloud(), 5_902_440),
        (dataclasses.replace(ITNet.Config.base(), kernel=MLPConfig(head_shared=True)), 80_150_248),
    ],
    ids=["small", "base", "large", "point cloud", "base, head-shared"],
)
def test_the_configurations_have_their_golden_sizes(config: ITNet.Config, whole: int) -> None:
    with torch.device("meta"):
        net = ITNet(encoders.Image(encoders.Image.Config(), config.embed_dim), 1000, config)
    sizes = {name: p.numel() for name, p in net.named_parameters()}
    encoder = sum(size for name, size in sizes.items() if name.startswith("encoder."))
    d = config.embed_dim
    assert encoder == (768 * d + d) + ((d + 128) * d + d)
    assert sum(sizes.values()) - encoder == counted(config)
    assert sum(sizes.values()) == whole


def test_the_configurations_match_the_paper() -> None:
    def sizes(config: ITNet.Config) -> tuple[float, ...]:
        return config.depth, config.embed_dim, config.heads, config.dropout, config.drop_path

    assert sizes(ITNet.Config.small()) == (12, 384, 6, 0.1, 0.1)
    assert sizes(ITNet.Config.base()) == (12, 768, 12, 0.1, 0.2)
    assert sizes(ITNet.Config.large()) == (24, 1024, 16, 0.1, 0.3)
    assert sizes(ITNet.Config.point_cloud()) == (6, 128, 4, 0.0, 0.1)
    for config in (ITNet.Config.small(), ITNet.Config.base(), ITNet.Config.large(), ITNet.Config.point_cloud()):
        kernel = config.kernel
        assert isinstance(kernel, MLPConfig)
        assert (kernel.width, kernel.depth, kernel.num_frequencies, kernel.sigma) == (128, 2, 64, 10.0)
        assert (kernel.activation, config.pool, config.expansion, kernel.epsilon) == ("gelu", "cls", 4, 1e-3)
        assert kernel.inputs == kernels.KernelInputs()
    assert ITNet.Config() == ITNet.Config.small()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"depth": 0}, ["depth must be at least 1", "got 0"]),
        ({"pool": "last"}, ["pool is 'cls', 'mean', 'max' or 'none'", "got 'last'"]),
        ({"num_heads": 3}, ["num_heads must divide embed_dim", "3 heads for 8 channels"]),
        ({"expansion": 0}, ["expansion must be positive", "got 0"]),
        ({"dropout": 1.0}, ["dropout must be in [0, 1)", "got 1.0"]),
        ({"dropout": -0.1}, ["dropout must be in [0, 1)", "got -0.1"]),
        ({"drop_path": 1.0}, ["drop_path must be in [0, 1)", "got 1.0"]),
        ({"drop_path": -0.1}, ["drop_path must be in [0, 1)", "got -0.1"]),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: list[str]) -> None:
    with refused(ValueError, *message):
        model(**settings)


def test_a_config_is_a_frozen_value_with_names() -> None:
    with pytest.raises(TypeError, match="positional"):
        ITNet.Config(8)  # pyright: ignore[reportCallIssue]
    with pytest.raises(dataclasses.FrozenInstanceError):
        ITNet.Config().depth = 1  # pyright: ignore[reportAttributeAccessIssue]


def test_mismatched_parts_are_refused() -> None:
    encoder = encoders.Image(encoders.Image.Config(image_size=(4, 4), patch_size=2), 6)
    with refused(ValueError, "the encoder gives 6 channels", "embed_dim 8"):
        ITNet(encoder, 3, ITNet.Config(**SMALL))
    with refused(ValueError, "num_outputs must be at least 1", "got 0"):
        model(num_outputs=0)
    with refused(ValueError, "(batch, 1, 4, 6)", "(2, 1, 6, 4)"):
        model()(torch.zeros(2, 1, 6, 4))


def test_the_class_token_is_at_the_centre_and_weighs_as_much_as_one_patch() -> None:
    net, seen = model(), []
    net.blocks[0].register_forward_pre_hook(lambda _module, args: seen.append(args[1]))
    net(images())
    (domain,) = seen
    assert isinstance(domain, Union)
    assert domain.pos[0].tolist() == [0.5, 0.5]
    assert torch.equal(domain.pos[1:], Grid(2, 3).pos)
    assert domain.weights.tolist() == pytest.approx([1 / 7] * 7)


def test_incomplete_encoders_are_refused() -> None:
    class Undeclared(encoders.Encoder):
        def forward(self, inputs: Tensor) -> tuple[Tensor, Domain]:
            return inputs, Points(inputs)

    config = ITNet.Config(**SMALL)
    with refused(TypeError, "models.ITNet: Undeclared does not set embed_dim and pos_dim", "encoders.Encoder"):
        ITNet(Undeclared(), 3, config)

    class Alone(CloudEncoder):
        def forward(self, inputs: Tensor) -> Any:
            return self.projection(inputs)

    with refused(TypeError, "models.ITNet: an encoder gives a signal and its domain; Alone gave a Tensor"):
        ITNet(Alone(8), 3, config)(torch.rand(2, 5, 3))


@pytest.mark.parametrize(
    ("encoder", "config", "message"),
    [
        (4, None, "encoder must be of type encoders.Encoder; got int"),
        (None, {"embed_dim": 8}, "config must be of type models.ITNet.Config; got dict"),
        (None, ITNet.Config, "config must be of type models.ITNet.Config; got the class ITNet.Config"),
    ],
)
def test_arguments_of_the_wrong_type_are_refused(encoder: Any, config: Any, message: str) -> None:
    settings = ITNet.Config(**SMALL)
    with refused(TypeError, f"models.ITNet: {message}"):
        ITNet(CloudEncoder(8) if encoder is None else encoder, 3, settings if config is None else config)


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize(
    "kernel", [pytest.param(KERNEL, id="exact"), pytest.param(LOW_RANK, id="low rank", marks=pytest.mark.long)]
)
def test_blocks_compiled_one_by_one_share_their_graphs(kernel: Any) -> None:
    """There are more blocks than graphs that the compiler may make for one function."""
    stack = ITNet.Config(embed_dim=4, depth=5, num_heads=1, kernel=kernel)
    encoder = encoders.Image.Config(image_size=(4, 6), patch_size=2, channels=1, num_frequencies=2, any_size=True)
    built = ITNet(encoders.Image(encoder, 4), 2, stack).eval()
    given = [images(image_size=size) for size in ((4, 6), (6, 6), (8, 10))]
    with torch.no_grad(), torch._dynamo.config.patch(recompile_limit=3):
        expected = [built(each) for each in given]
        for block in built.blocks:
            block.compile(backend="eager", fullgraph=True)
        for each, found in zip(given, expected, strict=True):
            torch.testing.assert_close(built(each), found)
        torch.compiler.reset()
        built.train()(given[0])  # with individual rates of stochastic depth
