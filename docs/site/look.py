"""Opens the built site from the disk in a browser without a network: `python docs/site/look.py [FOLDER]`.

Takes a picture of every main page, light and dark, searches for a few words as a reader would, and fails if a page asks
for something on another machine, writes an error to the console, or the search finds nothing. Pictures go to
`build/artifacts/site`.
"""

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from report.browser import FLAGS, LOCAL, browser_path, why_not

PAGES = {
    "index": "start",
    "tutorials/product-search": "tutorial",
    "tutorials/fine-tuning": "tutorial-with-curves",
    "how-to/every-store": "stores",
    "integrations": "integrations",
    "explanation/measure": "explanation",
    "results": "results",
    "reference/commands": "commands",
    "reference/equalizing": "reference",
}
"""The pages of which pictures are taken, and the names of the pictures."""
SEARCHES = {"equalizer": "equaliz", "FNIR": "deployed", "evaluate_gallery": "reference/measuring", "qdrant": "stores"}
"""What is searched for, and a part of the address of some result."""


def open_page(page: Any, path: Path, problems: list[str]) -> None:
    """Load a page, and note what must not happen in it."""
    page.on("console", lambda message: problems.append(f"{path}: {message.text}") if message.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(f"{path}: {error}"))
    page.on("request", lambda request: request.url.startswith(LOCAL) or problems.append(f"{path}: {request.url}"))
    page.goto(path.as_uri())


def search(context: Any, folder: Path, word: str, wanted: str, problems: list[str]) -> None:
    """Type a word into the field of the start page, and follow the first result."""
    page = context.new_page()
    open_page(page, folder / "index.html", problems)
    page.locator(".sidebar-search").fill(word)
    page.keyboard.press("Enter")
    page.wait_for_function("document.querySelector('#search-results .search-summary')?.innerText.includes('finished')")
    links = page.locator("#search-results ul.search li a")
    found = [links.nth(number).get_attribute("href") for number in range(links.count())]
    print(f"{word}: {len(found)} results, first {found[:1]}")
    if not any(wanted in address for address in found):
        problems.append(f"the search for {word} does not find {wanted}, only {found[:5]}")
        return
    links.first.click()
    page.wait_for_load_state()
    if "search.html" in page.url:
        problems.append(f"the first result for {word} leads nowhere")
    page.close()


def look(folder: Path, pictures: Path) -> list[str]:
    """Take all pictures and make all searches; return what is wrong."""
    from playwright.sync_api import sync_playwright

    pictures.mkdir(parents=True, exist_ok=True)
    problems: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path(), args=FLAGS)
        for scheme in ("light", "dark"):
            context = browser.new_context(
                offline=True, color_scheme=scheme, viewport={"width": 1400, "height": 1000}, reduced_motion="reduce"
            )
            for name, picture in PAGES.items():
                page = context.new_page()
                open_page(page, folder / f"{name}.html", problems)
                page.screenshot(path=pictures / f"{picture}-{scheme}.png")
                page.close()
            if scheme == "light":
                for word, wanted in SEARCHES.items():
                    search(context, folder, word, wanted, problems)
            context.close()
        phone = browser.new_context(offline=True, viewport={"width": 390, "height": 844})
        page = phone.new_page()
        open_page(page, folder / "tutorials" / "threshold.html", problems)
        page.screenshot(path=pictures / "phone.png")
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            problems.append("on a phone, the page is wider than the screen")
        browser.close()
    return problems


if __name__ == "__main__":
    if reason := why_not():
        sys.exit(reason)
    built = Path(sys.argv[1] if sys.argv[1:] else ROOT / "docs" / "_build" / "html").resolve()
    wrong = look(built, ROOT / "build" / "artifacts" / "site")
    print("\n".join(wrong) or "pictures are in build/artifacts/site")
    sys.exit(bool(wrong))
