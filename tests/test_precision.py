"""The dtype of matrix products under autocast on each device, and computations that turn autocast off."""

import pytest
import torch
from torch import Tensor, nn

from fredholm._precision import autocast_dtype, product_dtype, under_autocast, without_autocast

X = torch.ones(2, 2)


class Square(nn.Module):
    """The matrix product x x, computed without autocast."""

    def forward(self, x: Tensor) -> Tensor:
        with without_autocast(x):
            return x @ x


def test_the_dtype_of_autocast_is_reported_for_each_device() -> None:
    bare = X.to("meta")
    assert autocast_dtype(X) is autocast_dtype(bare) is None
    with torch.autocast("cpu", torch.float16):
        assert (autocast_dtype(X), product_dtype(X), product_dtype(X.double())) == (torch.float16,) * 2 + (
            torch.float64,
        )
        assert (autocast_dtype(bare), product_dtype(bare)) == (None, torch.float32)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_without_autocast_products_keep_their_dtype(device: str) -> None:
    x = X.to(device)
    with torch.autocast("cpu", torch.bfloat16):
        assert Square()(x).dtype == torch.float32
        assert (x @ x).dtype == (torch.bfloat16 if device == "cpu" else torch.float32)


def test_an_earlier_autocast_is_restored() -> None:
    with torch.autocast("cpu", torch.float16):
        before = autocast_dtype(X)
    for now in (torch.bfloat16, None):
        with torch.autocast("cpu", now, enabled=now is not None), under_autocast(before, X):
            assert (X @ X).dtype == torch.float16


def test_code_without_autocast_is_compiled_in_one_graph_and_exported() -> None:
    compiled = torch.compile(Square(), fullgraph=True, backend="eager")
    exported = torch.export.export(Square(), (X,)).module()
    for square in (compiled, exported):
        assert square(X).dtype == torch.float32
        with torch.autocast("cpu", torch.bfloat16):
            assert square(X).dtype == torch.float32
