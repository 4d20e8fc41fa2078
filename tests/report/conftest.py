"""The sets of embeddings whose reports are opened, and the browser that opens them.

A set is made and its report written once; every test gets a tab of its own.
"""

import numpy as np
import pytest
from browser import DESKTOP, SharedBrowser, Tab, why_not
from report_data import HOSTILE, SIZES, clusters, evaluated, hostile_examples, written

SHARED = SharedBrowser()


@pytest.fixture(scope="session")
def plain_data():
    """42 classes of one to eight images, the last two without a positive pair."""
    vectors, numbers = clusters(SIZES)
    return vectors, np.array([f"class {number:02}" for number in numbers])


@pytest.fixture(scope="session")
def plain(plain_data, tmp_path_factory):
    """The report of one run."""
    return written(tmp_path_factory, {"plain": evaluated(*plain_data)}, title="A plain report")


@pytest.fixture(scope="session")
def two_runs(plain_data, tmp_path_factory):
    """The report of two runs on the same classes; the second is more consistent, and its distances are larger."""
    vectors, numbers = clusters(SIZES, dimensions=32, widths=(0.8, 0.9), seed=1)
    labels = np.array([f"class {number:02}" for number in numbers])
    return written(tmp_path_factory, {"uneven": evaluated(*plain_data), "even": evaluated(vectors, labels)})


@pytest.fixture(scope="session")
def hostile(tmp_path_factory):
    """The report of classes and runs whose names attack it."""
    vectors, numbers = clusters(np.full(len(HOSTILE), 4), widths=(0.4, 1.2), seed=2)
    names = np.array(HOSTILE)
    runs = {
        "<img src=x onerror=alert(2)>": evaluated(vectors, names[numbers]),
        "</script><script>alert(2)</script>": evaluated(vectors + 0.1, names[numbers]),
    }
    examples = {next(iter(runs)): {HOSTILE[0]: hostile_examples()}}
    title = "</title><script>alert(3)</script>"
    return written(tmp_path_factory, runs, title=title, intervals=False, examples=examples)


@pytest.fixture(scope="session")
def many(tmp_path_factory):
    """The report of more classes than the table shows at first or next, with pairs counted in bins."""
    evaluation = evaluated(*clusters(np.full(701, 6), dimensions=32, widths=(0.3, 0.8), seed=3))
    assert evaluation.method == "binned"
    return written(tmp_path_factory, {"many": evaluation}, intervals=False)


@pytest.fixture
def browser_context():
    """A browser without a network, the same for all tests that follow each other."""
    if reason := why_not():
        pytest.skip(reason)
    return SHARED.context()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item, nextitem):
    """Close the browser behind the last test that uses it."""
    try:
        return (yield)
    finally:
        if "browser_context" not in getattr(nextitem, "fixturenames", ()):
            SHARED.close()


@pytest.fixture
def new_tab(browser_context):
    """Make empty tabs; what they note is for the test to look at."""
    before, tabs = browser_context.pages, []

    def make(color_scheme="light", viewport=DESKTOP):
        page = browser_context.new_page()
        page.set_viewport_size(viewport)
        page.emulate_media(color_scheme=color_scheme)
        tabs.append(Tab(page))
        return tabs[-1]

    yield make
    for tab in tabs:
        # Nothing that a report remembers may reach the next test.
        tab.page.evaluate("() => { try { localStorage.clear(); sessionStorage.clear(); } catch {} }")
    # The last tab stays until the next test is over: without one the browser forgets plotly's compiled script.
    for page in (*before, *(tab.page for tab in tabs[:-1])):
        page.close()


@pytest.fixture
def show(new_tab):
    """Open reports; the test fails if one of them does what no report may."""
    shown = []

    def open_report(report, **options):
        shown.append(new_tab(**options))
        return shown[-1].open(report.path)

    yield open_report
    problems = [problem for tab in shown for problem in tab.problems]
    assert not problems, "\n".join(problems)
