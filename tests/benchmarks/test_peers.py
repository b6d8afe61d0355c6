"""The benchmark's peers against the formula, pair by pair in float64."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

pytest.importorskip("torch_geometric", reason="the benchmark's peers need torch-geometric")

from benchmarks.peers import Algorithm1, DenseEinsum, EdgeConditionedConvolution, KernelWeights, Peer

BATCH, POINTS, HEADS, HEAD_DIM, WIDTH, FREQUENCIES = 2, 7, 3, 2, 5, 4
PEERS = [
    DenseEinsum(),
    EdgeConditionedConvolution(),
    Algorithm1((3, 4)),
    Algorithm1((16, 16)),
    Algorithm1((3, 4), by_line=True),
]


@pytest.fixture
def weights() -> KernelWeights:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    features = 6 * FREQUENCIES + 1 + 3 * HEAD_DIM
    return KernelWeights(
        hidden=draw(HEADS, WIDTH, features).requires_grad_(),
        hidden_bias=draw(HEADS, WIDTH).requires_grad_(),
        output=draw(HEADS, HEAD_DIM**2, WIDTH).requires_grad_(),
        output_bias=draw(HEADS, HEAD_DIM**2).requires_grad_(),
        frequencies=draw(FREQUENCIES, 2),
    )


@pytest.fixture
def signal() -> tuple[Tensor, Tensor, Tensor]:
    """Signal, positions and masses, all uneven."""
    generator = torch.Generator().manual_seed(1)
    u = torch.randn(BATCH, POINTS, HEADS * HEAD_DIM, generator=generator, dtype=torch.float64).requires_grad_()
    pos = torch.rand(POINTS, 2, generator=generator, dtype=torch.float64)
    return u, pos, torch.rand(POINTS, generator=generator, dtype=torch.float64)


def lift(x: Tensor, frequencies: Tensor) -> Tensor:
    phase = 2 * math.pi * (frequencies @ x)
    return torch.cat([phase.sin(), phase.cos()])


def pair_by_pair(weights: KernelWeights, u: Tensor, pos: Tensor, measure: Tensor) -> Tensor:
    """The double loop of the formula."""
    per_head = u.unflatten(-1, (HEADS, HEAD_DIM))
    integrals = []
    for b in range(BATCH):
        for i in range(POINTS):
            for h in range(HEADS):
                integral = torch.zeros(HEAD_DIM, dtype=u.dtype)
                for j in range(POINTS):
                    u_i, u_j, difference = per_head[b, i, h], per_head[b, j, h], pos[i] - pos[j]
                    lifted = [lift(x, weights.frequencies) for x in (pos[i], pos[j], difference)]
                    z = torch.cat([*lifted, difference.norm()[None], u_i, u_j, u_i * u_j])
                    hidden = F.gelu(weights.hidden[h] @ z + weights.hidden_bias[h])
                    kernel = (weights.output[h] @ hidden + weights.output_bias[h]).view(HEAD_DIM, HEAD_DIM)
                    integral = integral + measure[j] * (kernel @ u_j)
                integrals.append(integral)
    return torch.stack(integrals).view(BATCH, POINTS, HEADS * HEAD_DIM)


def with_gradients(output: Tensor, u: Tensor, weights: KernelWeights) -> list[Tensor]:
    cotangent = torch.arange(output.numel(), dtype=output.dtype).view_as(output).cos()
    leaves = [u, weights.hidden, weights.hidden_bias, weights.output, weights.output_bias]
    return [output, *torch.autograd.grad(output, leaves, cotangent)]


@pytest.mark.parametrize(
    "peer", PEERS, ids=["dense", "nnconv", "algorithm1-ragged-tiles", "algorithm1-one-tile", "algorithm1-by-line"]
)
def test_outputs_and_gradients_of_a_peer_follow_the_formula(peer: Peer, weights, signal):
    u, pos, measure = signal
    expected = with_gradients(pair_by_pair(weights, u, pos, measure), u, weights)
    actual = with_gradients(peer.integrate(weights, u, pos, measure), u, weights)
    for ours, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_algorithm1_on_chosen_rows_gives_those_rows(weights, signal):
    u, pos, measure = signal
    rows = torch.tensor([5, 0])
    peer = Algorithm1((2, 3))
    part = peer.integrate_rows(weights, u, pos, measure, rows)
    whole = peer.integrate(weights, u, pos, measure)[:, rows]
    for ours, theirs in zip(with_gradients(part, u, weights), with_gradients(whole, u, weights), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_tuning_chooses_a_tile_no_larger_than_the_signal(weights, signal):
    u, pos, measure = signal
    many = 40
    u = u.repeat(1, many, 1)[:, :many]
    peer = Algorithm1.tuned(weights, u, pos.repeat(many, 1)[:many], measure.repeat(many)[:many])
    assert set(peer.tile) <= {16, 32}


def test_kernel_bytes_are_the_size_of_the_kernel_values(weights):
    per_pair = HEADS * HEAD_DIM**2 * 8
    assert DenseEinsum().kernel_bytes(weights, BATCH, POINTS) == BATCH * POINTS**2 * per_pair
    assert EdgeConditionedConvolution().kernel_bytes(weights, BATCH, POINTS) == BATCH * POINTS**2 * per_pair
    assert Algorithm1((3, 4)).kernel_bytes(weights, BATCH, POINTS) == BATCH * 12 * per_pair
