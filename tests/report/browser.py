"""A report in a real browser, without a network: how it is opened, operated and read.

A tab notes everything that must not happen in a report (requests, messages on the console, errors, dialogs); the
fixture that opens tabs fails the test in which something was noted.
"""

import math
import os
import shutil
from pathlib import Path
from typing import Any

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--no-sandbox",  # root has no sandbox in a container
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--process-per-site",  # tabs share what was compiled: the next one opens in half the time
]
LOCAL = ("file:", "data:", "blob:", "about:")
DESKTOP = {"width": 1280, "height": 900}
PHONE = {"width": 390, "height": 844}
PATIENCE = 30_000  # milliseconds: what is not there by then never will be
NOT_A_NUMBER = (None, "", "NaN", "null")


def browser_path() -> str | None:
    """Where a browser is installed."""
    return next((found for name in BROWSERS if (found := shutil.which(name))), None)


def why_not() -> str | None:
    """Why there can be no tests in a browser, and what to do about it; None where there can."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "playwright is missing: pip install playwright"
    if browser_path() is None:
        return "no browser is installed: apt-get install chromium"
    return None


def artifacts() -> Path:
    """The folder where screenshots are kept."""
    folder = Path(os.environ.get("ISOMARGIN_ARTIFACTS") or Path(__file__).parents[2] / "build" / "artifacts")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


class SharedBrowser:
    """One browser for tests that follow each other.

    To be closed before any others run: as long as Playwright is there an event loop is running, in which nobody else
    could start one.
    """

    def __init__(self) -> None:
        self._playwright: Any = None
        self._context: Any = None

    def context(self) -> Any:
        """The browser's one context, without a network; started when first asked for."""
        if self._context is None:
            from playwright.sync_api import sync_playwright

            self._playwright = sync_playwright().start()
            browser = self._playwright.chromium.launch(executable_path=browser_path(), args=FLAGS)
            self._context = browser.new_context(
                offline=True, viewport=DESKTOP, color_scheme="light", reduced_motion="reduce", accept_downloads=True
            )
        return self._context

    def close(self) -> None:
        """End the browser, if there is one."""
        if self._playwright is not None:
            if self._context is not None:
                self._context.browser.close()
            self._playwright.stop()
        self._playwright = self._context = None


class Tab:
    """One tab with a report in it."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.problems: list[str] = []
        page.set_default_timeout(PATIENCE)
        page.on("console", self._note_message)
        page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        page.on("dialog", self._note_dialog)
        page.on("request", self._note_request)
        page.on("popup", lambda other: self.problems.append(f"another tab: {other.url}"))
        page.on("framenavigated", self._note_navigation)
        self.address = ""

    def _note_message(self, message: Any) -> None:
        if message.type in ("error", "warning", "assert"):
            self.problems.append(f"console {message.type}: {message.text}")

    def _note_dialog(self, dialog: Any) -> None:
        self.problems.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _note_request(self, request: Any) -> None:
        if not request.url.startswith(LOCAL):
            self.problems.append(f"request: {request.url}")

    def _note_navigation(self, frame: Any) -> None:
        if self.address and not frame.url.startswith(self.address):
            self.problems.append(f"navigation: {frame.url}")

    def open(self, path: Path) -> "Tab":
        """Load a report and wait until it can be used."""
        self.page.goto(path.as_uri())
        self.address = path.as_uri()
        self.page.locator("html[data-ready=true]").wait_for(state="attached")
        return self

    # ----- looking

    def find(self, selector: str) -> Any:
        """Everything that matches."""
        return self.page.locator(selector)

    def text(self, selector: str) -> str:
        """The text of the one element that matches, as it is in the document."""
        return self.find(selector).text_content()

    def attribute(self, selector: str, name: str) -> str | None:
        """An attribute of the one element that matches."""
        return self.find(selector).get_attribute(name)

    def number(self, selector: str, name: str = "data-value") -> float:
        """A number that an element carries in full; NaN where it has none."""
        return as_number(self.attribute(selector, name))

    def script(self, code: str, argument: Any = None) -> Any:
        """Evaluate a JavaScript function of one argument in the page."""
        return self.page.evaluate(code, argument)

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Rows of a table of classes, as shown: index, selected, and for each cell its number and its text."""
        listed = self.script(
            """table => [...document.querySelectorAll(table + " tr[data-class]")].map(row => ({
                index: Number(row.dataset.class),
                selected: row.getAttribute("aria-selected"),
                cells: Object.fromEntries([...row.querySelectorAll("[data-cell]")].map(
                    cell => [cell.dataset.cell, [cell.getAttribute("data-value"), cell.textContent]])),
            }))""",
            table,
        )
        for row in listed:
            row["values"] = {name: as_number(value) for name, (value, _) in row["cells"].items() if name != "class"}
            row["texts"] = {name: text for name, (_, text) in row["cells"].items()}
        return listed

    def operating(self, run: int = 0) -> dict[str, float]:
        """The operating point of a run, every cell's number."""
        cells = ("distance", "similarity", "far", "frr", "outside")
        return {cell: self.number(f"#operating tr[data-run='{run}'] [data-cell={cell}]") for cell in cells}

    def distance(self, run: int = 0) -> float:
        """The threshold at which a run stands."""
        return self.operating(run)["distance"]

    def traces(self, plot: str) -> list[dict[str, Any]]:
        """What plotly was given to draw; gaps are None, typed arrays plain lists."""
        self.drawn()
        return self.script(
            """plot => document.getElementById(plot).data.map(trace => ({
                name: trace.name ?? null,
                type: trace.type ?? null,
                mode: trace.mode ?? null,
                meta: trace.meta ?? null,
                x: [...(trace.x ?? [])].map(value => Number.isNaN(value) ? null : value),
                y: [...(trace.y ?? [])].map(value => Number.isNaN(value) ? null : value),
            }))""",
            plot,
        )

    def place_in_plot(self, plot: str, x: float, y: float) -> tuple[float, float]:
        """Where in the window a point of a plot is drawn, after scrolling to the plot."""
        self.find(f"#{plot}").scroll_into_view_if_needed()
        self.drawn()
        place = self.script(
            """([plot, x, y]) => {
                const drawn = document.getElementById(plot), layout = drawn._fullLayout;
                const corner = drawn.querySelector(".nsewdrag").getBoundingClientRect();
                return [corner.left + layout.xaxis.d2p(x), corner.top + layout.yaxis.d2p(y)];
            }""",
            [plot, x, y],
        )
        return place[0], place[1]

    # ----- doing

    def slide(self, index: int) -> None:
        """Move the slider to a place on its grid."""
        self.find("#threshold").fill(str(index))
        self.settle()

    def choose_unit(self, unit: str) -> None:
        """Choose the unit of the threshold."""
        self.find(f"#unit-{unit}").check()
        self.settle()

    def type_threshold(self, text: str) -> None:
        """Type a threshold and press Enter."""
        field = self.find("#threshold-value")
        field.fill(text)
        field.press("Enter")
        self.settle()

    def drawn(self) -> None:
        """Wait until every plot shows the present state; those out of view are drawn when there is time."""
        self.settle()
        self.find("html:not([data-busy=true])").wait_for(state="attached")

    def settle(self) -> None:
        """Wait until what was put off to the next frames has been drawn."""
        self.script("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done())))")

    def tolerate(self, far: float, frr: float) -> None:
        """Set both tolerances, in percent."""
        for name, value in (("far", far), ("frr", frr)):
            field = self.find(f"#tolerance-{name}")
            field.fill(str(value))
            field.press("Tab")
        self.settle()

    def last_index(self) -> int:
        """The slider's last place."""
        return int(self.attribute("#threshold", "max"))

    def keep_picture(self, name: str, *, full: bool = True) -> Path:
        """Keep a screenshot among the artifacts."""
        path = artifacts() / f"report-{name}.png"
        self.script("() => scrollTo(0, 0)")
        self.drawn()
        self.page.screenshot(path=path, full_page=full)
        return path


def as_number(value: str | None) -> float:
    """An attribute as a number, NaN where there is none."""
    return math.nan if value in NOT_A_NUMBER else float(value)
