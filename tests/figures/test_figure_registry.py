"""Every figure of the registry, drawn and written: a new one is tested the day it is added."""

import inspect
import warnings
from importlib import import_module
from itertools import cycle
from pathlib import Path

import pytest
from matplotlib.figure import Figure

import isomargin.figures as figures
from isomargin.figures.registry import FIGURES, NEEDS

ROOT = Path(__file__).parents[2]
STARTS = {".svg": b"<?xml", ".pdf": b"%PDF", ".png": b"\x89PNG"}
EVERY = pytest.mark.parametrize("kind", FIGURES.values(), ids=FIGURES)


@pytest.mark.parametrize(("kind", "suffix"), zip(FIGURES.values(), cycle(STARTS)), ids=FIGURES)
def test_a_figure_with_hostile_names_is_written_without_a_warning(kind, suffix, hostile_sources, tmp_path):
    first, *others = hostile_sources[kind.source]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = kind.draw() if first is None else kind.draw(first)
        assert isinstance(figure, Figure)
        figures.save(figure, tmp_path / f"figure{suffix}")
        assert (tmp_path / f"figure{suffix}").read_bytes().startswith(STARTS[suffix])
        assert any(axis.has_data() for axis in figure.axes)
        for source in others:
            kind.draw(source).draw_without_rendering()


@EVERY
def test_no_text_of_a_figure_with_hostile_names_is_a_formula_but_its_own(kind, hostile_sources):
    from matplotlib.cbook import is_math_text
    from matplotlib.text import Text

    for source in hostile_sources[kind.source]:
        figure = kind.draw() if source is None else kind.draw(source)
        texts = [text.get_text() for text in figure.findobj(Text)]
        own = ("$U_{", "$10^{", r"$\mathdefault{", r"$\times")
        assert [text for text in texts if is_math_text(text) and not any(each in text for each in own)] == []
        assert all("\x1b" not in text for text in texts)


@EVERY
def test_a_figure_is_a_module_and_a_public_function_of_its_name(kind):
    module = import_module(f"isomargin.figures.{kind.name}")
    assert getattr(figures, kind.name) is kind.draw is vars(module)[kind.name]
    assert kind.name in figures.__all__
    arguments = inspect.signature(kind.draw).parameters
    assert set(kind.options) <= set(arguments)
    assert kind.shows
    assert kind.source in NEEDS


@EVERY
def test_a_figure_has_its_place_in_the_documentation(kind):
    page = (ROOT / "docs" / "figures.md").read_text(encoding="utf-8")
    assert f"`{kind.name}`" in page
    assert f"images/figure-{kind.name}.png" in page
    assert (ROOT / "docs" / "images" / f"figure-{kind.name}.png").is_file()
