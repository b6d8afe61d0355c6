"""The kernels that are compared, by name."""

import dataclasses
import difflib
from collections.abc import Sequence
from typing import NamedTuple

from fredholm.models.kernel_configs import (
    AttentionConfig,
    ContinuousConvolutionConfig,
    ConvolutionConfig,
    InfiniteConfig,
    KernelConfig,
    LinearAttentionConfig,
    LowRankConfig,
    MLPConfig,
    PerceptronConfig,
    RecurrenceConfig,
    SeparableConfig,
    YatConfig,
)


class NamedKernel(NamedTuple):
    """A kernel with its display name."""

    title: str
    kernel: KernelConfig


KERNELS_BY_NAME: dict[str, NamedKernel] = {
    "mlp": NamedKernel("exact MLP", MLPConfig(width=32, num_frequencies=8)),
    "low-rank": NamedKernel("low-rank MLP", LowRankConfig(rank=8, width=32, num_frequencies=8)),
    "separable": NamedKernel("separable MLP", SeparableConfig(width=32, num_frequencies=8)),
    "attention": NamedKernel("attention", AttentionConfig()),
    "linear-attention": NamedKernel("linear attention", LinearAttentionConfig()),
    "yat": NamedKernel("Yat attention", YatConfig()),
    "infinite-linear": NamedKernel("infinite attention, linear", InfiniteConfig(kind="linear")),
    "infinite-factorised": NamedKernel("infinite attention, factorised", InfiniteConfig(kind="factorised")),
    "convolution": NamedKernel("convolution, 3 points an axis", ConvolutionConfig(kernel_size=3)),
    "continuous-convolution": NamedKernel("continuous convolution", ContinuousConvolutionConfig()),
    "mamba": NamedKernel("selective state space (Mamba)", RecurrenceConfig(kind="selective")),
    "lstm": NamedKernel("LSTM", RecurrenceConfig(kind="lstm")),
}
"""Every kernel of a comparison, in the order of its table; add new ones here."""
MEASURE = "attention"
"""The kernel whose network sets the target number of parameters."""


def chosen(names: Sequence[str]) -> tuple[str, ...]:
    """Returns the kernels of these names in the order of `KERNELS_BY_NAME`; without names all.

    Raises:
        ValueError: a name is unknown or repeated, or is the only one.
    """
    for name in names:
        if name not in KERNELS_BY_NAME:
            close = difflib.get_close_matches(name, KERNELS_BY_NAME, n=3, cutoff=0.5)
            known = f"did you mean {' or '.join(close)}?" if close else f"known are {', '.join(KERNELS_BY_NAME)}"
            raise ValueError(f"no kernel is called {name!r}; {known}")
        if names.count(name) > 1:
            raise ValueError(f"the kernel {name} is named twice; name each once")
    if len(names) == 1:
        raise ValueError(f"{names[0]} alone leaves nothing to compare; name two kernels or more, or none for all")
    return tuple(name for name in KERNELS_BY_NAME if not names or name in names)


def kernel_of(name: str, sigma: float) -> KernelConfig:
    """Returns the kernel of that name; `sigma` sets the deviation of its Fourier frequencies, where it has them."""
    kernel = KERNELS_BY_NAME[name].kernel
    return dataclasses.replace(kernel, sigma=sigma) if isinstance(kernel, PerceptronConfig) else kernel
