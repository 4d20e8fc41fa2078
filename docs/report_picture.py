"""Draw docs/images/report.png: the report of embeddings with cosines and equalized, as a browser shows it.

python docs/report_picture.py clinc150-wordllama256.npz
"""

import argparse
import tempfile
from pathlib import Path

import isomargin as im

IMAGES = Path(__file__).parent / "images"
BROWSERS = ("/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="embeddings and labels; items labelled oos are left out")
    parser.add_argument("--output", type=Path, default=IMAGES / "report.png")
    arguments = parser.parse_args()
    found = im.EmbeddingSet.load(arguments.file)
    kept = found.labels != "oos"
    embeddings, labels = found.vectors[kept], found.labels[kept]
    equalizer = im.Equalizer().fit(embeddings)
    evaluations = {
        "cosine": im.evaluate(embeddings, labels),
        "equalized": im.evaluate(embeddings, labels, equalizer=equalizer),
    }
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        im.write_report(evaluations, page)
        take_picture(page, arguments.output)


def take_picture(page: Path, output: Path) -> None:
    """Open a page in a browser that is installed, and save what it shows."""
    from playwright.sync_api import sync_playwright

    browser_path = next((path for path in BROWSERS if Path(path).is_file()), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1280, "height": 1160})
        tab.goto(page.as_uri())
        tab.wait_for_timeout(2000)  # plots are drawn after the page has loaded
        tab.screenshot(path=str(output))
        browser.close()


if __name__ == "__main__":
    main()
