"""What a release consists of agrees with itself: extras, bounds, the version, and the pages that name them."""

import ast
import re
import tomllib
from pathlib import Path

import pytest
import yaml

from isomargin.core.extras import EXTRAS

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SUPPORT = (ROOT / "docs" / "support.md").read_text(encoding="utf-8")
NOT_FOR_USERS = {"dev", "docs", "bench"}
COLLECTIONS = {"all"}
"""Extras that only name others, which are tested by themselves."""
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]


def assigned(file, name):
    """The value that a script assigns to a name, as its syntax tree."""
    for node in ast.parse((ROOT / "release" / file).read_text(encoding="utf-8")).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return node.value
    raise AssertionError(f"{file} has no {name}")


def test_every_extra_for_users_is_tried_by_the_release_check_and_has_a_row_in_the_support_matrix():
    expected = set(PROJECT["optional-dependencies"]) - NOT_FOR_USERS - COLLECTIONS
    assert {ast.literal_eval(key) for key in assigned("smoke_extras.py", "SMOKE").keys} == expected
    assert set(re.findall(r"^\| `([a-z-]+)` \| [\d.–]+ \| [\d–]", SUPPORT, flags=re.MULTILINE)) == expected


def test_an_error_about_a_missing_package_names_an_extra_that_exists():
    assert set(EXTRAS) <= set(PROJECT["optional-dependencies"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_names_only_extras_that_exist(page):
    text = page.read_text(encoding="utf-8")
    named = {
        extra
        for group in re.findall(r"isomargin\[([^\]]+)\]|'\.\[([^\]]+)\]'", text)
        for extra in "".join(group).split(",")
    }
    if page.name == "stores.md":  # its tables have a column of extras
        named |= set(re.findall(r"\| `?([a-z-]+)`? \|$", text, flags=re.MULTILINE)) - {"extra", "none"}
    assert named <= set(PROJECT["optional-dependencies"])


def test_the_oldest_versions_are_the_lower_bounds_of_the_core():
    lines = (ROOT / "constraints-oldest.txt").read_text(encoding="utf-8").splitlines()
    pinned = [line for line in lines if not line.startswith("#")]
    assert pinned == [bound.replace(">=", "==") for bound in PROJECT["dependencies"]]


def test_the_version_is_written_in_one_place():
    assert PROJECT["dynamic"] == ["version"]
    assert "version" not in PROJECT
    assert "version" not in yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))


def test_the_citation_has_what_the_format_requires():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert citation["license"] == PROJECT["license"]
    assert "2307.04047" in citation["references"][0]["url"]
