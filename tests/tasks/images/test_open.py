from pathlib import Path

import pytest
from PIL import Image

from fredholm.tasks.images import open_images


@pytest.fixture
def animals(tmp_path: Path) -> Path:
    for name in ("ant", "cat"):
        for index in range(4):
            path = tmp_path / "animals" / name / f"{index}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (4, 4), index).save(path)
    return tmp_path / "animals"


def write_idx(folder: Path) -> Path:
    folder.mkdir()
    for split in ("train", "t10k"):
        (folder / f"{split}-images-idx3-ubyte").write_bytes(
            bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 1, 5, 6])
        )
        (folder / f"{split}-labels-idx1-ubyte").write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 2, 0, 1]))
    return folder


def test_each_source_is_recognised(animals: Path, tmp_path: Path) -> None:
    assert len(open_images("digits").train) == 1437
    assert open_images(str(animals)).train.answer_names == ("ant", "cat")
    assert open_images(animals, image_size=(2, 2)).train.image_size == (2, 2)
    idx = write_idx(tmp_path / "idx")
    assert open_images(idx).train.answer_names == ("0", "1")
    for path in list(idx.iterdir()):
        path.rename(path.with_name(path.name.replace("-idx", ".idx")))
    assert open_images(idx).train.answer_names == ("0", "1")


def test_a_folder_may_be_called_digits(animals: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    animals.rename(animals.with_name("digits"))
    monkeypatch.chdir(animals.parent)
    assert open_images("./digits").train.answer_names == ("ant", "cat")


def test_home_is_expanded(animals: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(animals.parent))
    assert open_images("~/animals").train.answer_names == ("ant", "cat")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("digit", "no data called 'digit': did you mean 'digits'? Otherwise pass the path of a folder"),
        ("xylophone", "no data called 'xylophone': pass 'digits' or the path of a folder"),
        ("animls", "no data called 'animls': did you mean 'animals'?"),
        ("absent/folder", "no data called 'absent/folder': pass 'digits'"),
    ],
)
def test_unknown_name(animals: Path, monkeypatch: pytest.MonkeyPatch, data: str, message: str) -> None:
    monkeypatch.chdir(animals.parent)
    with pytest.raises(ValueError, match=message.replace("?", r"\?")) as caught:
        open_images(data)
    assert "\n" not in str(caught.value)


def test_unknown_path_names_its_neighbour(animals: Path) -> None:
    with pytest.raises(ValueError, match=rf"did you mean '{animals}'\?"):
        open_images(animals.with_name("animales"))
    with pytest.raises(ValueError, match=r"no data called '.*/digitz': pass 'digits'"):
        open_images(animals.with_name("digitz"))


def test_a_file_is_no_folder(animals: Path) -> None:
    path = animals / "ant" / "0.png"
    with pytest.raises(ValueError, match=f"{path} is a file; pass an .npz or .parquet file"):
        open_images(path)


def test_incomplete_idx_folder(tmp_path: Path) -> None:
    folder = write_idx(tmp_path / "idx")
    (folder / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(ValueError, match="no t10k-labels-idx1-ubyte"):
        open_images(folder)
