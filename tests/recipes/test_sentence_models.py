"""The comparison of kernels on sentences, at a tiny size."""

import gzip
import json
from pathlib import Path

import pytest

from recipes import sentence_models
from recipes.sentence_models import BAG, TOKENS, Config
from tests.refusals import refused

pytest.importorskip("tokenizers")
pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")


@pytest.fixture
def tiny(tmp_path: Path) -> Config:
    words = {"1": "a lovely warm film", "0": "a dull cold film"}
    rows = [f"{label}\t{text} {i}" for i in range(40) for label, text in words.items()]
    (tmp_path / "films.tsv.gz").write_bytes(gzip.compress("\n".join(rows).encode()))
    for split in ("train", "valid"):
        (tmp_path / f"corpus.{split}.txt").write_text("\n".join(words.values()) * 20)
    (tmp_path / "more.txt").write_text("\n".join(words.values()) * 9)
    return Config(
        data=tmp_path,
        corpora=(tmp_path / "corpus", tmp_path / "more.txt"),
        sets=("films",),
        kernels=("attention",),
        pretrained=("attention",),
        ablation=(),
        out=tmp_path / "out",
        seeds=(0, 1),
        embed_dim=8,
        depth=1,
        num_heads=2,
        context=16,
        vocab_size=60,
        epochs=2,
        corpus_epochs=1,
    )


@pytest.mark.long
def test_every_side_is_measured_on_validation_and_test(tiny: Config) -> None:
    sentence_models.main(tiny)
    report = json.loads((tiny.out / "results.json").read_text())
    assert report["seeds"] == [0, 1]
    assert {name: len(runs) for name, runs in report["films"].items()} == {
        BAG: 1,
        "attention": 2,
        f"attention, {TOKENS}": 2,
        "attention, pretrained": 2,
    }
    for runs in report["films"].values():
        assert all(set(run) == {"valid", "test"} and 0 <= run["test"] <= 1 for run in runs)
    assert report["films"][BAG][0]["test"] == 1
    assert (tiny.out / "sentence_models.png").stat().st_size > 1000
    sentence_models.main(tiny)  # reads the existing results
    assert json.loads((tiny.out / "results.json").read_text()) == report


def test_the_error_for_an_unknown_kernel_names_it() -> None:
    with refused(ValueError, "no kernel 'magic'", "exact, low rank, attention"):
        Config(kernels=("magic",))
