"""The examples of docs/integrations.md print what the page shows."""

import importlib.util
import re
import warnings
from pathlib import Path

import pytest

from integrations.installed import in_one_worker
from isomargin.integrations._packages import prepare

pytestmark = in_one_worker

PAGE = Path(__file__).parents[2] / "docs" / "integrations.md"
EXAMPLE = re.compile(
    r"<!-- run(?:: (?P<needed>[^>]*))? -->\n```python\n(?P<code>.*?)```\n```text\n(?P<printed>.*?)```\n", re.S
)
FIRST, *OTHERS = EXAMPLE.finditer(PAGE.read_text(encoding="utf-8"))


def run(example, names, capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about few items, and by the libraries about themselves
        exec(example["code"], names)
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("{'")]
    assert lines == example["printed"].splitlines()


@pytest.mark.parametrize("example", OTHERS, ids=[example["needed"] or "scikit-learn" for example in OTHERS])
def test_an_example_prints_what_the_page_shows(example, capsys):
    for package in re.findall(r"\w+", example["needed"] or ""):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
        prepare(package)
    names = {"__name__": "example"}
    run(FIRST, names, capsys)
    run(example, names, capsys)


def test_every_integration_is_on_the_page_and_short():
    folder = PAGE.parents[1] / "src" / "isomargin" / "integrations"
    files = [path for path in folder.glob("*.py") if not path.name.startswith("_")]
    page = PAGE.read_text(encoding="utf-8")
    assert len(files) >= 6
    for path in files:
        assert f"isomargin.integrations.{path.stem} import" in page
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 150, path.name
