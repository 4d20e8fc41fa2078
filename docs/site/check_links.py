"""Checks that every relative link of the built site leads to a file, and every anchor to an element: `FOLDER`."""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The addresses that a page names, and the places that can be named in it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places = {"", "top"}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note ids, links, pictures, scripts and styles."""
        for name, value in attrs:
            if name == "id" and value:
                self.places.add(value)
            elif name in ("href", "src") and value and tag != "base":
                self.links.append(value)


def broken_links(folder: Path) -> list[str]:
    """One sentence for each link that leads nowhere, or to another machine for something that the page needs."""
    pages = {path: Page(path) for path in sorted(folder.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists():
                found.append(f"{path.relative_to(folder)}: {link} leads to no file")
            elif target in pages and unquote(parts.fragment) not in pages[target].places:
                found.append(f"{path.relative_to(folder)}: {link} has an anchor that is not on that page")
    return found


if __name__ == "__main__":
    problems = broken_links(Path(sys.argv[1]).resolve())
    print("\n".join(problems) or "all links between pages resolve")
    sys.exit(bool(problems))
