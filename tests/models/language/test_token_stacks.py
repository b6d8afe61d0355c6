"""Models of tokens at edge sizes: no text, no token, one token, a text that is fully masked; and 16 bits."""

from typing import Any

import pytest
import torch

from fredholm.models import GPT2, Aether, Bert, Llama, Mamba
from tests.refusals import refused

SIZES: dict[str, Any] = {"embed_dim": 12, "depth": 1}
MODELS: dict[str, Any] = {
    "GPT-2": lambda: GPT2.Config(**SIZES, num_heads=3).build(11, 9),
    "Llama": lambda: Llama.Config(**SIZES, num_heads=3, num_kv_heads=1).build(11, 9),
    "Mamba": lambda: Mamba.Config(**SIZES).build(11, 9),
    "Aether": lambda: Aether.Config(**SIZES, num_heads=3).build(11, 9),
    "BERT": lambda: Bert.Config(**SIZES, num_heads=3).build(11, 9),
}


@pytest.mark.parametrize("shape", [(2, 0), (0, 5), (1, 1), (2, 9)], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_every_size_has_finite_logits_and_gradients(name: str, shape: tuple[int, int]) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        model = MODELS[name]().to(dtype).eval()
        for mask in (None, torch.zeros(shape, dtype=torch.bool)):
            logits = model(torch.zeros(shape, dtype=torch.int64), mask)
            assert logits.shape == (*shape, 11)
            assert logits.dtype == dtype
            assert logits.isfinite().all()
            model.zero_grad()
            logits.float().square().sum().backward()
            assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("there", [[3, 4, 5, 6], [0, 1, 2, 3], [1, 2, 4, 6]], ids=["left", "right", "between"])
@pytest.mark.parametrize("name", MODELS)
def test_masked_tokens_change_nothing(name: str, there: list[int]) -> None:
    model, tokens = MODELS[name]().double().eval(), torch.randint(11, (2, 4))
    padded, mask = torch.randint(11, (2, 7)), torch.zeros(2, 7, dtype=torch.bool)
    padded[:, there], mask[:, there] = tokens, True
    torch.testing.assert_close(model(padded, mask)[:, there], model(tokens), rtol=1e-10, atol=1e-10)


def test_a_text_without_tokens_has_no_class() -> None:
    model = Bert.Config(**SIZES, num_heads=3, head="classes", num_classes=2).build(11, 9)
    assert model(torch.zeros(0, 5, dtype=torch.int64)).shape == (0, 2)
    with refused(ValueError, "a text without tokens has no classes"):
        model(torch.zeros(2, 0, dtype=torch.int64))


def test_masks_of_the_wrong_shape_or_dtype_are_refused() -> None:
    tokens = torch.zeros(2, 5, dtype=torch.int64)
    for build in MODELS.values():
        for mask in (torch.ones(2, 4, dtype=torch.bool), torch.ones(2, 5)):
            with refused(ValueError, "key_padding_mask must be bool (2, 5)", str(tuple(mask.shape))):
                build()(tokens, mask)
