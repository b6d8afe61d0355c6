"""Sphinx: how the pages become HTML (`make docs`). Nothing in the HTML is loaded from a network."""

import re

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

import fredholm
from fredholm._version import __version__
from fredholm.storage.rebuildable import Rebuildable

project = "fredholm"
author = "The Fredholm authors"
copyright = f"2026, {author}"
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx-mathjax-offline",
]
napoleon_use_ivar = True  # the fields of a named tuple are documented by themselves
default_role = "code"
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"fredholm {version}"
html_static_path = ["_static"]
html_css_files = ["front.css"]
# MathJax's menu could load what is not in its folder.
mathjax3_config = {"options": {"enableMenu": False}}

# Sphinx would show its (*args, **kwargs) in place of what kernels, encoders and models are built from.
del Rebuildable.__new__

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True  # the name of a default, not all that it holds
autodoc_default_options = {"members": True, "show-inheritance": True}


def link_names(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Make code that names something of the library, such as `kernels.MLP`, a link to its entry in the reference."""
    entries = app.env.domains["py"].objects
    at_top = {name.rpartition(".")[2]: name for name in entries if name.count(".") == 2}
    for code in list(doctree.findall(nodes.literal)):
        name = code.astext().partition("(")[0].removeprefix("fredholm.")
        target = f"fredholm.{name}" if "." in name else at_top.get(name) if name in fredholm.__all__ else None
        if target in entries and isinstance(code.parent, nodes.paragraph | nodes.entry):
            entry = entries[target]
            uri = f"{app.builder.get_relative_uri(docname, entry.docname)}#{entry.node_id}"
            code.replace_self(nodes.reference("", "", code.deepcopy(), internal=True, refuri=uri))


def mend_fields(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Undo what Napoleon reads into docstrings that hold no types.

    Names of one entry such as `weight_ih, weight_hh` stay together: Sphinx would take the first for a type. An
    attribute's first line such as `Number of points: all of them` stays a sentence, not a type and its description.
    """
    lines[:] = [re.sub(r"^:(ivar|param) [\w, ]+:", lambda field: field[0].replace(", ", ","), line) for line in lines]
    if what in ("attribute", "property"):
        starts = [line.removeprefix(":type: ") for line in lines if line.startswith(":type: ")]
        if starts:
            described = [line for line in lines if not line.startswith(":type: ")]
            lines[:] = [f"{starts[0]}: {described[0]}", *described[1:]]


def name_factories(
    app: Sphinx, what: str, name: str, obj: object, options: object, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Write defaults that are built anew as `...`: with `<factory>` Sphinx cannot read the other parameters."""
    return signature and signature.replace("<factory>", "..."), returns


def shorten_entry(app: Sphinx, domain: str, kind: str, content: addnodes.desc_content) -> None:
    """Write values that are classes by their names, and nothing below fields that have no description of their own."""
    signature = content.parent.children[0]
    for text in list(signature.findall(nodes.Text)):
        text.parent.replace(text, nodes.Text(re.sub(r"<class '[\w.]*?(\w+(\.Config)?)'>", r"\1", text)))
    if content.astext().startswith("Alias for field number"):
        content.clear()


def setup(app: Sphinx) -> None:
    """Connect what this file adds to Sphinx."""
    app.connect("doctree-resolved", link_names)
    app.connect("autodoc-process-docstring", mend_fields, priority=900)  # after napoleon
    app.connect("autodoc-process-signature", name_factories)
    app.connect("object-description-transform", shorten_entry)
