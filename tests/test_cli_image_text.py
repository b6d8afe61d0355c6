"""The command line on images with text: train, evaluate, predict."""

import json
from pathlib import Path

import pytest

from fredholm import cli
from tests.command_line import call, check_refused
from tests.tasks.image_texts.build import examples, write_folder, write_jsonl, write_npz, write_pictures

NO_PATCHES = [
    *("--task.model.embed-dim", "8", "--task.model.depth", "1", "--task.model.num-heads", "2"),
    *("--task.model.kernel", "mlp"),
    *("--task.model.kernel.width", "4", "--task.model.kernel.num-frequencies", "2"),
    *("--task.context", "16", "--task.tokens.vocab-size", "80", "--task.position-frequencies", "2"),
    *("--training.epochs", "1", "--training.batch-size", "8", "--training.no-tensorboard"),
]
TINY = [*NO_PATCHES, "--task.patch-size", "4"]
TRAIN = ["train", "image-text"]
ROW = {"images": ["pictures/red.png", "pictures/blue.png"], "text": "a red one", "label": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data in splits with a run on them."""
    folder = tmp_path_factory.mktemp("image-text")
    write_folder(folder / "data", splits=True, count=36)
    run = ["--run-dir", str(folder / "run"), "--task.measure", "text-heavy", "--task.shuffle-images"]
    assert cli.main([*TRAIN, str(folder / "data"), *TINY, *run]) == 0
    return folder


def test_evaluate_measures_on_both_held_out_splits(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, more in {"valid": ["--split", "valid"], "test": []}.items():
        code, out, err = call(capsys, "evaluate", folder / "run", "--json", *more)
        found = json.loads(out)
        assert (code, err, found["examples"]) == (0, "", 12)
        assert {"accuracy", "balanced_accuracy", "auroc", "loss"} <= found.keys()
        code, out, _ = call(capsys, "evaluate", folder / "run", *more)
        assert out.startswith(f"{name} accuracy: {100 * found['accuracy']:.2f} %\n{name} balanced_accuracy: ")


def test_predict_classifies_every_line_without_labels(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{name: row[name] for name in ("images", "text")} for row in examples(3)]
    unlabelled = write_jsonl(folder / "data" / "asked" / "new.jsonl", ["", *rows])
    write_pictures(unlabelled.parent / "pictures")
    packed = write_npz(folder / "new.npz", count=2, splits=False)
    code, out, err = call(capsys, "predict", folder / "run", unlabelled, packed, "--format", "json")
    found = json.loads(out)
    assert (code, err, len(found)) == (0, "", 5)
    assert list(found[0]) == ["file", "line", "class", "probability"]
    assert [row["line"] for row in found] == [2, 3, 4, 1, 2]
    assert all(row["class"] in ("true", "false") and 0.5 <= row["probability"] <= 1 for row in found)
    code, out, _ = call(capsys, "predict", folder / "run", unlabelled)
    first = found[0]
    assert out.splitlines()[1].split("\t") == [str(unlabelled), "2", first["class"], f"{first['probability']:.4f}"]


def test_a_finished_run_is_resumed_and_not_overwritten(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*TRAIN, str(folder / "data"), *TINY, "--run-dir", str(folder / "run"), "--task.shuffle-images"]
    arguments += ["--task.measure", "text-heavy"]
    code, _, err = call(capsys, *arguments)
    assert (code, "is not empty" in err) == (2, True)
    code, out, _ = call(capsys, *arguments, "--resume")
    assert code == 0
    assert "going on at step 2 of 2" in out
    assert out.splitlines()[-1].startswith("test accuracy: ")


@pytest.mark.parametrize(
    "more", [["--task.images-apart"], ["--task.model", "two-stream"], ["--task.modalities", "image"]]
)
def test_other_models_and_modalities(folder: Path, tmp_path: Path, more: list[str]) -> None:
    sizes = TINY
    if more[-1] == "two-stream":
        sizes = [*TINY, "--task.model.fusion", "concatenation"]
    if more[-1] == "image":
        sizes = [option for option in TINY if option not in ("--task.context", "16", "--task.tokens.vocab-size", "80")]
    assert cli.main([*TRAIN, str(folder / "data"), *more, *sizes, "--run-dir", str(tmp_path / "run")]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*TRAIN, *TINY], "no images with text are given; pass a .jsonl file"),
        ([*TRAIN, "goad.jsonl", *TINY], "no JSONL at 'goad.jsonl': did you mean 'good.jsonl'?"),
        ([*TRAIN, "empty.jsonl", *TINY], "empty.jsonl: is empty"),
        ([*TRAIN, "cut.jsonl", *TINY], "cut.jsonl, line 2: does not parse as JSON"),
        ([*TRAIN, "keys.jsonl", *TINY], "keys.jsonl, line 1: has no 'images'"),
        ([*TRAIN, "types.jsonl", *TINY], "types.jsonl, line 2: 'text' is 7; expected a text"),
        ([*TRAIN, "blank.jsonl", *TINY], "blank.jsonl, line 1: 'text' is empty"),
        ([*TRAIN, "missing.jsonl", *TINY], "missing.jsonl, line 2: image pictures/none.png: cannot be read as an"),
        (
            [*TRAIN, "broken.jsonl", *TINY],
            "broken.jsonl, line 2: image broken.png: not a PNG, JPEG, BMP, WebP or TIFF image",
        ),
        ([*TRAIN, "counts.jsonl", *TINY], "counts.jsonl, line 2: has 1 images, but line 1 has 2"),
        ([*TRAIN, "unlabelled.jsonl", *TINY], "unlabelled.jsonl, line 2: has no 'label'"),
        ([*TRAIN, "alike.jsonl", *TINY], "alike.jsonl has the classes ['true']; expected at least 2"),
        ([*TRAIN, "splits", *TINY], "splits/test.jsonl, line 1: label: class 'maybe' is none of false, true"),
        (
            [*TRAIN, "good.jsonl", *NO_PATCHES, "--task.patch-size", "3"],
            "encoders.Image: patches of 3 x 3 do not divide",
        ),
        ([*TRAIN, "good.jsonl", *TINY, "--task.tokens.vocab-size", "9"], "--task.tokens.vocab-size is 9; expected at"),
        (
            [*TRAIN, "good.jsonl", *TINY, "--task.image-run", "run"],
            "--task.image-run: run does not fit this model: it has no patch_embedding.weight, expected",
        ),
        ([*TRAIN, "good.jsonl", *TINY, "--task.text-run", "splits"], "splits"),
        ([*TRAIN, "good.jsonl", "--task.measure", "even"], "--task.measure is 'even'; expected one of "),
        (["evaluate", "run", "--task", "context=64"], "context is 64; the run was made with 16"),
        (["predict", "run", "counts.jsonl"], "counts.jsonl, line 2: has 1 images, but line 1 has 2"),
        (["predict", "run", "one.jsonl"], "one.jsonl, line 1: has 1 images; the model reads 2 with a text"),
        (["predict", "run", "missing.jsonl"], "missing.jsonl, line 2: image pictures/none.png: cannot be read"),
        (["predict", "run", "pictures/red.png"], "pictures/red.png: is of no known kind; expected .jsonl"),
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
    write_pictures(tmp_path / "pictures")
    write_pictures(tmp_path / "splits" / "pictures")
    (tmp_path / "broken.png").write_text("no image")
    (tmp_path / "empty.jsonl").touch()
    for name, rows in {
        "good": examples(30),
        "cut": [ROW, '{"images": '],
        "keys": [{"text": "a", "label": 1}],
        "types": [ROW, {**ROW, "text": 7}],
        "blank": [{**ROW, "text": "  "}],
        "missing": [ROW, {**ROW, "images": ["pictures/red.png", "pictures/none.png"]}],
        "broken": [ROW, {**ROW, "images": ["pictures/red.png", "broken.png"]}],
        "counts": [ROW, {**ROW, "images": "pictures/red.png"}],
        "unlabelled": [ROW, {name: ROW[name] for name in ("images", "text")}],
        "alike": [ROW] * 20,
        "one": [{**ROW, "images": "pictures/red.png"}],
        "splits/train": examples(12),
        "splits/test": [{**ROW, "label": "maybe"}],
    }.items():
        write_jsonl(tmp_path / f"{name}.jsonl", rows)
    (tmp_path / "run").symlink_to(folder / "run")
    monkeypatch.chdir(tmp_path)
    check_refused(capsys, tmp_path, message, *arguments)
