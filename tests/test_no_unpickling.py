"""No user's file is unpickled: unpickling would run code from the file."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import fredholm

ROOT = Path(fredholm.__file__).parent
MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
CALLS = {"torch.load", "torch.jit.load", "torch.hub.load", "torch.hub.load_state_dict_from_url", "pandas.read_pickle"}


def unpickling(source: str) -> Iterator[str]:
    """Names in Python source that could unpickle a file."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            named = {f"{name}.{alias.name}" for name in names for alias in node.names}
            yield from sorted(({name.partition(".")[0] for name in names} & MODULES) | (named & CALLS))
        if isinstance(node, ast.Attribute) and ast.unparse(node) in CALLS:
            yield ast.unparse(node)
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False":
            yield "allow_pickle"


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import joblib.numpy_pickle",
        "import torch\ntorch.load(file, weights_only=True)",
        "from torch import load",
        "import numpy as np\nnp.load(file, allow_pickle=True)",
    ],
)
def test_the_search_finds_every_form(source: str) -> None:
    assert list(unpickling(source))


@pytest.mark.slow
def test_the_library_unpickles_nothing() -> None:
    found = {str(path): list(unpickling(path.read_text())) for path in ROOT.rglob("*.py")}
    assert len(found) > 300
    assert {path: names for path, names in found.items() if names} == {}
