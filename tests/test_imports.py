"""Imports point one way, and importing the library needs no optional dependency."""

import ast
import importlib.util
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fredholm._progress import ProgressBar

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "fredholm"

# A package may import from earlier rows and from itself; names in one row never import each other.
LAYERS = (
    {"_settings", "_precision", "_progress", "_version"},
    {"storage"},
    {"domains"},
    {"kernels", "fields", "distributed"},
    {"evaluation"},
    {"quadrature"},
    {"operators"},
    {"layers"},
    {"blocks"},
    {"encoders"},
    {"models"},
    {"analysis", "pretrained"},
    {"tasks"},
    {"training", "verification"},
    {"comparison"},
    {"report", "export"},
    {"estimators"},
    {"fredholm"},
    {"cli"},
    {"__main__"},
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
OUTSIDE = {"recipes", "benchmarks", "tests"}
OPTIONAL = (
    "scipy",
    "sklearn",
    "PIL",
    "kornia",
    "torchmetrics",
    "tensorboard",
    "matplotlib",
    "torch_geometric",
    "torchvision",
    "tokenizers",
    "soundfile",
    "trimesh",
    "triton",
    "jinja2",
    "vl_convert",
    "huggingface_hub",
    "torchao",
    "transformers",
    "timm",
    "onnx",
    "onnxscript",
    "onnxruntime",
)


def imported_names(source: str, module: str, *, is_package: bool) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import in `source`, those inside functions and `if TYPE_CHECKING` included."""
    package = module if is_package else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = importlib.util.resolve_name("." * node.level + base, package)
            # `from fredholm import kernels` imports the package kernels, not something of the root.
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def layer(name: str) -> str | None:
    """The layer of a dotted name: "fredholm" for the root, None for other libraries."""
    first, _, rest = name.partition(".")
    if first != "fredholm":
        return None
    second = rest.partition(".")[0]
    is_module = (SOURCE / second).is_dir() or (SOURCE / f"{second}.py").is_file()
    return second if second in RANK or (second and is_module) else "fredholm"


def violations(source: str, module: str, *, is_package: bool = False) -> list[str]:
    source_layer = module.partition(".")[2].partition(".")[0] or "fredholm"
    if source_layer not in RANK:
        return [f"{module}: its place in the import order is not stated in LAYERS"]
    found = []
    for line, name in imported_names(source, module, is_package=is_package):
        target = layer(name)
        if name.partition(".")[0] in OUTSIDE | {"torchvision"}:
            found.append(f"{module}:{line} imports {name}")
        elif target not in (None, source_layer) and RANK.get(target, len(LAYERS)) >= RANK[source_layer]:
            found.append(f"{module}:{line} imports {name}, but {source_layer} comes before {target} or beside it")
    return found


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=module_name)
def test_imports_point_one_way(path: Path) -> None:
    found = violations(path.read_text(), module_name(path), is_package=path.name == "__init__.py")
    assert not found, "\n".join(found)


def test_progress_bars_start_no_thread() -> None:
    """When memory is short, a thread can die before it begins, and its parent would wait forever."""
    for path in SOURCE.rglob("*.py"):
        names = {
            name.partition(".")[0] for _, name in imported_names(path.read_text(), module_name(path), is_package=False)
        }
        assert "tqdm" not in names or path.name == "_progress.py"
    threads = threading.active_count()
    with ProgressBar(total=1, disable=True):
        assert threading.active_count() == threads


def import_cycle(imports: dict[str, set[str]]) -> list[str]:
    """A cycle of imports: each module imports the next, and the last the first. Empty if there is none."""
    done: set[str] = set()

    def follow(path: list[str]) -> list[str]:
        for target in sorted(imports.get(path[-1], set()) - done):
            if target in path:
                return path[path.index(target) :]
            if found := follow([*path, target]):
                return found
        done.add(path[-1])
        return []

    return next((found for module in sorted(imports) if (found := follow([module]))), [])


def test_no_files_import_each_other() -> None:
    """Each `__init__.py` is left out: it re-exports names, and the files of its package do not import through it."""
    paths = {module_name(path): path for path in SOURCE.rglob("*.py") if path.name != "__init__.py"}
    imports: dict[str, set[str]] = {}
    for module, path in paths.items():
        names = {name for _, name in imported_names(path.read_text(), module, is_package=False)}
        imports[module] = {name for name in names | {name.rpartition(".")[0] for name in names} if name in paths}
    found = import_cycle(imports)
    assert not found, " -> ".join([*found, *found[:1]])


def test_an_import_cycle_is_found() -> None:
    assert not import_cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()})
    assert import_cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c"]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("fredholm.kernels.mlp", "import fredholm.evaluation.dense"),
        ("fredholm.kernels.mlp", "from fredholm.evaluation import Dense"),
        ("fredholm.kernels.mlp", "from fredholm import evaluation"),
        ("fredholm.kernels.mlp", "from ..evaluation.dense import Dense"),
        ("fredholm.kernels.mlp", "from .. import evaluation"),
        (
            "fredholm.kernels.mlp",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from fredholm import models",
        ),
        ("fredholm.kernels.mlp", "def f():\n    from fredholm.training import Trainer"),
        ("fredholm.kernels.mlp", "from fredholm import quadrature"),
        ("fredholm.evaluation.dense", "from fredholm import quadrature"),
        ("fredholm.quadrature.anchors", "from fredholm import operators"),
        ("fredholm.models.itnet", "from fredholm import IntegralOperator"),
        ("fredholm.models.itnet", "import fredholm"),
        ("fredholm.training.engine", "from fredholm.cli import main"),
        ("fredholm.training.engine", "from recipes import digits"),
        ("fredholm.tasks.images", "import torchvision.transforms"),
        ("fredholm.utils", "import torch"),
    ],
)
def test_the_check_catches(module: str, source: str) -> None:
    assert violations(source, module)


@pytest.mark.parametrize(
    ("module", "source", "is_package"),
    [
        ("fredholm.kernels.mlp", "import torch\nfrom fredholm import domains\nfrom .kernel import Kernel", False),
        ("fredholm.kernels", "from .mlp import MLP\nfrom ..domains import Domain", True),
        ("fredholm", "from . import domains, models\nfrom ._version import __version__", True),
        ("fredholm.cli.train", "import fredholm\nfrom fredholm.training import Trainer", False),
        ("fredholm.training.engine", "from fredholm._version import __version__", False),
    ],
)
def test_the_check_allows(module: str, source: str, is_package: bool) -> None:
    assert violations(source, module, is_package=is_package) == []


@pytest.mark.parametrize("folder", ["recipes", "benchmarks"])
def test_nothing_outside_the_library_imports_torchvision(folder: str) -> None:
    for path in (ROOT / folder).rglob("*.py"):
        names = [name for _, name in imported_names(path.read_text(), f"{folder}.{path.stem}", is_package=False)]
        assert not [name for name in names if name.partition(".")[0] == "torchvision"], path


def test_importing_the_library_needs_no_optional_dependency() -> None:
    program = f"import sys, fredholm; print(*sorted({set(OPTIONAL)!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize("words", [["--help"], ["--version"], []])
def test_help_and_version_of_the_command_line_need_no_torch(words: list[str]) -> None:
    program = f"import sys; from fredholm.cli import main; main({words!r}); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "fredholm" in done.stdout
