"""Parts of one computation in threads: in order, single-threaded each, and with the numbers of one thread."""

import threading
from collections.abc import Iterator

import pytest
import torch

from fredholm.domains import Sequence
from fredholm.evaluation import YatTiled
from fredholm.evaluation.threads import in_threads, slices
from fredholm.kernels import Yat, YatAttention
from tests.contracts.routes import Problem, compare, randomise, results


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_parts_run_in_threads_of_their_own_one_thread_each_and_record_nothing():
    leaf = torch.ones(3, requires_grad=True)

    def part(number: int):
        return number, threading.get_ident(), torch.get_num_threads(), (leaf * number).requires_grad

    found = in_threads([lambda number=number: part(number) for number in range(3)])
    assert [row[0] for row in found] == [0, 1, 2]
    assert threading.get_ident() not in {row[1] for row in found}
    assert {row[2] for row in found} == {1}
    assert not any(row[3] for row in found)
    assert torch.get_num_threads() == 2


def test_an_error_of_a_part_reaches_the_caller_and_leaves_the_threads_as_they_were():
    def fail():
        raise RuntimeError("a part failed")

    with pytest.raises(RuntimeError, match="a part failed"):
        in_threads([fail, lambda: None])
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize(
    ("count", "work", "expected"),
    [
        (6, 1 << 30, [(0, 3), (3, 6)]),
        (5, 1 << 30, [(0, 2), (2, 5)]),
        (1, 1 << 30, [(0, 1)]),
        (6, 9, [(0, 6)]),
        (0, 0, [(0, 0)]),
    ],
)
def test_slices_are_even_and_worth_a_thread(count, work, expected):
    assert [(s.start, s.stop) for s in slices(count, work, torch.device("cpu"), 1 << 20)] == expected
    assert slices(count, work, torch.device("cuda"), 1 << 20) == [slice(0, count)]


@pytest.mark.parametrize("kind", ["attention", "prototypes"])
def test_heads_in_threads_give_the_numbers_of_one_thread(monkeypatch, kind):
    # enough heads for two parts, which share the gradients of ε, masses and pair weights
    monkeypatch.setattr("fredholm.evaluation.yat_sums.op.LEAST", 1)
    where = Sequence(7, weights=torch.rand(2, 7, dtype=torch.float64)).weigh_pairs(
        torch.randn(7, 7, dtype=torch.float64)
    )
    if kind == "attention":
        kernel, u = YatAttention(9, 3, is_causal=True, learn_epsilon=True), torch.randn(2, 7, 9, dtype=torch.float64)
    else:
        kernel, u = Yat(4, 3, reads_bias=True, num_units=7), torch.randn(2, 7, 8, dtype=torch.float64)
    query = None if kind == "attention" else torch.randn(2, 7, 4, dtype=torch.float64)
    problem = Problem(randomise(kernel.double()), u, where, query, None if query is None else Sequence(7))
    several = results(YatTiled(), problem)
    torch.set_num_threads(1)
    compare(several, results(YatTiled(), problem), 1e-12)
