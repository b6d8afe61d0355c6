"""Every public name of the library has a docstring."""

import importlib
import inspect
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fredholm


def public_objects() -> Iterator[tuple[str, object]]:
    """(dotted name, object) of everything that the root and its packages export through `__all__`."""
    packages = [fredholm]
    for info in pkgutil.iter_modules(fredholm.__path__, "fredholm."):
        if info.ispkg:
            packages.append(importlib.import_module(info.name))
    for package in packages:
        for name in package.__all__:
            value = getattr(package, name)
            if inspect.isclass(value) or inspect.isfunction(value):
                yield f"{package.__name__}.{name}", value


def undocumented(name: str, value: object) -> list[str]:
    """Names of `value` and its public methods that have no docstring."""
    doc = (value.__doc__ or "").strip()
    # A dataclass without a docstring gets its signature as one.
    missing = [] if doc and not doc.startswith(f"{getattr(value, '__name__', '')}(") else [name]
    if inspect.isclass(value):
        members = [(attribute, getattr(value, attribute)) for attribute in vars(value) if not attribute.startswith("_")]
        missing += [
            f"{name}.{attribute}" for attribute, member in members if callable(member) and not inspect.getdoc(member)
        ]
    return missing


@pytest.mark.parametrize(("name", "value"), [pytest.param(name, value, id=name) for name, value in public_objects()])
def test_every_public_name_is_documented(name: str, value: object) -> None:
    assert undocumented(name, value) == []


def test_every_package_of_the_reference_is_an_attribute_after_import_fredholm() -> None:
    pages = (Path(__file__).parents[1] / "docs" / "reference").glob("*.md")
    named = {page.stem for page in pages} - {"index"}
    program = f"import fredholm; print(*(getattr(fredholm, name).__name__ for name in {sorted(named)}))"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert found.stdout.split() == [f"fredholm.{name}" for name in sorted(named)], found.stderr
    assert named <= set(dir(fredholm))


def test_the_documentation_check_catches() -> None:
    class Silent:
        """Has a docstring."""

        def method(self) -> None: ...

    assert undocumented("Silent", Silent) == ["Silent.method"]
    assert undocumented("silent", lambda: None) == ["silent"]
