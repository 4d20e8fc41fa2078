"""Size and speed of the report: how large the page is, how soon it can be used, how quickly the slider answers.

    python benchmarks/bench_report.py            # both sets, some three minutes on 2 cores
    python benchmarks/bench_report.py --quick    # the smaller set alone

Classes are as many as in the test halves of iNaturalist-2018 and of Stanford Online Products, with five images each:
a report's size and speed depend on its classes. A page that loads plotly and draws nothing is opened in turn with the
report: what it takes, no report can be quicker than. Needs playwright and a Chromium (`apt-get install chromium`).
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
IMAGES = 5
DIMENSIONS = 32
LARGEST, LATEST = 12 * MEGABYTE, 2.0  # bytes and seconds, promised for as many classes as SPECIES
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
FIRST_TEXT = "() => performance.getEntriesByName('first-contentful-paint').map(each => each.startTime)"


def make_evaluation(classes: int) -> Any:
    """Gaussian clusters of different widths, evaluated."""
    import isomargin

    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(classes), IMAGES)
    centres = generator.normal(size=(classes, DIMENSIONS))
    spread = np.linspace(0.3, 0.9, classes)[labels, None]
    vectors = centres[labels] + spread * generator.normal(size=(len(labels), DIMENSIONS))
    return isomargin.evaluate(vectors.astype(np.float32), [f"class {label:05}" for label in labels])


def open_page(browser: Any, path: Path) -> tuple[Any, float]:
    """Open a page in a process of its own; the page and the seconds from navigation until it is ready."""
    context = browser.new_context(offline=True, viewport={"width": 1280, "height": 900})
    page = context.new_page()

    def until_ready() -> None:
        page.goto(path.as_uri(), wait_until="commit")
        page.locator(READY).wait_for(state="attached")

    return page, seconds(until_ready)


def open_in_turn(browser: Any, report: Path, bare: Path) -> dict[str, list[float]]:
    """Seconds until both pages are ready, until the report's text is seen and it is all drawn, and of slider steps."""
    times: dict[str, list[float]] = {"bare": [], "report": [], "text": [], "drawn": [], "step": []}
    for _ in range(OPENINGS):
        page, taken = open_page(browser, bare)
        times["bare"].append(taken)
        page.context.close()
        page, taken = open_page(browser, report)
        times["report"].append(taken)
        times["drawn"].append(taken + seconds(lambda page=page: page.locator(DRAWN).wait_for(state="attached")))
        times["text"] += [each / 1000 for each in page.evaluate(FIRST_TEXT)]
        if not times["step"]:
            times["step"] = page.evaluate(STEP, STEPS)
        page.context.close()
    return times


def write_bare_page(path: Path) -> None:
    """A page that loads plotly and draws nothing."""
    from plotly.offline import get_plotlyjs

    ready = "document.documentElement.dataset.ready = 'true'"
    path.write_text(
        f"<!DOCTYPE html><meta charset=utf-8><body><script>{get_plotlyjs()}</script><script>{ready}</script>",
        encoding="utf-8",
    )


def measure(browser: Any, classes: int, folder: Path) -> None:
    from isomargin.report.write import write_report

    evaluation = make_evaluation(classes)
    report, bare = folder / f"report-{classes}.html", folder / "bare.html"
    write = seconds(lambda: write_report(evaluation, report))
    write_without = seconds(lambda: write_report(evaluation, folder / "without.html", intervals=False))
    write_bare_page(bare)
    size = report.stat().st_size
    times = open_in_turn(browser, report, bare)
    ready, plotly, text, drawn, step = (
        statistics.median(times[each]) for each in ("report", "bare", "text", "drawn", "step")
    )
    span = f"({min(times['report']):.2f} to {max(times['report']):.2f}; plotly alone {plotly:.2f})"
    print(f"{classes:,} classes of {IMAGES} images")
    print(f"  written in    {write:6.1f} s, {write_without:.1f} s without intervals")
    print(
        f"  size          {size / MEGABYTE:6.1f} MB" + limit(classes, size <= LARGEST, f"{LARGEST / MEGABYTE:.0f} MB")
    )
    print(f"  text seen     {text:6.2f} s after navigation")
    print(f"  ready after   {ready:6.2f} s {span}" + limit(classes, ready <= LATEST, f"{LATEST:g} s"))
    print(f"  all drawn     {drawn:6.2f} s, plots out of view too")
    print(f"  slider step   {1000 * step:6.0f} ms, the slowest {1000 * max(times['step']):.0f} ms")


def limit(classes: int, holds: bool, most: str) -> str:
    """Say whether a promise holds, where there is one."""
    return f", at most {most}: {verdict(holds)}" if classes == SPECIES else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the smaller set alone")
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
