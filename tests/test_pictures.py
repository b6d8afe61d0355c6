"""The scripts of `make pictures` import, and one of their pictures is drawn."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from PIL import Image

pytest.importorskip("matplotlib")

PICTURES = Path(__file__).resolve().parent.parent / "docs" / "pictures"


def script(name: str) -> ModuleType:
    """A script as a module, which draws nothing until it is told."""
    spec = importlib.util.spec_from_file_location(name, PICTURES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # matplotlib copies tensors
def test_the_scripts_of_the_pictures_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawing, of_fields = script("draw"), script("draw_fields")
    assert (drawing.HERE, of_fields.HERE) == (PICTURES, PICTURES)
    monkeypatch.setattr(drawing, "HERE", tmp_path)
    drawing.draw_gallery()
    with Image.open(tmp_path / "gallery.png") as drawn, Image.open(PICTURES / "gallery.png") as kept:
        assert drawn.size == kept.size
