from collections.abc import Iterator

import pytest


@pytest.fixture(scope="package", autouse=True)
def small_chunks() -> Iterator[None]:
    """The few points of these tables go through in chunks, as many do, where pairs are listed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fredholm.evaluation.listed.CHUNK_ELEMENTS", 600)
        yield


@pytest.fixture(scope="module", autouse=True)
def _quick_choices(quick_choices: None) -> None:
    """What fitted models choose matters here nowhere, and is most of the time of small fits."""
