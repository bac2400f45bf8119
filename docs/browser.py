"""Look at the site in Chromium: measure every page at two widths, or take pictures of it.

    python docs/browser.py build/site              # list what is cut or too wide
    python docs/browser.py build/site pictures/    # and write pictures of all pages, light and dark

At 1280 px no block of code and no table is cut; at 400 px they scroll, and nothing else does. Chromium is the program
that BERTCORE_CHROMIUM names, or one of the usual names on PATH. It reads a local server alone.
"""

import functools
import html
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

WIDTHS = (1280, 400)
HIGHEST = 12_000  # pixels of a picture
OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars")
OPTIONS += ("--disable-background-networking", "--disable-component-update", "--disable-sync")
FRAME = """<!doctype html><title>frame</title>
<body style="margin:0"><iframe style="border:0"></iframe><pre></pre><script>
const frame = document.querySelector("iframe"), asked = JSON.parse(SETTINGS), found = {};
const dark = asked.dark ? 1 : 0, scheme = dark ? "slate" : "default";
localStorage.setItem("/.__palette", JSON.stringify({index: dark, color: {media: "", scheme}}));
frame.width = asked.width; frame.height = asked.height;
const isCut = box => box.scrollWidth > box.clientWidth + 1;
function measured(page) {
  const root = page.documentElement, boxes = [];
  page.querySelectorAll("details").forEach(each => { each.open = true; });
  for (const box of page.querySelectorAll("pre > code, .md-typeset__scrollwrap"))
    if (isCut(box)) boxes.push(box.textContent.trim().slice(0, 80));
  const outside = [...page.querySelectorAll("article *")].filter(each =>
    !each.closest("pre, .md-typeset__scrollwrap, svg") && each.getBoundingClientRect().right > asked.width + 1);
  const tags = outside.map(each => each.outerHTML.slice(0, 80));
  return {width: root.scrollWidth, height: root.scrollHeight, boxes, outside: tags};
}
async function look() {
  for (const address of asked.pages) {
    const loaded = new Promise(done => { frame.onload = done; });
    frame.src = address;
    await loaded;
    await new Promise(done => setTimeout(done, 500));
    if (asked.measure) found[address] = measured(frame.contentDocument);
  }
  document.querySelector("pre").textContent = JSON.stringify(found);
}
look();
</script>"""


class Frame(http.server.SimpleHTTPRequestHandler):
    """A server of the site, and of the page /frame that shows other pages at a width."""

    def do_GET(self) -> None:
        """Answer a request."""
        path, _, query = self.path.partition("?")
        if path != "/frame":
            return super().do_GET()
        body = FRAME.replace("SETTINGS", json.dumps(dict(parse_qsl(query))["asked"])).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(body)
        return None

    def log_message(self, *_: Any) -> None:
        """Write nothing."""


def chromium() -> str | None:
    """Return the path of Chromium, None if there is none."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return os.environ.get("BERTCORE_CHROMIUM") or next((path for name in names if (path := shutil.which(name))), None)


def pages_of(site: Path) -> list[str]:
    """Return the addresses of a built site's pages."""
    found = (file.parent.relative_to(site).as_posix() for file in site.rglob("index.html"))
    return sorted("/" if each == "." else f"/{each}/" for each in found)


@contextmanager
def served(site: Path) -> Iterator[str]:
    """Serve a built site, and return its address."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Frame, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def measure(site: Path, width: int) -> dict[str, dict[str, Any]]:
    """Return, for each page, its size at a width of the window, the boxes that scroll, and what sticks out of it."""
    pages = pages_of(site)
    with served(site) as address:
        asked = {"pages": pages, "width": width, "height": 900, "measure": True}
        text = _run(address, asked, "--dump-dom", f"--virtual-time-budget={5_000 + 3_000 * len(pages)}")
    found = re.search(r"<pre>(.*?)</pre>", text, flags=re.DOTALL)
    return json.loads(html.unescape(found[1] if found and found[1] else "{}"))


def problems(site: Path) -> list[str]:
    """Return what is cut, or too wide, on the pages of a site."""
    found = []
    for width in WIDTHS:
        for page, seen in measure(site, width).items():
            if seen["width"] > width or seen["outside"]:
                found.append(f"{page} is wider than {width} px: {seen['outside'][:3]}")
            if width == WIDTHS[0]:
                found += [f"{page} cuts at {width} px: {box!r}" for box in seen["boxes"]]
    return found


def take_pictures(site: Path, folder: Path, pages: Sequence[str] = ()) -> None:
    """Write a picture of each page, or of some, at each width, light and dark."""
    folder.mkdir(parents=True, exist_ok=True)
    with served(site) as address:
        for width in WIDTHS:
            for page, seen in measure(site, width).items():
                for is_dark in (False, True) if not pages or page in pages else ():
                    name = f"{page.strip('/').replace('/', '-') or 'index'}-{width}{'-dark' if is_dark else ''}.png"
                    height = min(seen["height"], HIGHEST)
                    asked = {"pages": [page], "width": width, "height": height, "dark": is_dark}
                    size = f"--window-size={max(width, 500)},{height}"
                    _run(address, asked, size, "--virtual-time-budget=3000", f"--screenshot={folder.resolve() / name}")


def _run(address: str, asked: Mapping[str, Any], *options: str) -> str:
    program = chromium()
    if program is None:
        raise FileNotFoundError("Chromium is not on PATH")
    with tempfile.TemporaryDirectory() as folder:
        page = f"{address}/frame?{urlencode({'asked': json.dumps(asked)}, quote_via=quote)}"
        command = [program, *OPTIONS, f"--user-data-dir={folder}", *options, page]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout


def main() -> int:
    """List the problems of the site of the command line, and take the pictures."""
    site, *rest = sys.argv[1:]
    if rest:
        take_pictures(Path(site), Path(rest[0]), rest[1:])
    found = problems(Path(site))
    print("\n".join(found))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
