import math

import torch

from fredholm.kernels.fourier_features import fourier_features, phases


def test_phases_keep_float32_under_autocast():
    pos, frequencies = torch.rand(50, 3), 10 * torch.randn(64, 3)
    with torch.autocast("cpu", torch.bfloat16):
        theta = phases(pos, frequencies)
    assert theta.dtype == torch.float32
    torch.testing.assert_close(
        theta, (2 * math.pi * pos.double() @ frequencies.double().T).float(), rtol=1e-5, atol=1e-4
    )
    assert fourier_features(pos, frequencies).shape == (50, 128)
