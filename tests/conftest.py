"""Shared by all tests: one seed, one hypothesis profile, the real data, poisoned memory."""

from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent

pytest.register_assert_rewrite("tests.contracts")

# The same examples on every machine, and no verdict that depends on how busy it is.
hypothesis.settings.register_profile(
    "fredholm", derandomize=True, database=None, deadline=None, max_examples=25, print_blob=True
)
hypothesis.settings.load_profile("fredholm")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is long is slow."""
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def poisoned_memory() -> Iterator[None]:
    """Every `torch.empty` comes filled with NaN, so that a read before the first write shows."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before)


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    """What was compiled before is forgotten, as is afterwards what this test compiles."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data sets beside the checkout; the test is skipped where there is none."""
    path = ROOT.parent / "shared" / "data"
    if not path.is_dir():
        pytest.skip("no ../shared/data beside the checkout")
    return path
