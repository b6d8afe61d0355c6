import math

import pytest
import torch
from torch import Tensor

import fredholm
from fredholm import analysis, domains, encoders, kernels, models
from tests.refusals import refused


def operator(bias: bool = True) -> fredholm.IntegralOperator:
    return fredholm.IntegralOperator(kernels.LinearInfiniteAttention(6, 2, bias=bias)).double()


def by_eigenvectors(op: fredholm.IntegralOperator, u: Tensor, mass: Tensor) -> Tensor:
    """Cosines, head by head, from the paper's equations and an eigendecomposition; one input `(N, C)`."""
    kernel = op.kernel
    assert isinstance(kernel, kernels.LinearInfiniteAttention)
    q = u @ kernel.query_weight.T
    q = (q if kernel.query_bias is None else q + kernel.query_bias).unflatten(-1, (2, 3)).transpose(0, 1)
    cosines = []
    for head in q:
        energy = mass * head.norm(dim=-1)
        weights = mass * (head @ (energy @ head / energy.sum())).relu()
        values, vectors = torch.linalg.eig(torch.diag(mass) @ (head @ head.T).relu())
        vector = vectors[:, values.real.argmax()].real.abs()
        cosines.append(weights @ vector / (weights.norm() * vector.norm()))
    return torch.stack(cosines)


class OnDomain(torch.nn.Module):
    def __init__(self, op: fredholm.IntegralOperator, domain: domains.Domain) -> None:
        super().__init__()
        self.inner, self.domain = op, domain

    def forward(self, inputs: Tensor) -> Tensor:
        return self.inner(inputs, self.domain)


@pytest.mark.parametrize("bias", [True, False])
def test_equals_the_papers_equations_with_an_eigendecomposition(bias: bool) -> None:
    op, u = operator(bias), torch.randn(3, 11, 6, dtype=torch.float64) + 1
    found = analysis.perron_alignment(op, u)[""]
    assert found.cosine.shape == found.spearman.shape == (3, 2)
    expected = torch.stack([by_eigenvectors(op, entry, torch.ones(11, dtype=torch.float64)) for entry in u])
    torch.testing.assert_close(found.cosine, expected, atol=1e-6, rtol=1e-6)


def test_points_are_weighted_by_their_mass_and_masked_ones_are_ignored() -> None:
    op, u = operator(), torch.randn(2, 9, 6, dtype=torch.float64) + 1
    mass, keep = torch.rand(9, dtype=torch.float64) + 0.1, torch.arange(9) < 7
    domain = domains.Points(torch.rand(9, 1, dtype=torch.float64), weights=mass, mask=keep)
    found = analysis.perron_alignment(OnDomain(op, domain), u)["inner"]
    expected = torch.stack([by_eigenvectors(op, entry[:7], mass[:7]) for entry in u])
    torch.testing.assert_close(found.cosine, expected, atol=1e-6, rtol=1e-6)
    even = analysis.perron_alignment(op, u)[""]
    assert not torch.allclose(found.cosine, even.cosine, atol=1e-4)
    short = domains.Points(torch.rand(7, 1, dtype=torch.float64), weights=mass[:7])
    alone = analysis.perron_alignment(OnDomain(op, short), u[:, :7])["inner"]
    torch.testing.assert_close(found, alone)


def test_parallel_queries_are_aligned_exactly() -> None:
    op = operator(bias=False)
    u = torch.rand(1, 8, 1, dtype=torch.float64) * torch.randn(6, dtype=torch.float64)
    found = analysis.perron_alignment(op, u)[""]
    torch.testing.assert_close(found.cosine, torch.ones(1, 2, dtype=torch.float64))
    torch.testing.assert_close(found.spearman, torch.ones(1, 2, dtype=torch.float64))


def test_reads_every_layer_of_a_model_without_changing_it() -> None:
    config = models.InfViT.Config(embed_dim=8, depth=2, num_heads=2)
    image = encoders.Image.Config(image_size=(12, 12), patch_size=4, channels=1, sigma=1.0)
    net, images = models.InfViT(encoders.Image(image, 8), 3, config).eval(), torch.rand(4, 1, 12, 12)
    before = net(images)
    found = analysis.perron_alignment(net, images)
    assert list(found) == ["blocks.0.operator", "blocks.1.operator"]
    assert all(math.isfinite(value) and 0 < value <= 1 for one in found.values() for value in one.cosine.flatten())
    assert torch.equal(net(images), before)
    assert not any(module._forward_pre_hooks for module in net.modules())


def test_a_model_without_infinite_attention_is_refused() -> None:
    with refused(ValueError, "no operator of kernels.LinearInfiniteAttention"):
        analysis.perron_alignment(fredholm.IntegralOperator(kernels.Attention(4, 2)), torch.randn(1, 3, 4))
