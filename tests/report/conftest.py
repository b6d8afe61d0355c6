"""Pages that are written in full, however slow the machine is."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="package", autouse=True)
def _unhurried() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in ("examination", "kernel_pages"):
            patch.setattr(f"fredholm.report.{module}.SECONDS", 1e6)
        yield
