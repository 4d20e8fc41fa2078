"""Modules of optional packages are left out of the tests of docstrings where their package is not installed."""

import importlib.util

NEEDED = {
    "torchmetrics": "torchmetrics",
    "sentence_transformers": "sentence_transformers",
    "lightning": "pytorch_lightning",
}
"""By the name of a file in isomargin/integrations: the package that it imports."""

collect_ignore = [
    f"src/isomargin/integrations/{name}.py"
    for name, package in NEEDED.items()
    if importlib.util.find_spec(package) is None
]
