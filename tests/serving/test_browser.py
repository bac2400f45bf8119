"""The page at / in a real browser: texts are typed, the button is pressed, answers and errors are read."""

import shutil
from importlib.util import find_spec

import pytest

from tests.serving.process import served

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="no browser here: apt-get install chromium"),
    pytest.mark.skipif(find_spec("playwright") is None, reason="pip install playwright"),
]


@pytest.fixture(scope="module")
def page(folders):
    """The page of a server with an encoder and a reranker; whatever goes wrong in its script fails the test."""
    from playwright.sync_api import sync_playwright

    with served(folders["encoder"], folders["reranker"]) as (process, port), sync_playwright() as player:
        browser = player.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        page = browser.new_page()
        page.set_default_timeout(60_000)
        failures = []
        page.on("pageerror", lambda error: failures.append(error))
        page.goto(f"http://127.0.0.1:{port}/")
        page.server = process
        yield page
        browser.close()
        assert failures == []


def send(page, path, body=None):
    """Status and answer of a request; the example of the path without a body."""
    page.select_option("#path", path)
    if body is not None:
        page.fill("#body", body)
    page.click("#send")
    page.wait_for_function("/ms|no answer/.test(document.getElementById('status').textContent)")
    return page.inner_text("#status"), page.inner_text("#answer") if page.is_visible("#answer") else ""


def test_every_example_is_answered(page):
    assert page.inner_text("ul").splitlines() == ["encoder embeds texts", "reranker classifies texts"]
    paths = page.eval_on_selector_all("#path option", "options => options.map(option => option.value)")
    assert paths == [
        *("/embed", "/similarity", "/v1/embeddings", "/embed_all", "/rerank", "/v1/rerank", "/v2/rerank", "/predict"),
        *("/tokenize", "/decode"),
    ]
    for path in paths:
        status, answer = send(page, path)
        assert status.startswith("200 in ") and len(answer) > 10, path


def test_typed_texts_are_embedded(page):
    status, answer = send(page, "/embed", '{"inputs": ["the cat sat", "paris", "a mat"]}')
    lines = answer.splitlines()
    assert status.startswith("200") and len(lines) == 3
    assert lines[0].count(",") == 39  # of one embedding, and the one after it


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ("", "400", "the body is not valid JSON"),
        ('{"inputs": []}', "400", "inputs is empty, expected at least one string"),
        ('{"input": []}', "400", "input is empty, expected at least one string"),
    ],
)
def test_empty_input_shows_the_error(page, body, status, message):
    path = "/v1/embeddings" if '"input"' in body else "/embed"
    status_line, answer = send(page, path, body)
    assert status_line.startswith(status) and message in status_line and answer == ""
    assert page.get_attribute("#status", "class") == "wrong"
    status_line, answer = send(page, "/embed", '{"inputs": "a"}')
    assert status_line.startswith("200") and answer and page.get_attribute("#status", "class") == ""


def test_a_server_that_has_ended_is_told(page):
    page.server.kill()
    page.server.wait()
    assert send(page, "/embed", '{"inputs": "a"}')[0].startswith("no answer: ")
    assert page.is_enabled("#send")
