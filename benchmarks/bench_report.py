"""Size and speed of the HTML report: file size, time until it can be used, and response time of the slider.

    python benchmarks/bench_report.py            # both sets, about three minutes on 2 cores
    python benchmarks/bench_report.py --quick    # only the smaller set

The numbers of classes are those of the test halves of iNaturalist-2018 and Stanford Online Products, because size and
speed of a report depend on the number of classes. Each class has five items. A page that only loads plotly is opened in
turn with the report, as a lower bound. Needs playwright and Chromium (`apt-get install chromium`).
"""

import argparse
import shutil
import statistics
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from measuring import MEGABYTE, seconds, verdict

SPECIES, PRODUCTS = 2_452, 11_316  # classes
ITEMS = 5  # per class
DIMENSIONS = 32
LARGEST, LATEST = 12 * MEGABYTE, 2.0  # limits in bytes and seconds for the SPECIES classes
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"]
OPENINGS, STEPS = 5, 30

STEP = """async steps => {
    const slider = document.getElementById("threshold"), times = [];
    const drawn = () => new Promise(done => requestAnimationFrame(() => setTimeout(done)));
    await drawn();
    for (let step = 0; step < steps; step++) {
        slider.value = Math.round((0.2 + 0.6 * step / steps) * slider.max);
        const begin = performance.now();
        slider.dispatchEvent(new Event("input", {bubbles: true}));
        await drawn();
        times.push((performance.now() - begin) / 1000);
    }
    return times;
}"""


READY, DRAWN = "html[data-ready=true]", "html:not([data-busy=true])"
FIRST_TEXT = "() => performance.getEntriesByName('first-contentful-paint').map(entry => entry.startTime)"


def make_evaluation(classes: int) -> Any:
    """Evaluate Gaussian clusters of different widths."""
    import isomargin

    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(classes), ITEMS)
    centres = generator.normal(size=(classes, DIMENSIONS))
    spread = np.linspace(0.3, 0.9, classes)[labels, None]
    vectors = centres[labels] + spread * generator.normal(size=(len(labels), DIMENSIONS))
    return isomargin.evaluate(vectors.astype(np.float32), [f"class {label:05}" for label in labels])


def open_page(browser: Any, path: Path) -> tuple[Any, float]:
    """Open a page in a new browser context; return the page and the seconds from navigation until it is ready."""
    context = browser.new_context(offline=True, viewport={"width": 1280, "height": 900})
    page = context.new_page()

    def until_ready() -> None:
        page.goto(path.as_uri(), wait_until="commit")
        page.locator(READY).wait_for(state="attached")

    return page, seconds(until_ready)


def open_in_turn(browser: Any, report: Path, bare: Path) -> dict[str, list[float]]:
    """Return the seconds until both pages are ready, until the report shows text and all plots, and of slider steps."""
    times: dict[str, list[float]] = {"bare": [], "report": [], "text": [], "drawn": [], "step": []}
    for _ in range(OPENINGS):
        page, duration = open_page(browser, bare)
        times["bare"].append(duration)
        page.context.close()
        page, duration = open_page(browser, report)
        times["report"].append(duration)
        times["drawn"].append(duration + seconds(lambda page=page: page.locator(DRAWN).wait_for(state="attached")))
        times["text"] += [milliseconds / 1000 for milliseconds in page.evaluate(FIRST_TEXT)]
        if not times["step"]:
            times["step"] = page.evaluate(STEP, STEPS)
        page.context.close()
    return times


def write_bare_page(path: Path) -> None:
    """Write a page that loads plotly and draws nothing."""
    from plotly.offline import get_plotlyjs

    ready = "document.documentElement.dataset.ready = 'true'"
    path.write_text(
        f"<!DOCTYPE html><meta charset=utf-8><body><script>{get_plotlyjs()}</script><script>{ready}</script>",
        encoding="utf-8",
    )


def measure(browser: Any, classes: int, folder: Path) -> None:
    """Print the size and speed of a report with this number of classes."""
    from isomargin.report.write import write_report

    evaluation = make_evaluation(classes)
    report, bare = folder / f"report-{classes}.html", folder / "bare.html"
    write = seconds(lambda: write_report(evaluation, report))
    write_without = seconds(lambda: write_report(evaluation, folder / "without.html", intervals=False))
    write_bare_page(bare)
    size = report.stat().st_size
    times = open_in_turn(browser, report, bare)
    ready, plotly, text, drawn, step = (
        statistics.median(times[name]) for name in ("report", "bare", "text", "drawn", "step")
    )
    span = f"({min(times['report']):.2f} to {max(times['report']):.2f}; plotly alone {plotly:.2f})"
    print(f"{classes:,} classes of {ITEMS} items")
    print(f"  written in    {write:6.1f} s, {write_without:.1f} s without intervals")
    print(
        f"  size          {size / MEGABYTE:6.1f} MB" + limit(classes, size <= LARGEST, f"{LARGEST / MEGABYTE:.0f} MB")
    )
    print(f"  text shown    {text:6.2f} s after navigation")
    print(f"  ready after   {ready:6.2f} s {span}" + limit(classes, ready <= LATEST, f"{LATEST:g} s"))
    print(f"  all drawn     {drawn:6.2f} s, including plots out of view")
    print(f"  slider step   {1000 * step:6.0f} ms, slowest {1000 * max(times['step']):.0f} ms")


def limit(classes: int, holds: bool, most: str) -> str:
    """Return whether a limit is met, if there is one for this number of classes."""
    return f", at most {most}: {verdict(holds)}" if classes == SPECIES else ""


def main() -> None:
    """Measure both sets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only the smaller set")
    quick = parser.parse_args().quick
    from playwright.sync_api import sync_playwright

    program = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if program is None:
        raise SystemExit("no browser is installed: apt-get install chromium")
    warnings.simplefilter("ignore", UserWarning)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        for classes in (SPECIES,) if quick else (SPECIES, PRODUCTS):
            measure(browser, classes, Path(folder))
        browser.close()


if __name__ == "__main__":
    main()
