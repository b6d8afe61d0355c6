"""The study of kernels that replace attention, at a tiny size."""

import json
from pathlib import Path

import pytest

from recipes import linearise
from recipes.linearise import KERNELS, Config
from tests.refusals import refused

pytest.importorskip("matplotlib")


@pytest.mark.long
def test_every_kernel_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text.txt").write_text("the cat sat on the mat. " * 200)
    tiny = Config(
        data=tmp_path / "text.txt",
        out=tmp_path / "out",
        rates=(1e-3,),
        layer_steps=2,
        whole_steps=2,
        batches=2,
        lengths=(16,),
        epochs=1,
    )
    linearise.main(tiny)
    report = json.loads((tiny.out / "results.json").read_text())
    assert tuple(report["kernels"]) == tuple(KERNELS)
    for found in report["kernels"].values():
        assert found["rate"] == 1e-3
        assert all(0 < found[split][stage] < 9 for split in ("valid", "test") for stage in ("layers", "whole"))
        assert len(found["errors of layers"]) == 4
    assert report["speed over attention"]["attention"] == {"16": 1.0}
    assert (tiny.out / "linearise.png").stat().st_size > 1000
    monkeypatch.setattr(linearise, "replaced", None)
    linearise.main(tiny)
    assert json.loads((tiny.out / "results.json").read_text())["kernels"] == report["kernels"]


def test_the_error_for_an_unknown_kernel_names_it() -> None:
    with refused(ValueError, "no kernel 'magic'", "linear attention"):
        Config(kernels=("magic",))
