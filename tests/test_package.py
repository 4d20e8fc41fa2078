"""The package as a whole: what importing it costs, and that every public name is there and explained."""

import inspect
import subprocess
import sys

import pytest

import isomargin as im

HEAVY = ("torch", "pytorch_metric_learning", "numba", "pandas", "scipy", "matplotlib", "pyarrow", "rich")


def heavy_after(statement):
    """Which of the heavy packages a fresh interpreter has loaded after this."""
    script = f"import sys\n{statement}\nprint(*[name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stderr.split())


def test_import_loads_nothing_heavy():
    assert heavy_after("import isomargin; isomargin.__version__; dir(isomargin); isomargin.InputError") == set()


def test_help_and_version_load_nothing_heavy():
    script = """
import isomargin.cli.app
for arguments in (["--help"], ["evaluate", "--help"], ["demo", "--help"], ["--version"], []):
    sys.argv = ["isomargin", *arguments]
    try:
        isomargin.cli.app.main()
    except SystemExit as ended:
        assert not ended.code
"""
    assert heavy_after(script) <= {"rich"}


@pytest.mark.parametrize("command", [["-m", "isomargin"], ["-c", "from isomargin.cli.app import main; main()"]])
def test_the_command_can_be_started(command):
    done = subprocess.run([sys.executable, *command, "--version"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"isomargin {im.__version__}\n", "")


def public_things():
    """Every public function and class, those of public modules too, by name."""
    for name in im.__all__:
        value = getattr(im, name)
        if inspect.ismodule(value):
            for below, member in vars(value).items():
                defined = getattr(member, "__module__", "").startswith(value.__name__)
                if defined and callable(member) and not below.startswith("_"):
                    yield f"{name}.{below}", member
        else:
            yield name, value


@pytest.mark.parametrize("name", im.__all__)
def test_every_public_name_is_there_and_has_a_docstring(name):
    value = getattr(im, name)
    assert (inspect.getdoc(value) or "").strip()
    assert name in dir(im)


@pytest.mark.parametrize(("name", "value"), [pytest.param(*each, id=each[0]) for each in public_things()])
def test_every_public_function_and_class_has_an_example_that_runs(name, value):
    assert ">>>" in (value.__doc__ or ""), f"{name} has no example"


def test_public_names_are_sorted_and_there_once():
    assert im.__all__ == sorted(set(im.__all__))


def test_an_unknown_name_is_no_attribute():
    with pytest.raises(AttributeError, match="'isomargin' has no attribute 'nonsense'"):
        im.nonsense  # noqa: B018
    assert not hasattr(im, "nonsense")
