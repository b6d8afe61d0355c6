"""A learned kernel added to every attention: with a gate of 0 nothing changes, and only the new parameters learn."""

import itertools
from typing import Any

import pytest
import torch

from fredholm import IntegralOperator, kernels, quadrature
from fredholm.models import GPT2, Bert, Llama, Mamba, Sampling, ViT, generate
from fredholm.pretrained import add_kernel
from tests.refusals import refused

MLP: dict[str, Any] = {"width": 5, "num_frequencies": 3}
TOKENS = torch.randint(11, (2, 6), generator=torch.Generator().manual_seed(0))
MASK = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])


def gpt2() -> GPT2:
    return GPT2.Config(embed_dim=12, depth=2, num_heads=3, dropout=0.0).build(11, 24).eval()


def text_kernel(**settings: Any) -> kernels.MLP:
    return kernels.MLP(12, 3, 1, **MLP, **{"is_causal": True, **settings})


MODELS: dict[str, tuple[Any, Any, tuple[torch.Tensor, ...]]] = {
    "GPT-2": (gpt2, text_kernel, (TOKENS, MASK)),
    "Llama": (
        lambda: Llama.Config(embed_dim=12, depth=2, num_heads=3, num_kv_heads=1).build(11, 24).eval(),
        lambda: kernels.LowRankMLP(12, 3, 1, rank=2, is_causal=True, **MLP),
        (TOKENS, MASK),
    ),
    "BERT": (
        lambda: Bert.Config(embed_dim=12, depth=2, num_heads=3).build(11, 24).eval(),
        lambda: text_kernel(is_causal=False),
        (TOKENS, MASK),
    ),
    "ViT": (
        lambda: ViT.Config(image_size=(8, 8), patch_size=(2, 4), embed_dim=12, depth=2, num_heads=3).build().eval(),
        lambda: kernels.MLP(12, 3, 2, **MLP),
        (torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0)),),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_outputs_are_unchanged_at_first_and_only_new_parameters_learn(name: str) -> None:
    build, kernel, inputs = MODELS[name]
    model = build()
    before, known = model(*inputs), set(model.state_dict())
    assert add_kernel(model, kernel()) is model
    after = model(*inputs)
    assert torch.equal(after, before)
    new = {key: p for key, p in model.named_parameters() if p.requires_grad}
    assert len([key for key in new if "gate" in key]) == 2
    after.square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for key, p in new.items() if "gate" in key)
    with torch.no_grad():
        for key, p in new.items():
            p.fill_(0.5) if "gate" in key else None
    model.zero_grad()
    changed = model(*inputs)
    assert not torch.allclose(changed, before)
    changed.square().sum().backward()
    unread = [key for key, p in new.items() if p.numel() and (p.grad is None or not p.grad.isfinite().all())]
    assert unread == []
    assert all(p.grad is None for key, p in model.named_parameters() if key in known)


def test_generation_works_with_added_kernels() -> None:
    model = add_kernel(gpt2(), text_kernel(), gate=0.7)
    first = list(itertools.islice(generate(model, TOKENS, Sampling(temperature=0)), 9))
    again = list(itertools.islice(generate(model, TOKENS, Sampling(temperature=0), cache=False), 9))
    assert torch.equal(torch.stack(first), torch.stack(again))


def test_each_layer_has_its_own_kernel_and_other_parameters_may_learn() -> None:
    model = add_kernel(gpt2(), text_kernel(), freeze=False)
    assert all(p.requires_grad for p in model.parameters())
    weights = [p for key, p in model.named_parameters() if key.endswith("gate")]
    assert len(weights) == 2
    assert weights[0] is not weights[1]
    one, other = ({id(p) for p in model.blocks[n].parameters()} for n in (0, 1))
    assert one.isdisjoint(other)


def test_kernels_can_be_added_to_selected_operators() -> None:
    model = add_kernel(gpt2(), text_kernel(), where=lambda name, operator: name.startswith("blocks.1"))
    assert [key.split(".")[1] for key, p in model.named_parameters() if p.requires_grad and "gate" in key] == ["1"]


def test_bad_arguments_are_refused() -> None:
    with refused(TypeError, "kernel must be a fredholm kernel", "Linear"):
        add_kernel(gpt2(), torch.nn.Linear(2, 2))  # pyright: ignore[reportArgumentType]
    with refused(ValueError, "(16, 16, 16)", "'blocks.0.operator'", "(12, 12, 12)"):
        add_kernel(gpt2(), kernels.MLP(16, 2, 1, is_causal=True))
    model = gpt2()
    with refused(ValueError, "sees the past alone", "is_causal=True"):
        add_kernel(model, text_kernel(is_causal=False))
    assert all(p.requires_grad for p in model.parameters())
    twice = add_kernel(gpt2(), text_kernel(), freeze=False)
    with refused(ValueError, "positions of different dimensions", "[1, 2]"):
        add_kernel(twice, kernels.MLP(12, 3, 2, is_causal=True), where=lambda name, operator: True)
    sampled = IntegralOperator(kernels.Attention(12, 3), quadrature=quadrature.MonteCarlo(2))
    with refused(ValueError, "not a function of two points alone", "quadrature=None"):
        add_kernel(sampled, kernels.LinearRNN(12, 3, 12))
    with refused(ValueError, "gate must be finite", "nan"):
        add_kernel(twice, text_kernel(), gate=float("nan"), where=lambda name, operator: True)
    assert all(p.requires_grad for each in (twice, sampled) for p in each.parameters())
    with refused(TypeError, "add_kernel: model must be a module", "list"):
        add_kernel([gpt2()], text_kernel())  # pyright: ignore[reportArgumentType]
    with refused(ValueError, "none of the 1 operators of Mamba", "SelectiveStateSpace", "where="):
        add_kernel(Mamba.Config(embed_dim=4, depth=1).build(11, 9), text_kernel())
