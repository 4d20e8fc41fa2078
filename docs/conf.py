"""Settings of the site that `make docs` builds from the pages of this folder and from the package's docstrings."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "site"))

import isomargin

project = "isomargin"
version = release = isomargin.__version__
copyright = "the authors of isomargin"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
extensions += ["commands", "docstrings", "mathml", "root_pages", "run_examples"]  # of this folder, in docs/site
exclude_patterns = ["_build", "images", "site"]
default_role = "py:obj"  # names in backquotes in docstrings become links where they are public
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80
copybutton_selector = "div:not(.output) > div.highlight > pre"

myst_heading_anchors = 4
html_theme = "furo"
html_title = "isomargin"
html_static_path = ["site/static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_show_search_summary = False  # summaries need a server, and the search works from a disk
