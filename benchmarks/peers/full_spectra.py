"""The straightforward long convolution: the whole kernel sampled, everything transformed, channels by broadcasting."""

import torch
from torch import Tensor


def full_spectra(u: Tensor, kernel: Tensor) -> Tensor:
    """v_o(t) = Σ_i Σ_s kernel_oi(s) u_i(t - s), causal, differentiated by autograd.

    Args:
        u: signal, `(B, N, d_in)`.
        kernel: kernel values at distances 0 … N - 1, `(d_out, d_in, N)`.

    Returns:
        `(B, N, d_out)`.
    """
    length = 2 * u.shape[1]
    signal = torch.fft.rfft(u.mT, length)
    response = torch.fft.rfft(kernel, length)
    out = torch.fft.irfft((response * signal[:, None]).sum(2), length)
    return out[..., : u.shape[1]].mT
