"""Fixtures and settings of all tests: the seed, the hypothesis profile, the real data, poisoned memory."""

import gc
import importlib
import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
# No test depends on tile sizes tuned on this machine.
os.environ["FREDHOLM_TILES"] = str(ROOT / "tests" / "no tiles.json")
# Few, small graphs are compiled: probing vector instructions and precompiling headers would cost more than it saves.
os.environ |= {"TORCHINDUCTOR_VEC_ISA_OK": "1", "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0"}

pytest.register_assert_rewrite("tests.contracts")

# The same examples on every machine, and no deadline, which would depend on its load.
hypothesis.settings.register_profile(
    "fredholm", derandomize=True, database=None, deadline=None, max_examples=25, print_blob=True
)
hypothesis.settings.load_profile("fredholm")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--every-case`."""
    parser.addoption("--every-case", action="store_true", help="all cases of tests that are marked `pairs`")


def pytest_sessionstart() -> None:
    """Turns off garbage collection while modules and tests are imported: it would search for seconds in vain."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Exempts all imported objects from later collections, each of which would take another second."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Applies the marks: `long` implies `slow`, `pairs` keeps all pairs of values, `sampled` a third of the cases."""
    from tests.contracts.covering import covering_subset  # once its assertions are rewritten

    tables: dict[tuple[pytest.Item | pytest.Collector | None, str], list[pytest.Function]] = {}
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(pytest.mark.slow)
        if isinstance(item, pytest.Function) and item.get_closest_marker("pairs") and hasattr(item, "callspec"):
            tables.setdefault((item.parent, item.originalname), []).append(item)
    if config.getoption("--every-case"):
        return
    left_out = {item for item in items if item.get_closest_marker("sampled") and not _is_sampled(item)}
    for table in tables.values():
        # values need not be hashable, but cases share them
        rows = [{name: id(value) for name, value in item.callspec.params.items()} for item in table]
        kept = covering_subset(rows)
        left_out |= set(table).difference(table[number] for number in kept)
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=list(left_out))


def _is_sampled(item: pytest.Item) -> bool:
    """Whether the case lies on every third diagonal of a table of two parameters; these meet each row and column."""
    return isinstance(item, pytest.Function) and sum(item.callspec.indices.values()) % 3 == 0


@pytest.fixture(scope="session", autouse=True)
def _no_reports() -> Iterator[None]:
    """Turns off report pages, which cost a second each; tests of reports turn them on again."""
    before = os.environ.get("FREDHOLM_REPORT")
    os.environ["FREDHOLM_REPORT"] = "off"
    yield
    if before is None:
        del os.environ["FREDHOLM_REPORT"]
    else:
        os.environ["FREDHOLM_REPORT"] = before


@pytest.fixture(scope="session", autouse=True)
def _no_fsync() -> Iterator[None]:
    """Skips `fsync`, which takes a fifth of a small run's time: files of tests need not survive a power failure."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_seeds_for_absent_devices() -> Iterator[None]:
    """Skips seeding of absent devices, for each of which `torch.manual_seed` formats a stack trace."""
    with pytest.MonkeyPatch.context() as patch:
        for devices in (torch.cuda, torch.xpu, torch.mtia):
            if not devices.is_available():
                patch.setattr(devices, "manual_seed_all", lambda seed: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _full_float32() -> Iterator[None]:
    """Turns off TF32, to which cuDNN rounds by default, with errors beyond all tolerances of float32."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.backends.cudnn, "allow_tf32", False)
        yield


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def poisoned_memory() -> Iterator[None]:
    """Fills every `torch.empty` with NaN, so that a read before the first write shows."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before)


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    """Clears the compiler's caches before and after the test."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.fixture(scope="module")
def few_rates() -> Iterator[None]:
    """Reduces the learning rates that comparisons of kernels search from five to three."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importlib.import_module("fredholm.comparison.compare"), "FACTORS", (0.5, 1.0, 2.0))
        yield


@pytest.fixture(scope="module")
def quick_choices() -> Iterator[None]:
    """Gives kernel machines few candidates and two folds, trees a patience of five, and filters few patches."""
    choice = importlib.import_module("fredholm.models.fitted.kernel_choice")
    fewer = {"FOLDS": 2, "LENGTHS": (2.0,), "EXPONENTS": (0.5,), "SMOOTH_LENGTHS": (1.0,), "SMOOTH": (0.5, 1.0)}
    fewer |= {"LINEAR": (0.5,), "SMOOTH_PENALTIES": choice.SMOOTH_PENALTIES[::3]}
    with pytest.MonkeyPatch.context() as patch:
        for name, values in fewer.items():
            patch.setattr(choice, name, values)
        patch.setattr("fredholm.models.fitted.boosted_trees.PATIENCE", 5)
        patch.setattr("fredholm.models.fitted.banks.image_bank.NUM_PATCHES", 1000)
        patch.setattr("fredholm.models.fitted.banks.image_bank.ROUNDS", 2)
        yield


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data sets beside the checkout; the test is skipped where there is none."""
    path = ROOT.parent / "shared" / "data"
    if not path.is_dir():
        pytest.skip("no ../shared/data beside the checkout")
    return path
