import math
from typing import Any

import pytest
import torch
from torch import Tensor

from fredholm.blocks.post_norm import PostNormBlock
from fredholm.domains import Grid, Sequence
from fredholm.encoders.encoder import Encoder
from fredholm.encoders.series import Series, SeriesBatch
from fredholm.models.series.ckcnn import CKCNN
from tests.refusals import refused

SMALL: dict[str, Any] = {"embed_dim": 5, "kernel_width": 6, "omega_0": 8.0, "dropout": 0.0}
LENGTH, CHANNELS = 11, 3


def model(encoder: Encoder | None = None, **settings: Any) -> CKCNN:
    """A model in float64 with perturbed weights, so that every part has an influence."""
    config = CKCNN.Config(**{**SMALL, **settings})
    built = CKCNN(encoder or Series(CHANNELS), 4, config, extent=LENGTH - 1.0, spacing=1.0).double().eval()
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return built


def blocks(net: CKCNN) -> list[PostNormBlock]:
    return [block for block in net.stack.blocks if isinstance(block, PostNormBlock)]


def values(length: int = LENGTH, batch: int = 2) -> Tensor:
    return torch.randn(batch, length, CHANNELS, dtype=torch.float64)


def formula(net: CKCNN, u: Tensor) -> Tensor:
    """The logits after each sample, written out with every entry of every kernel."""
    domain = Sequence(u.shape[1], spacing=1.0)
    for block in blocks(net):
        branch = u
        for operator, norm in ((block.first, block.first_norm), (block.second, block.second_norm)):
            assert operator.bias is not None
            kappa = operator.kernel.matrix(branch, domain)
            integral = torch.einsum("bxyoi,byi->bxo", kappa, branch) + operator.bias
            branch = norm(integral).clamp(min=0)
        u = (block.shortcut(u) + branch).clamp(min=0)
    return net.head(u)


@pytest.mark.parametrize("length", [1, 2, LENGTH])
def test_equals_the_formula(length: int) -> None:
    net, u = model(), values(length)
    torch.testing.assert_close(net(u), formula(net, u)[:, -1])
    every = model(pool="none")
    every.load_state_dict(net.state_dict())
    torch.testing.assert_close(every(u), formula(net, u))


def test_the_mean_is_over_valid_samples() -> None:
    net, u = model(pool="mean"), values()
    mask = torch.arange(LENGTH) < torch.tensor([[LENGTH], [4]])
    out = net(SeriesBatch(u, mask))
    for row, length in ((0, LENGTH), (1, 4)):
        pooled = formula(net, u[row : row + 1, :length]).mean(1)
        torch.testing.assert_close(out[row : row + 1], pooled)


@pytest.mark.parametrize("pool", ["last", "mean", "none"])
@pytest.mark.parametrize("is_causal", [True, False])
def test_padding_and_batch_mates_change_nothing(pool: str, is_causal: bool) -> None:
    net, u = model(pool=pool, is_causal=is_causal), values(batch=3)
    lengths = [4, LENGTH, 1]
    mask = torch.arange(LENGTH) < torch.tensor(lengths)[:, None]
    padded = torch.where(mask[..., None], u, torch.nan).requires_grad_()
    out = net(SeriesBatch(padded, mask))
    out.square().sum().backward()
    assert padded.grad is not None
    for row, length in enumerate(lengths):
        alone = u[row : row + 1, :length].clone().requires_grad_()
        expected = net(alone)
        expected.square().sum().backward()
        found = out[row : row + 1, :length] if pool == "none" else out[row : row + 1]
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(padded.grad[row, :length], alone.grad[0] if alone.grad is not None else None)
        assert not padded.grad[row, length:].any()
        if pool == "none":
            assert not out[row, length:].any()


def test_no_output_depends_on_a_later_sample() -> None:
    net, u = model(pool="none"), values()
    changed = torch.cat([u[:, :6], values()[:, 6:]], 1)
    torch.testing.assert_close(net(u)[:, :6], net(changed)[:, :6])
    assert not torch.allclose(net(u)[:, 6:], net(changed)[:, 6:])
    centred = model(pool="none", is_causal=False)
    assert not torch.allclose(centred(u)[:, :6], centred(changed)[:, :6])


def test_a_series_without_samples_gives_the_bias_of_the_head() -> None:
    for pool in ("last", "mean"):
        net = model(pool=pool)
        mask = torch.tensor([[False] * LENGTH, [True] * LENGTH])
        out = net(SeriesBatch(values(), mask))
        torch.testing.assert_close(out[0], net.head.bias)
        assert out.isfinite().all()
        torch.testing.assert_close(net(values(0)), net.head.bias.expand(2, -1))
    assert model(pool="none")(values(0)).shape == (2, 0, 4)


def wave(times: Tensor) -> Tensor:
    """A smooth signal that vanishes at both ends of [0, 10]."""
    phases = torch.arange(1, CHANNELS + 1) * 0.6
    return torch.sin(times[..., None] * phases) * torch.sin(math.pi * times / 10)[..., None] ** 2


def test_another_sampling_rate_gives_nearly_the_same_output_if_times_are_given() -> None:
    net = CKCNN(Series(CHANNELS, spacing=0.1), 4, CKCNN.Config(**SMALL), extent=10.0, spacing=0.1).double().eval()
    known = net(wave(torch.linspace(0, 10, 101, dtype=torch.float64))[None])
    errors = []
    for rate in (0.4, 0.2, 0.05):
        times = torch.arange(0, 10 + rate / 2, rate, dtype=torch.float64)
        batch = SeriesBatch(wave(times)[None], spacing=torch.tensor([rate], dtype=torch.float64))
        unweighed = net(wave(times)[None])
        error = (net(batch) - known).abs().max().item()
        assert error < 0.15 * (unweighed - known).abs().max().item()
        errors.append(error)
    assert errors[1] < errors[0]


def test_irregular_samples_give_nearly_the_output_of_all_samples() -> None:
    net = CKCNN(Series(CHANNELS, spacing=0.1), 4, CKCNN.Config(**SMALL), extent=10.0, spacing=0.1).double().eval()
    times = torch.linspace(0, 10, 101, dtype=torch.float64)
    kept = (torch.rand(101) < 0.5) | (times == 0) | (times == 10)
    known, some = net(wave(times)[None]), times[kept][None]
    batch = SeriesBatch(wave(some), times=some)
    plain = net(wave(some))
    assert (net(batch) - known).abs().max() < 0.3 * (plain - known).abs().max()


def test_rates_may_differ_within_a_batch() -> None:
    net = model()
    u, spacing = values(6), torch.tensor([1.0, 2.0])
    mixed = net(SeriesBatch(u, spacing=spacing))
    for row in range(2):
        alone = net(SeriesBatch(u[row : row + 1], spacing=spacing[row : row + 1]))
        torch.testing.assert_close(mixed[row : row + 1], alone)


def test_reading_in_pieces_gives_the_logits_of_the_whole() -> None:
    net, u = model(pool="none"), values()
    with torch.no_grad():
        state, parts = net.stack.initial_state(2), []
        for start, stop in ((0, 1), (1, 7), (7, LENGTH)):
            domain = Sequence(stop - start, spacing=1.0, start=float(start))
            out, state = net.stack.scan(u[:, start:stop], domain, state)
            parts.append(net.head(out))
        torch.testing.assert_close(torch.cat(parts, 1), net(u))


def test_a_horizon_limits_the_receptive_field() -> None:
    net, u = model(horizon=2.5, pool="none", depth=1), values()
    changed = u.clone()
    changed[:, :3] += 1
    same = (net(u) - net(changed)).abs().amax((0, 2)) < 1e-12
    # two convolutions that reach 2 samples back each: outputs from sample 2 + 4 + 1 on do not see the first three
    assert same.tolist() == [False] * 7 + [True] * (LENGTH - 7)


def test_networks_of_images_have_centred_kernels() -> None:
    class Pixels(Encoder):
        embed_dim, pos_dim = 2, 2

        def forward(self, inputs: Tensor) -> tuple[Tensor, Grid]:
            return inputs, Grid(3, 4)

    config = CKCNN.Config(**SMALL, is_causal=False, pool="mean")
    net = CKCNN(Pixels(), 4, config, extent=1.0, spacing=0.25)
    assert net(torch.randn(5, 12, 2)).shape == (5, 4)
    with refused(ValueError, "only a line has a past"):
        CKCNN(Pixels(), 4, CKCNN.Config(**SMALL))


@pytest.mark.parametrize(("channels", "num_classes", "count"), [(3, 20, 100_568), (4, 20, 101_618), (1, 10, 98_158)])
def test_parameter_counts(channels: int, num_classes: int, count: int) -> None:
    """The paper has 100.67K on character trajectories, 101.75K with dropped samples, 98.29K on sequential MNIST."""
    net = CKCNN(Series(channels), num_classes, CKCNN.Config())
    assert sum(parameter.numel() for parameter in net.parameters()) == count


def test_every_parameter_has_a_gradient() -> None:
    net = model().train()
    net(values()).square().sum().backward()
    missing = [name for name, p in net.named_parameters() if p.numel() and (p.grad is None or not p.grad.any())]
    assert missing == []


def test_dropout_rates_are_passed_on() -> None:
    net = model(dropout=0.2, input_dropout=0.3, weight_dropout=0.4).train()
    assert net.stack.input_dropout.p == 0.3
    assert {block.dropout.p for block in blocks(net)} == {0.2}
    kernels: list[Any] = [operator.kernel for block in blocks(net) for operator in (block.first, block.second)]
    assert {kernel.weight_dropout for kernel in kernels} == {0.4}
    u = values()
    assert not torch.equal(net(u), net(u))
    net.eval()
    assert torch.equal(net(u), net(u))


def test_a_checkpoint_stores_extent_and_spacing_of_training() -> None:
    net = model()
    other = CKCNN(Series(CHANNELS), 4, CKCNN.Config(**SMALL), extent=99.0, spacing=1.0).double().eval()
    other.load_state_dict(net.state_dict())
    u = values()
    torch.testing.assert_close(other(u), net(u))


def test_low_precision_is_close() -> None:
    net = model().float()
    u = values().float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = net(u)
    assert (low.float() - net(u)).abs().max() < 0.05 * net(u).abs().max()


@pytest.mark.long
def test_the_model_compiles_to_one_graph() -> None:
    net, u = model(depth=1).float(), values().float()
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(u), net(u))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"embed_dim": 0}, "models.CKCNN: embed_dim must be at least 1; got 0"),
        ({"depth": 0}, "depth must be at least 1"),
        ({"kernel_width": 0}, "kernel_width must be at least 1"),
        ({"dropout": 1.0}, "dropout must be in [0, 1); got 1.0"),
        ({"input_dropout": -0.1}, "input_dropout must be in [0, 1)"),
        ({"weight_dropout": 1.5}, "weight_dropout must be in [0, 1)"),
        ({"omega_0": 0.0}, "omega_0 must be positive and finite; got 0.0"),
        ({"horizon": -1.0}, "horizon must be positive and finite; got -1.0"),
        ({"pool": "first"}, "pool is 'last', 'mean' or 'none'; got 'first'"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    with refused(ValueError, "models.CKCNN", message):
        CKCNN.Config(**settings)


def test_bad_head() -> None:
    with refused(ValueError, "num_outputs must be at least 1; got 0"):
        CKCNN(Series(1), 0, CKCNN.Config())
