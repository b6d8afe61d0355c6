"""A few operators at random settings, and checks that the fuzzer notices errors."""

import random

import pytest
import torch

from fredholm.evaluation import AUTO, FusedAttention
from tests.faults.operators import PRECISIONS, Setting, draw, fuzz_operators, is_own, problem_of, quietly

PLAIN = Setting.parse(
    "Attention / causal / sequence / padding / even / all pairs / no query / float32"
    " / all points / 1 / 2 / 7 / True / 3"
)


def test_no_call_is_wrong() -> None:
    (outcome,) = fuzz_operators(60, seed=0)
    assert outcome.broken == ()
    assert outcome.tried == outcome.held >= 60


@pytest.mark.parametrize(
    "found",
    [
        "YatAttention / plain / points / all / even / all pairs / no query / float32"
        " / all points / 1 / 0 / 5 / True / 1",
        "ContinuousConvolution / plain / times / all / weights / all pairs / no query / bfloat16"
        " / all points / 1 / 0 / 3"
        " / True / 1",
        "LinearSystem / plain / times / all / even / all pairs / no query / float32 / all points"
        " / 1 / 0 / 3 / True / 1",
        "LowRankMLP / causal / sequence / all / even / all pairs / nowhere / float64"
        " / all points / 1 / 2 / 3 / True / 1",
        "MLP / plain / points / all / even / all pairs / no query / float32 / 3 draws / 1 / 0 / 7 / True / 1",
        "MLP / plain / points / all / even / all pairs / no query / float32 / 2 anchors / 1 / 2 / 0 / True / 1",
        "LSTM / plain / sequence / all / even / pairs kept per entry / no query / bfloat16"
        " / all points / 1 / 2 / 3"
        " / True / 1",
        "Attention / plain / sequence / all / even / all pairs / no query"
        " / float16 under bfloat16 / all points / 1 / 2"
        " / 3 / True / 1",
        "Attention / plain / sequence / all / even / all pairs / no query"
        " / float64 under bfloat16 / all points / 1 / 2"
        " / 3 / True / 1",
        "FactorisedInfiniteAttention / causal / points per entry / all / even / all pairs / u"
        " / float32 / all points / 30"
        " / 3 / 7 / True / 7",
        "FactorisedInfiniteAttention / rows / points per entry / all / even / all pairs"
        " / other values / float32"
        " / all points / 1000.0 / 3 / 67 / True / 352541",
        "LinearAttention / plain / points / all / even / all pairs / no query / float32"
        " / all points / 100 / 2 / 7 / True"
        " / 9",
        "FactorisedInfiniteAttention / softplus features / points per entry / all / weights / all pairs / no query"
        " / float32 / all points / 1000.0 / 2 / 1 / False / 116324",
        "FactorisedInfiniteAttention / softplus features / periodic grid / padding / weights"
        " / pairs listed, a row empty / the domain / float32 / all points / 100.0 / 3 / 1x5 / True / 444726",
        "LinearAttention / softplus features / union / shared mask / even / all pairs / u / float32 / all points"
        " / 1000.0 / 2 / 7 / False / 567722",
        # values at masked points are close to infinity
        "FactorisedInfiniteAttention / causal, one kv head / times / shared mask / weights per entry, some 0"
        " / pairs weighed / u / float32 / all points / 1000.0 / 2 / 3 / False / 462612",
        "FactorisedInfiniteAttention / causal, one kv head / periodic grid / padding / weights"
        " / pairs listed per entry / u / float32 / all points / 100.0 / 2 / 2x2 / False / 633453",
        # a feature that is tiny in all keys and large in a query
        "FactorisedInfiniteAttention / rows / tied times / padding / even / all pairs / scattered points / float32"
        " / all points / 100.0 / 2 / 1 / False / 793734",
        # scores of gelu that become 0 in float32
        "InfiniteAttention / causal, gelu / points per entry / mask per entry / even / all pairs / no query / float32"
        " / all points / 10.0 / 2 / 11 / False / 769964",
        # rows of scores that become 0 in float64, in routes that store them
        "FactorisedInfiniteAttention / causal, rows / periodic grid / mask per entry / weights"
        " / pairs weighed per head, a row empty / other values at the domain / float32 / all points / 1000.0 / 2 / 3x5"
        " / False / 496345",
        # saturated softmax recomputed in the backward pass
        "Attention / causal / union / shared mask / even / all pairs / other values / float32 / all points / 100.0"
        " / 3 / 7 / True / 160137",
        # an entry without points whose last time is close to infinity, on which noise had no effect
        "YatAttention / rotary / times per entry / an entry with nothing / weights per entry, some 0"
        " / pairs weighed per head, a row empty / other points / float32 / all points / 1.0 / 3 / 7 / True / 600136",
        # a gradient of 1e-37, of underflowed numbers times 1000
        "LSTM / plain / spaced sequence / all / even / pairs listed, a row empty / u / float32 / all points / 1000.0"
        " / 1 / 5 / True / 564247",
        # saturated softmax: gradients that cancel to 0
        "Yat / softmax / graphs / an entry with nothing / even / all pairs / other values / float64 / Full / 30.0 / 3"
        " / 17 / True / 795539",
        "AdditiveAttention / steep / line of cells / an entry with nothing / even / all pairs / no query / float32"
        " / Full / 100.0 / 2 / 17 / True / 661996",
    ],
)
def test_settings_that_were_wrong_once_stay_right(found: str) -> None:
    assert not any(quietly(Setting.parse(found)))


def test_gradients_of_hops_in_float16_are_finite() -> None:
    setting = Setting.parse(
        "InfiniteAttention / rows / union / padding / even / all pairs / other points / float16"
        " / all points / 1000.0 / 3"
        " / 13 / False / 762645"
    )
    assert all(part.isfinite().all() for part in problem_of(setting).by(AUTO).values())


def test_wrong_numbers_and_internal_errors_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not any(quietly(PLAIN))
    compute = FusedAttention.compute
    monkeypatch.setattr(FusedAttention, "compute", lambda route, integral: compute(route, integral) * (1 + 1e-3))
    assert any("FusedAttention: result is off by" in wrong for wrong in quietly(PLAIN))
    monkeypatch.setattr(FusedAttention, "compute", lambda route, integral: integral.u * torch.nan)
    assert any("FusedAttention: result is not finite" in wrong for wrong in quietly(PLAIN))
    monkeypatch.setattr(FusedAttention, "compute", lambda route, integral: torch.zeros(2) @ torch.zeros(3))
    assert any("RuntimeError" in wrong for wrong in quietly(PLAIN))


def test_only_errors_raised_on_purpose_count_as_errors_of_the_library() -> None:
    assert not is_own(_raised(lambda: torch.zeros(2) @ torch.zeros(3)))
    assert not is_own(_raised(lambda: torch.nn.Linear(2, 3)(torch.zeros(1, 5))))
    assert is_own(_raised(lambda: __import__("fredholm").kernels.MLP(0)))


def _raised(act) -> Exception:
    try:
        act()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def test_settings_can_be_parsed_from_their_text() -> None:
    rng = random.Random(1)
    for _ in range(20):
        setting = draw(rng)
        assert Setting.parse(str(setting)) == setting
        assert setting.precision in PRECISIONS
