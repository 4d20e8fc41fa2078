"""The figures' style: names are shown safely, lines can be told apart, files are written whole and always the same."""

import warnings

import matplotlib
import pytest
from by_hand import HOSTILE
from matplotlib.figure import Figure

from isomargin.core.errors import InputError
from isomargin.figures import gaussian_curves, style
from isomargin.theory import GaussianClass


def small():
    """Draw the figure that is drawn fastest."""
    return gaussian_curves([GaussianClass(0.6, 0.15, 1.3, 0.1)])


@pytest.mark.parametrize("name", HOSTILE)
def test_any_name_can_be_drawn_without_a_warning_and_is_not_read_as_a_formula(name, tmp_path):
    figure = Figure()
    axis = figure.subplots()
    axis.plot([0, 1], label=style.label(name))
    axis.set_title(style.label(name))
    axis.legend()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for suffix in ("svg", "pdf", "png"):
            figure.savefig(tmp_path / f"figure.{suffix}")
    assert len(axis.get_legend().get_texts()) == 1
    shown = style.label(name)
    assert shown.removeprefix(style.INVISIBLE).isprintable()
    assert len(shown.replace(r"\$", "$")) <= style.LONGEST + 1
    assert not matplotlib.cbook.is_math_text(shown)


def test_an_ordinary_name_is_shown_as_it_is():
    for name in ("glyphs-tcm", "runs/a b", "Ô U+00D4", "TCM⁺", "ρ"):
        assert style.label(name) == name


def test_names_that_shortening_makes_equal_are_told_apart():
    names = ["a" * 40 + "b" + "c" * 40, "a" * 40 + "d" + "c" * 40, "short"]
    shown = style.labels(names)
    assert len(set(shown)) == 3
    assert shown[2] == "short"


def test_lines_differ_in_colour_and_dashes_and_marker():
    looks = [style.look(number, marker=True) for number in range(5)]
    for part in ("color", "linestyle", "marker"):
        assert len({str(look[part]) for look in looks}) == 5
    assert len({(look["color"], str(look["linestyle"])) for look in map(style.look, range(35))}) == 35


@pytest.mark.parametrize(
    ("suffix", "start"), [(".svg", b"<?xml"), (".pdf", b"%PDF"), (".png", b"\x89PNG"), (".PNG", b"\x89PNG")]
)
def test_the_suffix_says_the_format_and_the_same_figure_is_the_same_file(tmp_path, suffix, start):
    written = []
    for name in ("one", "two"):
        style.save(small(), tmp_path / f"{name}{suffix}")
        written.append((tmp_path / f"{name}{suffix}").read_bytes())
    assert written[0].startswith(start)
    assert written[0] == written[1]


def test_what_cannot_be_written_is_told_in_a_sentence_and_leaves_nothing(tmp_path):
    with pytest.raises(InputError, match=r"figure.gif should end in .svg, .pdf or .png"):
        style.save(small(), tmp_path / "figure.gif")
    with pytest.raises(InputError, match="does not exist: create it first"):
        style.save(small(), tmp_path / "no" / "figure.png")
    assert list(tmp_path.iterdir()) == []


def test_the_users_own_settings_neither_change_figures_nor_are_changed():
    plain = small()
    with matplotlib.rc_context({"axes.spines.top": True, "font.size": 30, "axes.labelsize": 30, "text.usetex": True}):
        before = dict(matplotlib.rcParams)
        drawn = small()
        assert dict(matplotlib.rcParams) == before
    assert not drawn.axes[0].spines["top"].get_visible()
    assert drawn.axes[-1].xaxis.label.get_size() == plain.axes[-1].xaxis.label.get_size() < 12
    assert not drawn.axes[0].title.get_usetex()


def test_figures_are_drawn_without_pyplot():
    import subprocess
    import sys

    script = "import sys, isomargin.figures as f; f.gaussian_curves(); sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0
    script = "import sys, isomargin.figures; sys.exit('matplotlib' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0
