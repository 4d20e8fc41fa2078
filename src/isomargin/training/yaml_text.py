"""YAML as recipes use it: YAML 1.2's numbers, no code, and nothing that grows beyond what a person writes."""

from __future__ import annotations

import re
from typing import Any

import yaml

from isomargin.core.errors import InputError

LARGEST = 2**20  # characters, with aliases written out; recipes have a few thousand


class YamlLoader(yaml.SafeLoader):
    """Reads numbers as YAML 1.2 does: 1e-4 is a number, where PyYAML reads text."""


class YamlDumper(yaml.SafeDumper):
    """Puts text in quotes that the loader would read as a number."""


for _class in (YamlLoader, YamlDumper):
    _class.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"), list("-+0123456789.")
    )


def parse_yaml(text: str, source: str) -> Any:
    """Parse one YAML document; `source` names it in errors.

    Aliases are written out wherever settings are checked or shown, so a few lines of nested aliases could fill the
    memory. The size of the document with its aliases written out is therefore counted before anything is built.

    >>> parse_yaml("{rate: 1e-4, classes: [a, b]}", "the recipe")
    {'rate': 0.0001, 'classes': ['a', 'b']}
    >>> parse_yaml("&a [*a]", "the recipe")
    Traceback (most recent call last):
    isomargin.InputError: the recipe has an alias that contains itself: write the settings out
    """
    if len(text) > LARGEST:
        raise InputError(f"{source} has {len(text):,} characters: a recipe has at most {LARGEST:,}")
    loader = YamlLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if _expanded_size(node, {}, source) > LARGEST:
            raise InputError(f"{source} has aliases that stand for more than {LARGEST:,} characters: write them out")
        return loader.construct_document(node)
    except RecursionError as error:
        raise InputError(f"{source} is nested too deeply: a recipe is settings in sections") from error
    finally:
        loader.dispose()


def _expanded_size(node: yaml.Node, known: dict[int, int | None], source: str) -> int:
    """Count the characters of a node with its aliases written out; `known` holds the sizes of nodes seen before."""
    if id(node) in known:
        size = known[id(node)]
        if size is None:  # it is being counted: it contains itself
            raise InputError(f"{source} has an alias that contains itself: write the settings out")
        return size
    known[id(node)] = None
    inner: list[yaml.Node] = []
    if isinstance(node, yaml.MappingNode):
        inner = [part for pair in node.value for part in pair]
    elif isinstance(node, yaml.SequenceNode):
        inner = node.value
    own_size = 1 + (len(node.value) if isinstance(node, yaml.ScalarNode) else 0)
    known[id(node)] = size = own_size + sum(_expanded_size(part, known, source) for part in inner)
    return size
