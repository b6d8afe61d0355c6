"""Kernels by name."""

from fredholm.comparison.kernels import KERNELS_BY_NAME, chosen, kernel_of
from fredholm.models import AttentionConfig, MLPConfig
from tests.refusals import refused


def test_no_names_mean_all_kernels_in_the_order_of_the_table() -> None:
    assert chosen([]) == tuple(KERNELS_BY_NAME)
    assert chosen(["lstm", "mlp"]) == ("mlp", "lstm")


def test_the_frequency_scale_is_set_for_kernels_of_positions() -> None:
    kernel = kernel_of("mlp", 0.3)
    assert isinstance(kernel, MLPConfig)
    assert kernel.sigma == 0.3
    assert kernel_of("attention", 0.3) == AttentionConfig()


def test_unknown_names_are_refused() -> None:
    with refused(ValueError, "no kernel is called 'atention'", "attention"):
        chosen(["atention", "mlp"])
    with refused(ValueError, "no kernel is called 'zzz'", "known are mlp"):
        chosen(["zzz", "mlp"])
    with refused(ValueError, "mlp is named twice"):
        chosen(["mlp", "lstm", "mlp"])
    with refused(ValueError, "mlp alone"):
        chosen(["mlp"])
