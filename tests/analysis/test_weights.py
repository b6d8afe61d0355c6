import pytest
import torch
from torch import Tensor, nn

import fredholm
from fredholm import analysis, domains, encoders, kernels, models, quadrature
from fredholm.domains import PairList
from fredholm.kernels import Attention, Kernel, LinearAttention, ValueMixing, YatAttention
from fredholm.operators import IntegralOperator
from tests.contracts.routes import randomise
from tests.contracts.weighed_domains import domain
from tests.refusals import refused

KERNELS: dict[str, ValueMixing] = {
    "softmax": Attention(8, 4),
    "grouped queries": Attention(8, 4, num_kv_heads=2),
    "causal": Attention(8, 4, is_causal=True),
    "linear": LinearAttention(8, 4),
    "yat": YatAttention(8, 4),
    "yat, softermax": YatAttention(8, 4, normaliser=kernels.Softermax()),
    "yat, each by itself": YatAttention(8, 4, normaliser=kernels.SoftSigmoid()),
    "hop": kernels.InfiniteAttention(8, 4, form="hop"),
    "resolvent": kernels.InfiniteAttention(8, 4, form="resolvent"),
    "resolvent, rows": kernels.InfiniteAttention(8, 4, normaliser="rows", is_causal=True),
    "factorised": kernels.FactorisedInfiniteAttention(8, 4),
    "pooled": kernels.LinearInfiniteAttention(8, 4, num_central=2),
}
DOMAINS = ["no point", "grid", "nothing exists", "weights per entry, some 0", "pairs weighed per head"]
LISTED = domains.Sequence(5).list_pairs(
    PairList.of_index(torch.tensor([[[0, 3], [1, 1], [4, 0], [2, 2], [3, 1]]]), torch.rand(1, 5, 2).double(), 5)
)
KERNELS = {name: randomise(kernel.double()) for name, kernel in KERNELS.items()}


CASES = [
    (name, where) for name in KERNELS for where in DOMAINS if (name, where) != ("pooled", "pairs weighed per head")
]


@pytest.mark.parametrize(("name", "where"), CASES)
def test_weights_times_values_equal_the_integral(name: str, where: str) -> None:
    kernel, on = KERNELS[name], domain(where)
    u = torch.randn(2, on.num_points, 8, dtype=torch.float64)
    u = u if on.mask is None else torch.where(on.mask[..., None], u, 0.0)
    weights = analysis.attention_weights(kernel, u, on)
    assert weights.shape == (2, 4, on.num_points, on.num_points)
    assert not bool((weights < -1e-12).any())
    values = torch.einsum("hoi,bni->bhno", kernel.value_matrices(), kernel.multiplicand(u))
    integral = (weights @ values).transpose(1, 2).flatten(2)
    operator = IntegralOperator(kernel, residual=False, output_projection=False, bias=False)
    torch.testing.assert_close(integral, operator(u, on), atol=1e-10, rtol=1e-10)
    if on.mask is not None:
        gone = ~on.mask.expand(2, -1)
        assert not weights.transpose(1, 2)[gone].any()
        assert not weights.movedim(3, 1)[gone].any()


@pytest.mark.parametrize("name", ["softmax", "yat, each by itself"])
def test_only_listed_pairs_have_weights(name: str) -> None:
    kernel, u = KERNELS[name], torch.randn(2, 5, 8, dtype=torch.float64)
    weights = analysis.attention_weights(kernel, u, LISTED)
    values = torch.einsum("hoi,bni->bhno", kernel.value_matrices(), kernel.multiplicand(u))
    operator = IntegralOperator(kernel, residual=False, output_projection=False, bias=False)
    torch.testing.assert_close((weights @ values).transpose(1, 2).flatten(2), operator(u, LISTED))


def test_weights_at_other_queries_and_their_gradients() -> None:
    kernel = KERNELS["softmax"]
    u, query = torch.randn(2, 5, 8, dtype=torch.float64, requires_grad=True), torch.randn(2, 3, 8, dtype=torch.float64)
    at = domains.Sequence(3, mask=torch.tensor([True, False, True]))
    weights = analysis.attention_weights(kernel, u, query=query, query_domain=at)
    torch.testing.assert_close(weights.sum(-1)[0, 0], torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64))
    (weights[..., 0].sum()).backward()
    assert u.grad is not None
    assert u.grad.any()


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (kernels.MLP(8, 2), ["MLP is not one number"]),
        (Attention(8, 2) + kernels.MLP(8, 2), ["Sum is not one number", "of its terms"]),
    ],
)
def test_kernels_without_weights_are_refused(kernel: Kernel, message: list[str]) -> None:
    with refused(TypeError, *message):
        analysis.attention_weights(kernel, torch.randn(1, 4, 8))


def test_signals_of_the_wrong_shape_are_refused() -> None:
    with refused(ValueError, "u has 4 points", "has 5"):
        analysis.attention_weights(Attention(8, 2), torch.randn(1, 4, 8), domains.Sequence(5))
    with refused(ValueError, "query has 3 points", "has 4"):
        analysis.attention_weights(Attention(8, 2), torch.randn(1, 4, 8), query=torch.randn(1, 3, 8))


class TwoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = IntegralOperator(Attention(8, 2))
        self.second = IntegralOperator(LinearAttention(8, 4))
        self.other = IntegralOperator(kernels.MLP(8, 2, width=4, num_frequencies=2))

    def forward(self, u: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.other(self.second(self.first(u, key_padding_mask=mask), query=u[:, :2]))


def test_a_model_is_recorded_without_changing_it() -> None:
    model, u = TwoLayers(), torch.randn(3, 5, 8)
    mask = torch.tensor([True, True, True, False, True])
    before = model(u, mask)
    with analysis.record_weights(model) as weights:
        assert torch.equal(model(u, mask), before)
    assert list(weights) == ["first", "second"]
    assert {name: tuple(w.shape) for name, w in weights.items()} == {"first": (3, 2, 5, 5), "second": (3, 4, 2, 5)}
    assert not any(w.requires_grad for w in weights.values())
    expected = analysis.attention_weights(model.first.kernel, u * mask[:, None], domains.Sequence(5).restrict(mask))
    torch.testing.assert_close(weights["first"], expected)
    assert not weights["first"][..., 3].any()
    kept = dict(weights)
    model(u[:1])  # no longer recorded
    assert kept == weights
    with analysis.record_weights(model.second) as alone:
        model(u)
    assert list(alone) == [""]


def test_only_named_operators_and_their_last_call_are_recorded() -> None:
    model, u = TwoLayers(), torch.randn(3, 5, 8)
    with analysis.record_weights(model, ["first"]) as weights:
        model(torch.randn(3, 5, 8))
        model(u)
    assert list(weights) == ["first"]
    torch.testing.assert_close(weights["first"], analysis.attention_weights(model.first.kernel, u))
    for names in (["first", "third"], ["other"]):
        with refused(ValueError, "no operators whose kernels mix values", "['first', 'second']"):
            analysis.record_weights(model, names).__enter__()
    with refused(ValueError, "the model has no operators", "there are []"):
        analysis.record_weights(nn.Linear(2, 2)).__enter__()


def test_hooks_are_removed_after_an_error() -> None:
    sampled = IntegralOperator(Attention(8, 2), quadrature=quadrature.MonteCarlo(3))
    with refused(ValueError, "samples its integral", "with_quadrature(None)"), analysis.record_weights(sampled):
        sampled(torch.randn(1, 5, 8))
    assert sampled(torch.randn(1, 5, 8)).shape == (1, 5, 8)


@pytest.mark.slow
def test_compiled_models_are_refused() -> None:
    compiled_in_place = TwoLayers()
    compiled_in_place.first.compile()
    for model in (torch.compile(TwoLayers()), compiled_in_place):
        assert isinstance(model, nn.Module)
        with refused(ValueError, "a compiled model skips hooks"):
            analysis.record_weights(model).__enter__()


def test_a_vision_model_gives_maps_over_its_patches() -> None:
    config = models.ITNet.Config(embed_dim=8, depth=1, num_heads=2)
    image = encoders.Image.Config(image_size=(4, 6), patch_size=2, channels=1, num_frequencies=2)
    net = models.ITNet(encoders.Image(image, 8), 3, config).eval()
    net.blocks[0].operator = fredholm.IntegralOperator(Attention(8, 2))  # pyright: ignore[reportAttributeAccessIssue]
    with analysis.record_weights(net) as weights:
        net(torch.randn(2, 1, 4, 6))
    maps = analysis.patch_relevance(weights["blocks.0.operator"], (2, 3))
    assert maps.shape == (2, 2, 3)
    torch.testing.assert_close(maps.sum((1, 2)), torch.ones(2))
    shares = weights["blocks.0.operator"].mean(1)[:, 0, 1:]
    torch.testing.assert_close(maps.flatten(1), shares / shares.sum(1, keepdim=True))


def test_an_operators_weights_equal_those_of_its_kernel() -> None:
    op, u = IntegralOperator(Attention(8, 4)), torch.randn(2, 5, 8)
    assert torch.equal(analysis.attention_weights(op, u), analysis.attention_weights(op.kernel, u))
    with refused(TypeError, "analysis.attention_weights: MLP is not"):
        analysis.attention_weights(IntegralOperator(kernels.MLP(8, 2, 1)), u)
