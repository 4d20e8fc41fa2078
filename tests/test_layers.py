"""The layering that docs/architecture.md draws: a layer imports only from those before it, inside functions too."""

import ast
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "isomargin"

LAYERS = (
    "core",
    "io",
    "measure.settings",
    "measure.pairs",
    "measure.scores",
    "measure.statistics",
    "measure",
    "equalize",
    "theory",
    "thresholds",
    "losses",
    "models",
    "data",
    "training",
    "figures",
    "report",
    "integrations",
    "cli",
)
"""Packages and modules from left to right; `measure` is what lies directly in it."""


def module_names():
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


MODULES = dict(module_names())


def layer_of(module):
    """The longest layer that a module lies in."""
    found = [layer for layer in LAYERS if module == layer or module.startswith(f"{layer}.")]
    return max(found, key=len) if found else None


def imported_modules(path):
    """Every module of the package that a file imports at run time, at its top or inside a function."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for_types = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in for_types:
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("isomargin"):
            package = (node.module or "").removeprefix("isomargin").lstrip(".")
            for alias in node.names:
                inside = f"{package}.{alias.name}".lstrip(".")
                yield inside if inside in MODULES else package
        elif isinstance(node, ast.Import):
            yield from (
                each.name.removeprefix("isomargin.") for each in node.names if each.name.startswith("isomargin.")
            )


@pytest.mark.parametrize("module", [name for name in MODULES if layer_of(name)])
def test_a_layer_imports_only_from_layers_before_it(module):
    here = LAYERS.index(layer_of(module))
    wrong = {
        target
        for target in imported_modules(MODULES[module])
        if layer_of(target) and LAYERS.index(layer_of(target)) > here
    }
    assert not wrong, f"{module} imports {', '.join(sorted(wrong))}, which are right of it"


def test_every_module_lies_in_a_layer():
    assert {name for name in MODULES if layer_of(name) is None} == {"", "__main__"}


def test_the_architecture_page_names_the_layers_in_this_order():
    page = (SOURCE.parent.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    drawn = re.search(r"<!-- layers -->\n(.*?)\n<!-- end -->", page, re.DOTALL)
    assert drawn, "docs/architecture.md has no list of layers"
    assert re.findall(r"^\| `([\w.]+)`", drawn[1], re.MULTILINE) == list(LAYERS)


def test_the_architecture_page_names_every_module():
    page = (SOURCE.parent.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    kept_short = {"losses", "figures"}  # one file per loss and per figure: the page names the files that they share
    named = [
        path.name
        for name, path in MODULES.items()
        if not path.name.startswith("__") and name.split(".")[0] not in kept_short
    ]
    missing = {name for name in named if name not in page and f"`{name.removesuffix('.py')}`" not in page}
    assert not missing, f"docs/architecture.md does not name {', '.join(sorted(missing))}"
