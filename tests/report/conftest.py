"""Pages are written completely, however slow the machine is."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="package", autouse=True)
def _unhurried() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in ("examination", "kernel_pages"):
            patch.setattr(f"fredholm.report.{module}.SECONDS", 1e6)
        yield


@pytest.fixture(scope="module", autouse=True)
def _quick_choices(quick_choices: None) -> None:
    """Replaces the choices of fitted models, which take most of the time of small fits and do not matter here."""
