"""Modules of optional packages are left out of the tests of docstrings where their package is not installed."""

import importlib.util

NEEDED = {
    "integrations/torchmetrics": "torchmetrics",
    "integrations/sentence_transformers": "sentence_transformers",
    "integrations/lightning": "pytorch_lightning",
    "measure/on_cluster": "ray",
    "measure/ray_neighbours": "ray",
    "measure/ray_parts": "ray",
}
"""By the name of a file in isomargin: the package that it imports."""

collect_ignore = [
    f"src/isomargin/{name}.py" for name, package in NEEDED.items() if importlib.util.find_spec(package) is None
]
