"""Settings of the documentation site, which `tools/docs` builds with the repository as source folder.

The pages are Markdown (MyST). Links between them are those that work on a code host, pages in `benchmarks/` included,
so that the strict build checks each of them.
"""

from __future__ import annotations

from importlib.metadata import distribution
from importlib.metadata import version as installed
from pathlib import Path

HERE = Path(__file__).resolve().parent

project = "ooc-mdp"
author = "the ooc-mdp developers"
project_copyright = f"2026, {author}"
release = version = installed("ooc-mdp")

extensions = ["myst_nb", "sphinx.ext.mathjax"]
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb"}
root_doc = "docs/index"
include_patterns = ["docs/**", "benchmarks/**", "CONTRIBUTING.md", "CHANGELOG.md"]
exclude_patterns = [".*", "**/.*", "build", "dist", "ooc_mdp", "tests", "tools", "docs/changelog/[!R]*"]

myst_enable_extensions = ["dollarmath", "html_image"]
myst_heading_anchors = 6
nb_execution_mode = "off"  # the tests run the notebooks
nitpicky = True
highlight_language = "none"

# MathJax with its fonts in one file, so that equations are drawn without the net. Nothing else of the package is used:
# as an extension it does not declare whether it is safe for parallel reading, which is a warning.
mathjax_path = "tex-svg.js"
MATHJAX = distribution("sphinx-mathjax-offline").locate_file(f"sphinx-mathjax-offline/static/mathjax/{mathjax_path}")

html_theme = "pydata_sphinx_theme"
html_title = "ooc-mdp"
html_show_sourcelink = False
html_copy_source = False
html_static_path = [str(HERE / "_static"), str(MATHJAX)]
templates_path = [str(HERE / "_templates")]
html_additional_pages = {"index": "redirect.html"}
html_theme_options = {
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "header_links_before_dropdown": 8,
}
