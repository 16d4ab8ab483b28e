"""How Sphinx renders these pages: MyST's Markdown, API pages from the docstrings, the theme of NumPy and SciPy."""

import sys
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer

import weft

sys.path.insert(0, str(Path(__file__).parent))  # for the directives

project = "weft"
author = "the weft maintainers"
project_copyright = author
version = release = weft.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "command_options", "measured_times"]
myst_heading_anchors = 3  # headings down to ### can be linked to
myst_enable_extensions = ["tasklist"]
exclude_patterns = ["_build"]
templates_path = ["_templates"]

smartquotes = False  # an option is spelled with two hyphens
default_role = "py:obj"  # `contract` in a docstring links to what it names, where that is on a page
autodoc_member_order = "bysource"

html_theme = "pydata_sphinx_theme"
html_title = f"weft {release}"
html_theme_options = {
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "header_links_before_dropdown": 7,
    "footer_end": [],
}
html_sidebars = {"**": ["sections.html"]}
html_static_path = ["_static"]
html_css_files = ["weft.css"]
html_show_sourcelink = False
html_context = {"default_mode": "auto"}  # light or dark as the reader's system says
html_show_search_summary = False  # a browser lets no page that is opened as a file read the others


def setup(sphinx: Sphinx) -> None:
    sphinx.connect("builder-inited", one_signature)


def one_signature(sphinx: Sphinx) -> None:
    """Overloads are for type checkers. A reader sees one signature, with every keyword and its default."""
    for module in ("weft.api.contract", "weft.api.numpy_words", "weft.api.permute", "weft_bench.profiling.api"):
        analyzer = ModuleAnalyzer.for_module(module)
        analyzer.analyze()
        analyzer.overloads.clear()
