from collections.abc import Iterator

import pytest


@pytest.fixture(scope="package", autouse=True)
def small_chunks() -> Iterator[None]:
    """Makes chunks of listed pairs so small that the few points of these tables fill several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fredholm.evaluation.listed.CHUNK_ELEMENTS", 600)
        yield


@pytest.fixture(scope="module", autouse=True)
def _quick_choices(quick_choices: None) -> None:
    """Shortens model selection in fitted models: it takes most of the time of small fits and is not tested here."""
