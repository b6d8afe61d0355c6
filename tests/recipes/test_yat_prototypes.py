"""MNIST by prototypes: signs and inputs, a tiny synthetic folder from end to end, and one epoch of the real digits."""

import gzip
import json
import struct
from pathlib import Path

import pytest
import torch

from recipes import yat_prototypes as study


def write_idx(path: Path, values: torch.Tensor) -> None:
    header = b"\0\0\x08" + bytes([values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape)
    path.write_bytes(gzip.compress(header + bytes(values.flatten().tolist())))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three classes of 5 x 4 pixels, each with its own bright rows."""
    generator = torch.Generator().manual_seed(0)
    for part, count in (("train", 90), ("t10k", 30)):
        labels = torch.arange(count) % 3
        images = torch.randint(0, 60, (count, 5, 4), generator=generator)
        images[torch.arange(count), labels] += 150
        write_idx(tmp_path / f"{part}-images-idx3-ubyte.gz", images)
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte.gz", labels)
    return tmp_path


def test_an_inverted_classifier_gives_the_logits_of_the_negative_image() -> None:
    x = torch.randn(7, 5, 4)
    for product in ("inner", "Yat"):
        model = study.classifier(study.Setting(product, size=3.0), (5, 4), 3)
        other = study.inverted(model)
        torch.testing.assert_close(study.logits(other, x), study.logits(model, -x))
        assert torch.equal(study.prototypes(other), -study.prototypes(model))
        if product == "inner":
            torch.testing.assert_close(study.logits(other, x), -study.logits(model, x))


def test_prototypes_start_at_the_configured_length() -> None:
    for product in ("inner", "Yat"):
        w = study.prototypes(study.classifier(study.Setting(product, size=7.0), (28, 28), 10))
        assert w.shape == (10, 784)
        assert w.norm(dim=1).square().mean().sqrt().item() == pytest.approx(7, rel=0.05)


def test_inputs_are_standardised_by_the_training_images_alone(folder: Path) -> None:
    raw = study.read(folder)
    assert raw.x.shape == (90, 5, 4)
    assert 0 <= raw.x.min() < raw.x.max() <= 1
    plain = study.prepared(raw, "0 to 1")
    assert plain is raw
    standard = study.prepared(raw, "standardised")
    assert standard.x.mean().abs() < 1e-6
    assert standard.x.std().item() == pytest.approx(1, rel=1e-5)
    torch.testing.assert_close(standard.test_x, (raw.test_x - raw.x.mean()) / raw.x.std())
    even = study.prepared(raw, "length 1")
    for x in (even.x, even.test_x):
        torch.testing.assert_close(x.flatten(1).norm(dim=1), torch.ones(len(x)))


def test_training_learns_and_is_reproducible(folder: Path) -> None:
    digits = study.read(folder)
    for product in ("inner", "Yat"):
        setting = study.Setting(product, batch_size=5)
        model, outcome = study.train(setting, digits, seed=1, epochs=12)
        again = study.train(setting, digits, seed=1, epochs=12)[1]
        assert outcome == again
        assert outcome.accuracy > 90
        assert len(outcome.lengths) == 13
        assert outcome.growth == pytest.approx(100 * (outcome.lengths[-1] / outcome.lengths[0] - 1))
        assert outcome.lengths[-1] == pytest.approx(study.prototypes(model).detach().norm(dim=1).mean().item())
        assert (outcome.alpha is None) is (product == "inner")
        if product == "inner":
            assert outcome.inverted < 50


@pytest.mark.long
def test_a_tiny_run_writes_its_results_and_figures(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    out = folder / "out"
    study.main(study.Config(data=folder, out=out, seeds=(0, 1), epochs=1))
    report = json.loads((out / "results.json").read_text())
    assert len(report["table"]) == len(study.TABLE)
    assert len(report["search"]) == len(study.searched())
    assert capsys.readouterr().out.count("inverted") == len(study.TABLE) + len(study.searched())
    for name in ("yat_prototypes.png", "yat_lengths.png", "yat_inversion.png"):
        assert (out / name).stat().st_size > 5_000


def test_the_error_for_a_missing_folder_names_it(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"missing; name the folder of MNIST's idx files with --data$"):
        study.read(tmp_path / "none")


@pytest.mark.slow
def test_one_epoch_of_the_real_digits(shared_data: Path) -> None:
    digits = study.read(shared_data / "mnist")
    inner, yat = (study.train(study.Setting(p), digits, seed=0, epochs=1)[1] for p in ("inner", "Yat"))
    assert inner.accuracy > 88
    assert yat.accuracy > 88
    assert inner.inverted < 1
    assert yat.inverted > 30
