"""Sphinx: how the pages become HTML (`make docs`). Nothing in the HTML is loaded from a network."""

from fredholm._version import __version__

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
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"fredholm {version}"
html_static_path = ["_static"]
html_css_files = ["front.css"]
# MathJax's menu could load what is not in its folder.
mathjax3_config = {"options": {"enableMenu": False}}

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": True}
