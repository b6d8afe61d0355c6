"""The comparison that the tests of all routes rely on fails where it should."""

import pytest
import torch

from tests.contracts.routes import compare

LARGE = torch.tensor([1.0, -2.0])
ZERO = torch.zeros(2)


def test_equal_results_pass() -> None:
    compare({"out": LARGE * (1 + 1e-6)}, {"out": LARGE}, 1e-5)
    compare({"out": LARGE}, {"out": LARGE, "gradient": ZERO}, 1e-5)  # an absent gradient is 0
    compare(
        {"out": LARGE, "gradient": ZERO + 1e-6}, {"out": LARGE, "gradient": ZERO}, 1e-5
    )  # rounding of cancelling terms


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        ({"out": LARGE * (1 + 1e-4)}, {"out": LARGE}),
        ({"out": LARGE}, {"out": LARGE, "gradient": LARGE}),
        ({"out": LARGE, "gradient": LARGE}, {"out": LARGE}),
        ({"out": LARGE, "gradient": ZERO + 1e-3}, {"out": LARGE, "gradient": ZERO}),
        ({"out": LARGE, "gradient": 1e-3 * LARGE.flip(0)}, {"out": LARGE, "gradient": 1e-3 * LARGE}),
        ({"out": torch.tensor([1.0, torch.nan])}, {"out": LARGE}),
    ],
)
def test_different_results_fail(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    with pytest.raises(AssertionError):
        compare(got, expected, 1e-5)
