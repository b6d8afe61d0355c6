"""Replacing attention by other kernels, fitted to a trained model."""

import copy
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fredholm import IntegralOperator, kernels
from fredholm.kernels import Kernel
from fredholm.models import GPT2, Bert, Llama, Sampling, ViT, generate
from fredholm.pretrained import linearise
from tests.refusals import refused

FEW: dict[str, Any] = {"layer_steps": 30, "whole_steps": 30}


def gpt2() -> GPT2:
    """A model with large random weights, so that its attention has an influence."""
    model = GPT2.Config(embed_dim=8, depth=2, num_heads=2, dropout=0.0).build(11, 24).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def texts(batches: int = 5) -> list[Tensor]:
    return [torch.randint(11, (3, 9)) for _ in range(batches)]


def linear(old: Kernel) -> Kernel:
    return kernels.LinearAttention(old.in_dim, 2, is_causal=old.is_causal)


def low_rank(old: Kernel) -> Kernel:
    return kernels.LowRankMLP(old.in_dim, 2, 1, rank=3, width=8, num_frequencies=3, is_causal=old.is_causal)


def yat(old: Kernel) -> Kernel:
    return kernels.YatAttention(old.in_dim, 2, epsilon=1.0, bias=True, is_causal=old.is_causal)


def infinite(old: Kernel) -> Kernel:
    return kernels.FactorisedInfiniteAttention(old.in_dim, 2, is_causal=old.is_causal)


@pytest.mark.parametrize("kernel", [linear, low_rank, yat, infinite])
def test_errors_decrease_layer_by_layer_and_for_the_whole_model(kernel: Any) -> None:
    model, data = gpt2(), texts()
    before = copy.deepcopy(model.state_dict())
    new, report = linearise(model, kernel, data, learning_rate=3e-3, **FEW)
    assert [fit.name for fit in report.layers] == ["blocks.0.operator", "blocks.1.operator"]
    assert all(fit.error < fit.start for fit in report.layers)
    assert report.error < report.start
    assert [len(fit.losses) for fit in report.layers] == [30, 30]
    assert len(report.losses) == 30
    assert str(report).count("relative error") == 3
    kinds = {type(part.kernel) for part in new.modules() if isinstance(part, IntegralOperator)}
    assert kinds == {type(kernel(kernels.Attention(8, 2)))}
    # the original model is unchanged, and the copy keeps its other weights
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert torch.equal(new.tokens.weight, model.tokens.weight)
    assert all(p.grad is None for p in model.parameters())


def llama() -> Llama:
    """The same with rotary positions only."""
    model = Llama.Config(embed_dim=8, depth=2, num_heads=2, num_kv_heads=1, rotary=kernels.Rotary(20.0))
    built = model.build(11, 24).eval()
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return built


def test_linear_attention_keeps_rotary_positions() -> None:
    model, data = llama(), texts()

    def turned(old: Kernel) -> Kernel:
        assert isinstance(old, kernels.Attention)
        return kernels.LinearAttention(8, 2, num_kv_heads=1, bias=False, is_causal=True, rotary=old.rotary)

    new, report = linearise(model, turned, data, learning_rate=3e-3, **FEW)
    assert report.error < report.start
    prompt = data[0][:, :5]
    drawn = torch.stack(list(itertools.islice(generate(new, prompt, Sampling(temperature=0)), 6)), 1)
    whole = prompt
    for _ in range(6):
        whole = torch.cat([whole, new(whole)[:, -1:].argmax(-1)], 1)
    assert torch.equal(drawn, whole[:, 5:])
    lengths = torch.tensor([5, 3, 1])
    ragged = torch.stack(list(itertools.islice(generate(new, prompt, Sampling(temperature=0), lengths=lengths), 10)), 1)
    for row, length in enumerate(lengths.tolist()):
        alone = list(itertools.islice(generate(new, prompt[row : row + 1, :length], Sampling(temperature=0)), 6))
        assert torch.equal(ragged[row, length - 1 : length + 5], torch.cat(alone))
    # tokens n - 1 and n - 2: without positions their order has no influence
    other = data[0][:, [0, 2, 1, *range(3, 9)]]
    with torch.no_grad():
        assert not torch.allclose(new(data[0])[:, -1], new(other)[:, -1], rtol=1e-3)


def test_the_same_kernel_gives_the_same_model() -> None:
    model, data = gpt2(), texts()
    new, report = linearise(
        model, lambda _: kernels.Attention(8, 2, is_causal=True), data, layer_steps=0, whole_steps=0
    )
    torch.testing.assert_close(new(data[0]), model(data[0]), rtol=0, atol=0)
    assert report.error == report.start == 0
    assert report.losses == ()


def test_errors_are_measured_on_held_out_batches() -> None:
    model, data = gpt2(), texts(6)
    new, report = linearise(model, linear, data, **FEW)
    with torch.no_grad():
        expected, found = model(data[5]), new(data[5])
    assert report.error == pytest.approx(((found - expected).norm() / expected.norm()).square().item(), rel=1e-5)


def test_text_can_be_generated_token_by_token() -> None:
    data = texts()
    new, _ = linearise(gpt2(), linear, data, **FEW)
    ways = [
        torch.stack(list(itertools.islice(generate(new, data[0], Sampling(temperature=0), cache=cache), 9)))
        for cache in (True, False)
    ]
    assert torch.equal(*ways)


def test_custom_masks_images_and_losses() -> None:
    bert = Bert.Config(embed_dim=8, depth=1, num_heads=2, head="classes", num_classes=3, dropout=0.0).build(11, 24)
    mask = torch.ones(3, 9, dtype=torch.bool)
    mask[0, 5:] = False
    pairs = [(tokens, mask) for tokens in texts()]

    def entropy(found: Tensor, wanted: Tensor) -> Tensor:
        return nn.functional.cross_entropy(found, wanted.softmax(-1))

    new, report = linearise(bert, linear, pairs, loss=entropy, train_rest=True, **FEW)
    assert new.training
    assert len(report.layers) == 1
    assert not torch.equal(new.tokens.weight, bert.tokens.weight)
    vit = ViT.Config(image_size=(8, 8), patch_size=(4, 4), embed_dim=8, depth=1, num_heads=2, num_classes=3).build()
    images = [torch.randn(2, 3, 8, 8) for _ in range(2)]
    _, report = linearise(vit, infinite, images, where=lambda name, _: name == "blocks.0.operator", **FEW)
    assert report.layers[0].error < report.layers[0].start


def test_the_seed_decides_the_result() -> None:
    model, data = gpt2(), texts()
    reports = []
    for _ in range(2):
        torch.manual_seed(3)
        reports.append(linearise(model, low_rank, data, generator=torch.Generator().manual_seed(1), **FEW)[1])
    assert reports[0] == reports[1]


class Chain(nn.Module):
    """Modules one after the other, of which one may occur twice."""

    def __init__(self, *parts: Any, answers: int = 1) -> None:
        super().__init__()
        self.parts, self.answers = nn.ModuleList(parts), answers

    def forward(self, u: Tensor) -> Any:
        for part in self.parts:
            u = part(u)
        return u if self.answers == 1 else (u,) * self.answers


def attending() -> IntegralOperator:
    return IntegralOperator(kernels.Attention(8, 2))


def test_a_single_operator_and_one_that_occurs_twice() -> None:
    data, one = [torch.randn(2, 5, 8)], attending()
    new, report = linearise(one, linear, data, **FEW)
    assert isinstance(new.kernel, kernels.LinearAttention)
    assert report.layers[0].error == report.start > report.error > 0
    chain, report = linearise(Chain(one, one), linear, data, **FEW)
    first, second = chain.parts
    assert first is second
    assert isinstance(first.kernel, kernels.LinearAttention)
    assert report.error < report.start


def test_models_that_cannot_be_fitted_are_refused() -> None:
    data = [torch.randn(2, 5, 8)]
    with refused(TypeError, "linearise: the model must answer with one tensor", "tuple"):
        linearise(Chain(attending(), answers=2), linear, data)
    unread = Chain(attending())
    unread.other = attending()
    with refused(ValueError, "the operator 'other' is not called on these data", "where="):
        linearise(unread, linear, data, **FEW)
    with refused(ValueError, "the operator 'parts.0' is compiled", "linearise the model first"):
        linearise(Chain(torch.compile(attending())), linear, data)
    with refused(TypeError, "linearise: model must be a module", "dict"):
        linearise({}, linear, data)  # pyright: ignore[reportArgumentType]


def test_bad_arguments_are_refused() -> None:
    model, data = gpt2(), texts(1)
    with refused(ValueError, "data holds no batch"):
        linearise(model, linear, [])
    with refused(ValueError, "looks ahead", "'blocks.0.operator'", "is_causal=True"):
        linearise(model, lambda old: kernels.LinearAttention(8, 2), data)
    with refused(ValueError, "(6, 6, 6)", "(8, 8, 8)"):
        linearise(model, lambda old: kernels.LinearAttention(6, 2, is_causal=True), data)
    with refused(TypeError, "must make a fredholm kernel", "Linear"):
        linearise(model, lambda old: nn.Linear(8, 8), data)  # pyright: ignore[reportArgumentType]
    with refused(ValueError, "none of the 2 operators of GPT2 is selected", "Attention"):
        linearise(model, linear, data, where=lambda name, operator: False)
    with refused(ValueError, "layer_steps must be at least 0", "-1"):
        linearise(model, linear, data, layer_steps=-1)
    with refused(ValueError, "learning_rate must be positive", "0"):
        linearise(model, linear, data, learning_rate=0.0)
    with refused(ValueError, "the loss is", "at step", "lower the learning rate"):
        linearise(model, linear, data, learning_rate=1e30)


def test_non_finite_outputs_are_not_blamed_on_the_learning_rate() -> None:
    operator = IntegralOperator(kernels.Attention(8, 2))
    u = torch.randn(2, 5, 8)
    broken = u.clone()
    broken[0, 0, 0] = torch.nan
    model = nn.Sequential(operator, nn.Softshrink(), nn.Identity())
    for data in ([broken], [u, u, broken]):
        with refused(ValueError, "linearise: the operator '0' gives NaN or infinite values on these data"):
            linearise(model, linear, data, layer_steps=1, whole_steps=0)
    model[2] = Logarithm()
    with refused(ValueError, "linearise: the model gives NaN or infinite values on these data"):
        linearise(model, linear, [u], layer_steps=0, whole_steps=0)
    _, report = linearise(
        model, linear, [u], layer_steps=0, whole_steps=1, loss=lambda a, b: (a - b).nan_to_num(0, 0, 0).sum()
    )
    assert len(report.losses) == 1


class Logarithm(nn.Module):
    """Infinite where the input is 0."""

    def forward(self, x: Tensor) -> Tensor:
        return x.abs().log()


def test_bad_lists_and_kernels_are_refused() -> None:
    operator = IntegralOperator(kernels.Attention(8, 2))
    with refused(TypeError, "linearise: data is a list of batches; got NoneType"):
        linearise(operator, linear, None)  # pyright: ignore[reportArgumentType]
    with refused(TypeError, "linearise: kernel is a function that makes the new kernel", "got a LinearAttention"):
        linearise(operator, linear(operator.kernel), [torch.randn(1, 2, 8)])  # pyright: ignore[reportArgumentType]
