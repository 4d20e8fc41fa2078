"""The list of deliberate faults fits the sources: each fault can be injected."""

import tomllib
from pathlib import Path

HERE = Path(__file__).parent


def test_the_text_of_each_fault_occurs_exactly_once_in_the_sources():
    sources = [path.read_text() for path in (HERE.parent / "src").rglob("*") if path.suffix in (".py", ".js")]
    faults = tomllib.loads((HERE / "faults" / "faults.toml").read_text())["fault"]
    lost = {fault["name"] for fault in faults if sum(text.count(fault["find"]) for text in sources) != 1}
    assert not lost, "change their `find` in tests/faults/faults.toml with the line that they break"
