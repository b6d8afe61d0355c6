from collections.abc import Iterator

import pytest


@pytest.fixture(scope="package", autouse=True)
def small_chunks() -> Iterator[None]:
    """The few points of these tables go through in chunks, as many do, where pairs are listed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fredholm.evaluation.listed.CHUNK_ELEMENTS", 600)
        yield


@pytest.fixture(scope="package", autouse=True)
def few_trees() -> Iterator[None]:
    """How many trees boosting grows in vain before it ends says nothing here, and is most of the time of small fits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fredholm.models.fitted.boosted_trees.PATIENCE", 5)
        yield
