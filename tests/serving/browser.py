"""A real Chromium that looks at a server's page, and notes what no page may do."""

import contextlib
from importlib.util import find_spec
from urllib.parse import urlsplit

from docs.browser import OPTIONS
from docs.browser import chromium as browser_path

MISSING = (
    "no browser here: apt-get install chromium"
    if browser_path() is None
    else "pip install playwright"
    if find_spec("playwright") is None
    else None
)


@contextlib.contextmanager
def chromium():
    """A browser without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as player:
        browser = player.chromium.launch(executable_path=browser_path(), args=OPTIONS)
        yield browser
        browser.close()


@contextlib.contextmanager
def opened(browser, port, *, width=1280, tab="", key=None, **options):
    """The server's page, whose `failures` (script errors, refused content, requests to elsewhere) must stay empty."""
    context = browser.new_context(viewport={"width": width, "height": 900}, **options)
    page = context.new_page()
    page.set_default_timeout(20_000)
    page.failures = []
    page.on("pageerror", lambda error: page.failures.append(str(error)))
    page.on("console", lambda said: page.failures.append(said.text) if said.type in ("error", "warning") else None)

    def note(request):
        if urlsplit(request.url).scheme != "data" and urlsplit(request.url).netloc != f"127.0.0.1:{port}":
            page.failures.append(f"a request to {request.url}")

    page.on("request", note)
    page.goto(f"http://127.0.0.1:{port}/#{tab}")
    if key is not None:
        page.fill("#key", key)
        page.press("#key", "Enter")
    yield page
    # A refused request is noted by the browser, too; the page shows it in words.
    failures = [each for each in page.failures if "the server responded with a status of 4" not in each]
    context.close()
    assert failures == []


def run(page, tab, button=".primary"):
    """Press a tab's button and wait for the end of its request; return the status line."""
    page.click(f"#{tab} {button}")
    page.wait_for_selector(f"#{tab} .primary:not([aria-busy])")
    return page.inner_text(f"#{tab} .status")
