"""The feature map of linear attention."""

import torch

from fredholm.kernels.attention.linear_attention import elu_plus_one


def test_elu_plus_one_keeps_its_digits_and_its_slope():
    x = torch.tensor([-30.0, -1.0, 0.0, 2.0], requires_grad=True)
    found = elu_plus_one(x)
    torch.testing.assert_close(found[:2], x[:2].exp(), rtol=1e-6, atol=0)
    torch.testing.assert_close(found[2:], torch.tensor([1.0, 3.0]))
    (slope,) = torch.autograd.grad(found.sum(), x)
    torch.testing.assert_close(slope, torch.tensor([1.0, 1.0, 1.0, 1.0]).where(x >= 0, x.exp()), rtol=1e-6, atol=0)
