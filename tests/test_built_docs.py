"""The pages as HTML: nothing is loaded from a network, and formulas are drawn without one."""

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import final

import pytest

pytest.importorskip("sphinx", reason="Sphinx is not installed: pip install '.[docs]'")

pytestmark = pytest.mark.slow
DOCS = Path(__file__).resolve().parent.parent / "docs"
LOADING = {"script": "src", "img": "src", "iframe": "src", "source": "src", "embed": "src", "object": "data"}
STYLED = re.compile(r"""@import\s+["']?([^"';]+)|url\(\s*["']?([^"')]+)""")


@final
class Loads(HTMLParser):
    """Addresses that a page loads by itself, not those that it links to."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        loads_link = tag == "link" and values.get("rel") in (
            "stylesheet",
            "icon",
            "preload",
            "manifest",
            "modulepreload",
        )
        address = values.get("href" if loads_link else LOADING.get(tag, ""))
        self.found += [address] if address else []
        self.found += [imported or url for imported, url in STYLED.findall(values.get("style") or "")]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built pages, without the reference, which takes a minute and loads the same files as all pages."""
    html = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-b", "html", "-D", "exclude_patterns=_build,reference"]
    subprocess.run([*command, "-d", str(html.parent / "trees"), str(DOCS), str(html)], check=True, capture_output=True)
    return html


def test_pages_load_only_local_files(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 50
    for page in pages:
        loads = Loads()
        loads.feed(page.read_text())
        assert any("mathjax" in address for address in loads.found) == ('class="math' in page.read_text())
        for address in loads.found:
            assert not re.match(r"(\w+:)?//", address), f"{page.name} loads {address}"
            assert address.startswith("data:") or (page.parent / address.partition("?")[0]).is_file(), address


def test_styles_load_only_local_files(site: Path) -> None:
    styles = sorted((site / "_static").rglob("*.css"))
    assert styles
    for style in styles:
        for imported, url in STYLED.findall(style.read_text()):
            assert not re.match(r"(\w+:)?//", imported or url), f"{style.name} loads {imported or url}"


def test_tables_are_rendered_as_tables(site: Path) -> None:
    rule = re.compile(r"^\|[-\u2013\u2014:| ]+\|$", re.MULTILINE)  # the line below a table's header
    assert [page.name for page in sorted(site.rglob("*.html")) if rule.search(page.read_text())] == []


def test_the_reference_has_no_warnings(tmp_path: Path) -> None:
    """The reference is the part of `make docs` that `site` leaves out; `make docs` stops at a warning."""
    places = ["-c", str(DOCS), str(DOCS / "reference"), str(tmp_path)]
    # without types, whose links take a third of the time
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-W",
        "--keep-going",
        "-b",
        "dummy",
        "-D",
        "autodoc_typehints=none",
    ]
    built = subprocess.run([*command, *places], check=False, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr


SHOWN = (
    *("analysis.Alignment", "encoders.PointCloud.Config", "kernels.Convolution", "models.ITNet.Config"),
    *("models.KernelMachine", "tasks.FieldLearning"),
)


def test_entries_of_the_reference_show_signatures_and_attributes_as_they_are_written(tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "index.rst").write_text(
        "\n".join(["entries\n=======\n", *(f".. autoclass:: fredholm.{name}\n" for name in SHOWN)])
    )
    places = ["-c", str(DOCS), str(tmp_path / "pages"), str(tmp_path / "text")]
    extensions = "extensions=sphinx.ext.autodoc,sphinx.ext.napoleon"
    command = [sys.executable, "-m", "sphinx", "-q", "-b", "text", "-D", extensions, *places]
    subprocess.run(command, check=True, capture_output=True)
    page = (tmp_path / "text" / "index.txt").read_text()
    signatures = page.replace("\n", " ")
    assert "kernels.Convolution(in_dim: int, out_dim: int" in signatures
    assert "num_rounds: int = ROUNDS" in signatures
    assert re.search(r"num_centres: .*\n\n +Number of points of the signal: farthest-point sampling", page)
    noises = ("*args", "Alias for field", "<class", "<factory>", "tuple[~")
    assert [noise for noise in noises if noise in page] == []


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
@pytest.mark.parametrize(
    "page",
    [
        "index",
        "studies/yat",
        *(pytest.param(p, marks=pytest.mark.long) for p in ("operator", "kernels/infinite_attention")),
    ],
)
def test_formulas_are_drawn_without_a_network(page: str, site: Path, tmp_path: Path) -> None:
    sandbox = ["--no-sandbox", f"--user-data-dir={tmp_path}", "--disable-gpu"]
    offline = ["--host-resolver-rules=MAP * ~NOTFOUND", "--disable-background-networking"]
    command = ["chromium", "--headless", *sandbox, *offline, "--virtual-time-budget=20000", "--dump-dom"]
    drawn = subprocess.run([*command, (site / f"{page}.html").as_uri()], check=True, capture_output=True, timeout=120)
    formulas = (site / f"{page}.html").read_text().count('class="math notranslate')
    assert formulas > 0
    assert drawn.stdout.decode().count("<mjx-container") == formulas
