"""Kernels by name."""

from fredholm.comparison.kernels import KERNELS_BY_NAME, chosen, kernel_of
from fredholm.models import AttentionConfig, MLPConfig
from tests.refusals import refused


def test_none_means_all_and_order_is_that_of_the_table() -> None:
    assert chosen([]) == tuple(KERNELS_BY_NAME)
    assert chosen(["lstm", "mlp"]) == ("mlp", "lstm")


def test_frequencies_are_those_that_suit_the_positions() -> None:
    kernel = kernel_of("mlp", 0.3)
    assert isinstance(kernel, MLPConfig)
    assert kernel.sigma == 0.3
    assert kernel_of("attention", 0.3) == AttentionConfig()


def test_names_that_cannot_be_meant_are_refused() -> None:
    with refused(ValueError, "no kernel is called 'atention'", "attention"):
        chosen(["atention", "mlp"])
    with refused(ValueError, "no kernel is called 'zzz'", "known are mlp"):
        chosen(["zzz", "mlp"])
    with refused(ValueError, "mlp is named twice"):
        chosen(["mlp", "lstm", "mlp"])
    with refused(ValueError, "mlp alone"):
        chosen(["mlp"])
