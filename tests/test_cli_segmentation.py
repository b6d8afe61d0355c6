"""The command line on images with masks: train, evaluate, predict."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fredholm import cli
from tests.command_line import call, check_refused
from tests.tasks.masks.build import squares, write_folder, write_npz, write_pairs

NO_PATCHES = [
    *("--task.model.embed-dim", "8", "--task.model.depth", "1", "--task.model.num-heads", "2"),
    *("--task.num-pixels", "16", "--training.epochs", "1", "--training.batch-size", "4"),
    "--training.no-tensorboard",
]
TINY = [*NO_PATCHES, "--task.patch-sizes", "4"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of squares in a folder, and a run of one epoch on them."""
    folder = tmp_path_factory.mktemp("masks")
    write_folder(folder / "squares", 10)
    assert cli.main(["train", "segmentation", str(folder / "squares"), "--run-dir", str(folder / "run"), *TINY]) == 0
    return folder


def test_train_of_a_file_at_several_scales_and_augmented(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("kornia")
    file = write_npz(tmp_path / "a.npz", 8, split=[0] * 4 + [1, 1, 2, 2])
    scales = ["--task.patch-sizes", "4", "8", "--task.balance-scales", "--task.model.kernel", "attention"]
    crops = ["--task.augmentation.crop-scale", "0.5", "1.0", "--task.augmentation.hue", "0.1"]
    code, out, _ = call(
        capsys, "train", "segmentation", file, "--run-dir", tmp_path / "run", *NO_PATCHES, *scales, *crops
    )
    assert code == 0
    assert out.splitlines()[-1].startswith("test mean_iou: ")
    saved = json.loads((tmp_path / "run" / "config.json").read_text())
    assert saved["run"]["task"]["patch_sizes"] == [4, 8]
    assert saved["facts"]["target"]["names"] == ["ground", "red", "blue"]


def test_evaluate_at_the_runs_settings_and_at_others(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = {}
    for name, more in {
        "whole": [],
        "same": ["--task", "stride=1"],
        "stride": ["--task", "stride=4"],
        "size": ["--task", "image-size=24,24"],
        "valid": ["--split", "valid"],
    }.items():
        code, out, err = call(capsys, "evaluate", folder / "run", "--json", *more)
        assert (code, err) == (0, "")
        found[name] = json.loads(out)
    assert {"accuracy", "mean_iou", "loss"} <= found["whole"].keys()
    assert found["whole"] == found["same"]
    assert len({found[name]["loss"] for name in ("whole", "stride", "size", "valid")}) == 4


def test_predict_prints_saves_and_draws(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    images, _ = squares(1, (20, 30), seed=3)
    Image.fromarray(images[0]).save(tmp_path / "large.png")
    files = [folder / "squares" / "images" / "1.png", tmp_path / "large.png"]
    code, out, err = call(capsys, "predict", folder / "run", *files, "--format", "json")
    rows = json.loads(out)
    assert (code, err) == (0, "")
    assert [list(row) for row in rows] == [["file", "share ground", "share red", "share blue"]] * 2
    assert all(sum(list(row.values())[1:]) == pytest.approx(1) for row in rows)
    outputs = ["--save", tmp_path / "saved", "--picture", tmp_path / "all"]
    code, out, err = call(capsys, "predict", folder / "run", *files, *outputs, "--batch-size", "1")
    assert (code, err) == (0, f"wrote {tmp_path / 'all.png'}\nwrote 2 files in {tmp_path / 'saved'}\n")
    assert [line.split("\t")[1] for line in out.splitlines()[1:]] == [
        str(tmp_path / "saved" / name) for name in ("1.png", "large.png")
    ]
    for name, shape, row in (("1.png", (16, 16), rows[0]), ("large.png", (20, 30), rows[1])):
        with Image.open(tmp_path / "saved" / name) as mask:
            numbers = np.array(mask)
        assert numbers.shape == shape
        assert [float((numbers == k).mean()) for k in range(3)] == pytest.approx(list(row.values())[1:])
    with Image.open(tmp_path / "all.png") as picture:
        assert min(picture.size) > 300
    # saved masks can serve as training data
    write_pairs(tmp_path / "again", images, np.array(Image.open(tmp_path / "saved" / "large.png"))[None])
    again = np.array(Image.open(tmp_path / "again" / "masks" / "0.png"))
    assert np.array_equal(again, numbers)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "segmentation", *TINY], "no images are given; pass a folder"),
        (["train", "segmentation", "absent", *TINY], "no images at 'absent'; pass a folder with images and masks"),
        (["train", "segmentation", "empty", *TINY], "empty/images: has no images (.png, .jpg,"),
        (["train", "segmentation", "unmasked", *TINY], "unmasked/images/2.png: has no mask; add unmasked/masks/2.png"),
        (["train", "segmentation", "bare", *TINY], "bare/masks/2.png: has no image in bare/images"),
        (["train", "segmentation", "sizes", *TINY], "sizes/masks/2.png: is 8 x 16; its image 2.png is 16 x 16"),
        (
            ["train", "segmentation", "unknown", *TINY],
            "unknown/masks/2.png: has the class number 7; there are 3 classes",
        ),
        (["train", "segmentation", "unnamed", *TINY], "unnamed/classes.txt: names no class"),
        (["train", "segmentation", "blank", *TINY], "blank: all pixels of all masks are 255, not labelled"),
        (["train", "segmentation", "broken", *TINY], "broken/masks/2.png: not a PNG, JPEG, BMP, WebP or TIFF image"),
        (
            ["train", "segmentation", "squares", *NO_PATCHES, "--task.patch-sizes", "5"],
            "encoders.Image: patches of 5 x 5 do",
        ),
        (
            ["train", "segmentation", "squares", *TINY, "--task.model.pool", "mean"],
            "--task.model.pool is",
        ),
        (
            ["train", "segmentation", "squares", *TINY[:4], "--task.model.kernel", "recurrence"],
            "SelectiveStateSpace integrates over",
        ),
        (["predict", "run", "absent.png"], "absent.png: there is no such file"),
        (["predict", "run", "text.png"], "text.png: not a PNG, JPEG, BMP, WebP or TIFF image"),
        (["predict", "run", "long.png"], "long.png: is 2 x 200, too long for the model's 16 x 16"),
        (["predict", "run", "one.png", "--save", "absent/a"], "--save: there is no folder 'absent'"),
        (["predict", "run", "one.png", "--save", "."], "--save: one.png exists; name another file, or pass --overw"),
        (["predict", "run", "one.png", "--picture", "one.png"], "--picture: one.png exists; name another file"),
        (["predict", "run", "one.png", "--picture", "one"], "--picture: one.png exists; name another file"),
        (["predict", "run", "one.png", "--picture", "one.tar"], "--picture: one.tar ends in .tar; expected .png or"),
        (["predict", "run", "one.png", "--picture", "absent/a.png"], "--picture: there is no folder 'absent'"),
        (["predict", "run", "one.png", "--comparison", "a"], "--comparison has no effect: the task 'segmentation'"),
        (
            ["predict", "run", "one.png", "--picture", "one", "--overwrite"],
            "--picture: one.png is one of the files to predict; name another file",
        ),
        (
            ["evaluate", "run", "--task", "image-size=10,10"],
            "--task image-size is (10, 10); expected multiples of 4",
        ),
    ],
)
def test_bad_input_is_one_line_and_code_2(
    arguments: list[str],
    message: str,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("unmasked", "bare", "sizes", "unknown", "unnamed", "blank", "broken"):
        write_folder(Path(name), 4)
    Path("unmasked/masks/2.png").unlink()
    Path("bare/images/2.png").unlink()
    Image.new("L", (16, 8)).save("sizes/masks/2.png")
    Image.new("L", (16, 16), 7).save("unknown/masks/2.png")
    Path("unnamed/classes.txt").write_text("\n")
    for mask in Path("blank/masks").iterdir():
        Image.new("L", (16, 16), 255).save(mask)
    Path("broken/masks/2.png").write_text("no image")
    for name in ("images", "masks"):
        (Path("empty") / name).mkdir(parents=True)
    Path("text.png").write_text("no image")
    Image.new("RGB", (200, 2)).save("long.png")
    Image.new("RGB", (16, 16)).save("one.png")
    for name in ("run", "squares"):
        Path(name).symlink_to(folder / name)
    check_refused(capsys, tmp_path, message, *arguments)
