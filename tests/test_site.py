"""The pages of the documentation: all of them are in the site, links lead somewhere, and the examples' runner is right.

The site itself is built by `make docs`, not here.
"""

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest

import isomargin as im

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if "_build" not in path.parts)
FENCE = re.compile(r"^(`{3,}).*?^\1\n", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(\s*([^)\s]+)")


@pytest.fixture(scope="module")
def cells():
    """The module that runs the examples of a page."""
    name = "site_cells"
    specification = importlib.util.spec_from_file_location(name, DOCS / "site" / "cells.py")
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    specification.loader.exec_module(module)
    return module


def anchors(path):
    """The anchors of the headings of a page, as GitHub and MyST make them."""
    headings = re.findall(r"^#{1,4} (.*)", FENCE.sub("", path.read_text(encoding="utf-8")), flags=re.MULTILINE)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading).strip().replace(" ", "-") for heading in plain}


def test_every_page_is_in_the_table_of_contents():
    trees = re.findall(r"```\{toctree\}\n(.*?)```", (DOCS / "index.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    lines = [line for tree in trees for line in tree.splitlines() if line and not line.startswith(":")]
    listed = [re.sub(r".*<(.*)>", r"\1", line) for line in lines]
    assert sorted(listed) == sorted(
        str(path.relative_to(DOCS).with_suffix("")) for path in PAGES if path != DOCS / "index.md"
    )


@pytest.mark.parametrize("path", PAGES, ids=[str(path.relative_to(DOCS)) for path in PAGES])
def test_relative_links_of_a_page_lead_to_files_and_headings(path):
    for link in LINK.findall(FENCE.sub("", path.read_text(encoding="utf-8"))):
        if re.match(r"\w+:", link):
            continue
        place, _, anchor = link.partition("#")
        target = (path.parent / place).resolve() if place else path
        assert target.exists(), link
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), link


def test_every_public_name_is_in_the_reference():
    reference = "".join(path.read_text(encoding="utf-8") for path in (DOCS / "reference").glob("*.md"))
    for name in im.__all__:
        entry = rf"auto\w+:: (isomargin\.)?{name}\n"
        assert re.search(entry, reference), name


def test_every_integration_and_store_is_in_the_reference():
    reference = "".join(path.read_text(encoding="utf-8") for path in (DOCS / "reference").glob("*.md"))
    source = DOCS.parent / "src" / "isomargin"
    for folder in ("integrations", "io/stores"):
        for path in (source / folder).glob("[a-z]*.py"):
            assert f"automodule:: isomargin.{folder.replace('/', '.')}.{path.stem}\n" in reference


@pytest.mark.parametrize("path", PAGES, ids=[str(path.relative_to(DOCS)) for path in PAGES])
def test_every_mark_of_an_example_is_understood(path, cells):
    text = path.read_text(encoding="utf-8")
    found = list(cells.CELL.finditer(text))
    assert len(found) == len(re.findall(r"^<!-- run", text, flags=re.MULTILINE))
    for match in found:
        cells.read_options(match["options"])


EXAMPLES = """# A page
<!-- run -->
```python
number = 6 * 7
open("picture.svg", "w").write("<svg/>")
print("it is", number)
```
```text
replaced
```
<!-- expect: it is 42 | it is 43 -->
<!-- run: ; exit=3; shows=picture.svg a picture -->
```sh
ls *.svg
exit 3
```
<!-- run: no_such_package -->
```python
import no_such_package
```
"""


def test_examples_are_run_in_one_session_and_shown_with_their_output(cells, tmp_path):
    text, problems = cells.render(EXAMPLES, "folder/page", tmp_path / "page.md", tmp_path / "build", "1.0")
    assert problems == ["the examples do not print 'it is 43', which the text speaks of"]
    assert "print(" in text
    assert "\nit is 42\n" in text
    assert "\npicture.svg\n" in text
    assert "![a picture](../_build/runs/folder/page/picture.svg)" in text
    assert (tmp_path / "build/runs/folder/page/picture.svg").read_text() == "<svg/>"
    assert "replaced" not in text
    assert "<!--" not in text
    assert "not run when the site was built, without no_such_package" in text


def test_an_example_that_fails_is_a_problem_and_is_run_again(cells, tmp_path):
    page = "# A page\n<!-- run -->\n```sh\nisomargin evaluate nothing.npz\n```\n<!-- run -->\n```python\n1 / 0\n```\n"
    for _ in range(2):
        _, (problem,) = cells.render(page, "page", tmp_path / "page.md", tmp_path / "build", "1.0")
        assert "exit code 2, not 0" in problem
        assert "nothing.npz" in problem


def test_output_is_kept_until_the_examples_change(cells, tmp_path):
    page = "# A page\n<!-- run -->\n```python\nprint(1)\n```\n"
    cells.render(page, "page", tmp_path / "page.md", tmp_path / "build", "1.0")
    kept = tmp_path / "build/runs/page.json"
    kept.write_text(
        json.dumps({**json.loads(kept.read_text()), "results": [{"output": "kept", "error": None, "seconds": 0}]})
    )
    assert "kept" in cells.render(page, "page", tmp_path / "page.md", tmp_path / "build", "1.0")[0]
    changed = page.replace("print(1)", "print(2)")
    assert "kept" not in cells.render(changed, "page", tmp_path / "page.md", tmp_path / "build", "1.0")[0]


def test_a_page_on_made_vectors_says_so_and_its_numbers_are_not_checked(cells, tmp_path):
    page = f"# A page\n<!-- run -->\n```python\nprint('file {cells.MADE}')\n```\n<!-- expect: 5% -->\n"
    text, problems = cells.render(page, "page", tmp_path / "page.md", tmp_path / "build", "1.0")
    assert not problems
    assert "built without the data set" in text
    assert cells.MADE in (DOCS / "tutorials" / "tutorial_data.py").read_text(encoding="utf-8")
