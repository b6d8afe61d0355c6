"""Settings of models and encoders of the wrong type or range are refused by name, before anything is built."""

import math
from typing import Any

import pytest

from fredholm import encoders, models
from tests.refusals import refused

NUMBERS: list[tuple[Any, str, str]] = [
    (models.Sampling, "temperature", "Sampling: temperature must be a number"),
    (models.Sampling, "top_p", "Sampling: top_p must be a number"),
    (models.Sampling, "top_k", "Sampling: top_k must be a whole number"),
    (models.CKCNN.Config, "omega_0", "models.CKCNN: omega_0 must be a number"),
    (models.CKCNN.Config, "horizon", "models.CKCNN: horizon must be a number"),
    (models.ITNet.Config, "diffusion", "models.ITNet: diffusion must be a number"),
    (models.FieldOperator.Config, "dropout", "models.FieldOperator: dropout must be a number"),
    (models.FieldOperator.Config, "num_frequencies", "models.FieldOperator: num_frequencies must be a whole number"),
    (models.Bert.Config, "num_classes", "models.Bert: num_classes must be a whole number"),
    (models.ViT.Config, "patch_size", "models.ViT: patch_size is (height, width) in pixels"),
    (encoders.Image.Config, "channels", "encoders.Image: channels must be a whole number"),
    (encoders.Image.Config, "num_frequencies", "encoders.Image: num_frequencies must be a whole number"),
    (encoders.Image.Config, "patch_size", "encoders.Image: patch_size must be a whole number"),
    (encoders.MultiScaleImage.Config, "patch_sizes", "encoders.MultiScaleImage: patch_sizes are sides of patches"),
]


@pytest.mark.parametrize(("config", "name", "message"), NUMBERS, ids=[message.split(" ")[1] for *_, message in NUMBERS])
@pytest.mark.parametrize("wrong", ["2", [4]])
def test_settings_that_must_be_numbers(config: Any, name: str, message: str, wrong: Any) -> None:
    with refused(TypeError, message, f"got {wrong!r}"):
        config(**{name: wrong})


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (models.BertMasked.Config, "models.BertMasked: stack must be Bert.Config(...)"),
        (models.BertSentences.Config, "models.BertSentences: stack must be Bert.Config(...)"),
        (models.CKCNNText.Config, "models.CKCNNText: stack must be ContinuousStack.Config(...)"),
        (models.ITNetLanguageModel.Config, "models.TokenStack: stack must be ITNet.Config(...)"),
    ],
)
def test_a_stack_of_the_wrong_type(config: Any, expected: str) -> None:
    for wrong, shown in (
        (models.GPT2.Config(), "GPT2.Config"),
        (models.Bert.Config, "the class Bert.Config"),
        ("x", "str"),
    ):
        with refused(TypeError, expected, f"got {shown}"):
            config(stack=wrong)


def test_numbers_out_of_range() -> None:
    with refused(ValueError, "models.CKCNN: omega_0 must be positive and finite; got inf"):
        models.CKCNN.Config(omega_0=math.inf)
    with refused(ValueError, "models.FieldOperator: dropout must be in [0, 1); got nan"):
        models.FieldOperator.Config(dropout=math.nan)
    with refused(ValueError, "models.Bert: num_classes must be at least 0; got -1"):
        models.Bert.Config(num_classes=-1)
    with refused(ValueError, "encoders.Image: patch_size is a side, or (height, width); got (4, 4, 4)"):
        encoders.Image.Config(patch_size=(4, 4, 4))  # pyright: ignore[reportArgumentType]
