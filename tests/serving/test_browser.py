"""The page at / in a real browser: every kind of model, the keyboard alone, small screens, hostile texts, errors."""

import json
import shutil
import subprocess

import pytest

from tests.serving.browser import MISSING, chromium, opened, run
from tests.serving.process import served
from tests.tasks.pipelines.folders import save_head
from tests.tiny_gliner2 import tiny_gliner2

pytestmark = [pytest.mark.slow, pytest.mark.skipif(MISSING is not None, reason=str(MISSING))]
NAMES = ("encoder", "reranker", "classifier", "tagger", "masked", "marked", "splade", "late", "gliner")
HOSTILE = "<img src=x onerror=alert(1)> '\"</textarea><script>alert(2)</script> \U0001f600 ä"
TABS = {  # what a model's tabs are
    "encoder": ["Similarity", "Ranking", "Attention", "JSON"],
    "reranker": ["Ranking", "Attention", "JSON"],
    "classifier": ["Labels", "Attention", "JSON"],
    "tagger": ["Entities", "Attention", "JSON"],
    "masked": ["Missing words", "Similarity", "Ranking", "Attention", "JSON"],
    "marked": ["Marked entities", "JSON"],
    "splade": ["Weighted words", "Attention", "JSON"],
    "late": ["Ranking", "Attention", "JSON"],
    "gliner": ["Entities", "JSON"],
}
TASKS = [  # model, tab, texts by field, a part of the result
    ("encoder", "similarity", {"inputs": "the cat\n\nparis is\na mat"}, ".heat td"),
    ("encoder", "rank", {"query": "the cat", "texts": "paris\nan mat\nthe cat"}, ".bars li"),
    ("reranker", "rank", {"query": "the cat", "texts": "paris\nan mat\nthe cat"}, ".bars li"),
    ("classifier", "classify", {"inputs": "the cat"}, ".bars li"),
    ("tagger", "entities", {"inputs": "the cat sat on an mat . paris"}, ".text"),
    ("gliner", "entities", {"inputs": "the big city of a person", "labels": "person, city"}, ".text"),
    ("masked", "fill", {"inputs": "the [MASK] sat"}, ".bars button"),
    ("masked", "similarity", {"inputs": "the cat\nparis is"}, ".heat td"),
    ("masked", "rank", {"query": "the cat", "texts": "paris\nan mat"}, ".bars li"),
    ("marked", "marked", {"inputs": "[the cat] \U0001f600 sat on [paris]"}, ".bars li"),
    ("splade", "sparse", {"inputs": "the cat\nparis"}, ".chips li"),
    ("encoder", "attention", {"inputs": "the cat sat"}, ".heat td"),
    ("encoder", "request", {"body": '{"inputs": ["a", "b"]}'}, "pre"),
]


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def port(folders, tmp_path_factory):
    schemas = tiny_gliner2(tmp_path_factory.mktemp("schemas"))
    with served(*(folders[name] for name in NAMES), schemas, options=("--log-level", "warning")) as (_, port):
        yield port


@pytest.fixture
def page(browser, port):
    with opened(browser, port) as page:
        choose(page, "encoder", "similarity")
        yield page


def choose(page, model, tab):
    """Show a tab of a model, with texts that are short enough for tiny models."""
    page.wait_for_selector("#main:not([hidden])")
    number = page.eval_on_selector_all("#model option", "all => all.map(each => each.text.split(' ')[0])").index(model)
    page.select_option("#model", index=number)
    page.click(f"#tab-{tab}")
    if tab == "rank":
        fill(page, tab, query="the cat", texts="paris\nan mat")


def fill(page, tab, **texts):
    for name, text in texts.items():
        page.fill(f"#{tab} [name={name}]", text)


def texts_of(page, selector):
    return page.eval_on_selector_all(selector, "all => all.map(each => each.textContent)")


def test_models_decide_which_tabs_show(page):
    for model, tabs in TABS.items():
        number = NAMES.index(model)
        page.select_option("#model", index=number)
        assert page.locator("[role=tab]:visible").all_inner_texts() == tabs
        assert page.locator("[role=tab][aria-selected=true]").inner_text() == tabs[0]
        assert page.locator("main > section:visible").count() == 1


@pytest.mark.parametrize(("model", "tab", "texts", "part"), TASKS)
def test_each_task_shows_its_answer(page, model, tab, texts, part):
    choose(page, model, tab)
    fill(page, tab, **texts)
    assert run(page, tab).startswith("Done in ")
    assert page.locator(f"#{tab} .result {part}").count() > 0
    page.set_viewport_size({"width": 400, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    page.click(f"#{tab} summary")
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


def test_similarities_are_cosines_of_named_texts(page):
    fill(page, "similarity", inputs="the cat\nparis is\n  the cat ")
    run(page, "similarity")
    cells = [float(text) for text in texts_of(page, "#similarity td")]
    assert len(cells) == 9 and cells[0] == cells[2] == cells[4] == 1 and cells[1] == cells[3] == cells[5] < 1
    assert texts_of(page, "#similarity tbody th .name") == ["the cat", "paris is", "the cat"]
    page.hover("#similarity tbody tr:nth-child(2) td:nth-of-type(1)")
    readout = page.inner_text("#similarity .readout")
    assert readout.endswith("“paris is” and “the cat”") and abs(float(readout.partition(":")[0]) - cells[3]) < 0.006


@pytest.mark.parametrize("model", ["encoder", "reranker", "late"])
def test_rankings_are_in_order(page, model):
    choose(page, model, "rank")
    fill(page, "rank", query="the cat", texts="paris\nan mat\nthe cat sat")
    run(page, "rank")
    scores = [float(text) for text in texts_of(page, "#rank .value")]
    assert sorted(scores, reverse=True) == scores
    assert sorted(texts_of(page, "#rank .bars li > span:first-child")) == ["an mat", "paris", "the cat sat"]


def test_a_second_text_makes_a_pair(page):
    choose(page, "classifier", "classify")
    fill(page, "classify", inputs="the cat")
    run(page, "classify")
    alone = texts_of(page, "#classify .value")
    assert len(alone) == 3 and abs(sum(float(text.rstrip(" %")) for text in alone) - 100) < 0.2
    fill(page, "classify", second="paris is")
    run(page, "classify")
    assert texts_of(page, "#classify .value") != alone


def test_entities_stand_at_their_characters(page):
    """Places count code points; an emoji is one of them, and two units of a script's string."""
    choose(page, "tagger", "entities")
    text = "\U0001f600\U0001f600 the cat sat\non an mat . paris"
    fill(page, "entities", inputs=text)
    run(page, "entities")
    assert page.locator("#entities mark").count() > 0
    shown = page.evaluate(
        "() => { const shown = document.querySelector('#entities .text').cloneNode(true);"
        " shown.querySelectorAll('small').forEach(each => each.remove()); return shown.textContent; }"
    )
    assert shown == text
    for mark in page.locator("#entities mark").all():
        assert mark.evaluate("mark => mark.firstChild.data").strip() == mark.evaluate("mark => mark.firstChild.data")


def test_words_are_put_in_place_of_masks(page):
    choose(page, "masked", "fill")
    fill(page, "fill", inputs="the  sat on an [MASK] .", top_k="3")
    page.evaluate("document.querySelector('#fill textarea').setSelectionRange(4, 4)")
    page.click("#insert")
    assert page.input_value("#fill [name=inputs]") == "the [MASK] sat on an [MASK] ."
    run(page, "fill")
    lists = page.locator("#fill .bars")
    assert lists.count() == 2 and lists.nth(1).locator("button").count() == 3
    second = lists.nth(1).locator("button").nth(1)
    first, other = (lists.nth(0).locator("button").nth(number) for number in (0, 1))
    words = [each.locator("span").first.inner_text() for each in (first, other, second)]
    put = [word.removeprefix("##") for word in words]
    for button in (second, first, other):
        button.click()
    filled = page.input_value("#fill [name=inputs]")
    assert "[MASK]" not in filled and put[1] in filled and put[2] in filled
    assert (first.get_attribute("aria-pressed"), other.get_attribute("aria-pressed")) == ("false", "true")


def test_attention_of_a_layer_and_a_head(page):
    choose(page, "encoder", "attention")
    fill(page, "attention", inputs="the cat sat")
    run(page, "attention")
    assert texts_of(page, "#attention tbody th") == ["the", "cat", "sat"]
    page.check("#attention [name=special]")
    page.wait_for_selector("#attention .primary:not([aria-busy])")
    assert texts_of(page, "#attention tbody th") == ["[CLS]", "the", "cat", "sat", "[SEP]"]
    cells = [float(text) for text in texts_of(page, "#attention td")]
    assert all(abs(sum(cells[start : start + 5]) - 1) < 0.03 for start in range(0, 25, 5))
    page.select_option("#attention [name=layer]", "1")
    page.select_option("#attention [name=head]", "3")
    run(page, "attention")
    assert [float(text) for text in texts_of(page, "#attention td")] != cells


def test_every_example_is_answered_or_refused_in_words(page):
    choose(page, "encoder", "request")
    paths = page.eval_on_selector_all("#request option", "all => all.map(each => each.value)")
    assert {
        "/embed",
        "/v1/embeddings",
        "/rerank",
        "/predict",
        "/fill_mask",
        "/attention",
        "/decode",
        "/extract",
    } <= set(paths)
    for path in paths:
        page.select_option("#request [name=path]", path)
        assert run(page, "request").startswith("Done in "), path


def has_outline(page):
    style = "getComputedStyle(document.activeElement)"
    return page.evaluate(f"{style}.outlineStyle != 'none' && parseFloat({style}.outlineWidth) >= 2")


def test_the_keyboard_alone(page):
    page.reload()
    page.wait_for_selector("#main:not([hidden])")
    keys = page.keyboard

    def tab_to(selector):
        for _ in range(30):
            keys.press("Tab")
            if page.evaluate("selector => document.activeElement.matches(selector)", selector):
                assert has_outline(page), selector
                return
        raise AssertionError(selector)

    tab_to("#model")
    tab_to("#tab-similarity")
    keys.press("ArrowLeft")
    assert page.evaluate("document.activeElement.id") == "tab-request" and has_outline(page)
    keys.press("ArrowRight")
    tab_to("#similarity textarea")
    keys.press("Control+a")
    keys.type("the cat")
    keys.press("Enter")  # another line
    keys.type("paris")
    keys.press("Control+Enter")
    page.wait_for_selector("#similarity td")
    tab_to("#similarity .primary")
    tab_to("#similarity td")
    keys.press("ArrowRight")
    keys.press("ArrowDown")
    keys.press("ArrowDown")  # beyond the last row
    assert page.inner_text("#similarity .readout") == "1.0000: “paris” and “paris”"
    tab_to("#similarity summary")
    keys.press("Enter")
    tab_to("#similarity .curl button")
    page.focus("#tab-similarity")
    keys.press("ArrowRight")
    tab_to("#rank textarea")
    keys.press("Control+a")
    keys.type("the cat")
    keys.press("Shift+Tab")
    keys.type("the cat")
    keys.press("Enter")
    page.wait_for_selector("#rank .bars")
    page.focus("#tab-rank")
    keys.press("ArrowRight")
    tab_to("#attention textarea")
    keys.press("Control+a")
    keys.type("a")
    keys.press("Enter")
    page.wait_for_selector("#attention td")


def test_every_field_has_a_name(page):
    unnamed = page.evaluate(
        "() => [...document.querySelectorAll('input, select, textarea')]"
        ".filter(each => !each.labels.length).map(each => each.outerHTML)"
    )
    assert unnamed == []
    assert page.evaluate("[...document.querySelectorAll('button')].every(each => each.textContent.trim())")
    for panel in page.locator("[role=tabpanel]").all():
        assert page.locator(f"#{panel.get_attribute('aria-labelledby')}[role=tab]").count() == 1


@pytest.mark.parametrize(("model", "tab", "name"), [
    ("encoder", "similarity", "inputs"), ("encoder", "rank", "query"), ("reranker", "rank", "texts"),
    ("classifier", "classify", "inputs"), ("tagger", "entities", "inputs"), ("masked", "fill", "inputs"),
    ("splade", "sparse", "inputs"), ("encoder", "request", "body"),
])  # fmt: skip
def test_texts_are_never_markup(page, model, tab, name):
    dialogs = []
    page.on("dialog", lambda dialog: dialogs.append(dialog.message) or dialog.dismiss())
    choose(page, model, tab)
    text = HOSTILE[:30] + (" [MASK]" if tab == "fill" else "")
    fill(page, tab, **{name: json.dumps({"inputs": text}) if tab == "request" else text})
    page.click(f"#{tab} summary")
    run(page, tab)
    assert "onerror" in page.inner_text(f"#{tab} .curl pre")
    if tab in ("similarity", "rank", "entities", "sparse") and name != "query":
        assert "<img src=x" in "".join(texts_of(page, f"#{tab} .result"))
    assert page.locator("img, main script").count() == 0 and dialogs == []


def test_labels_of_a_hostile_model_are_never_markup(browser, tmp_path):
    labels = {"0": HOSTILE, "1": "<script>alert(1)</script>"}
    folder = save_head(tmp_path / "<b>model", "AutoModelForSequenceClassification", labels)
    with served(folder, options=("--log-level", "warning")) as (_, port), opened(browser, port) as page:
        page.wait_for_selector("#main:not([hidden])")
        fill(page, "classify", inputs="the cat")
        run(page, "classify")
        assert sorted(texts_of(page, "#classify .bars li > span:first-child")) == sorted(labels.values())
        assert page.inner_text("#model option") == "<b>model (classifier)"
        assert page.locator("img, b, main script").count() == 0


@pytest.mark.parametrize(("model", "tab", "texts", "field", "message"), [
    ("encoder", "similarity", {"inputs": " \n"}, "inputs", "inputs is empty, expected at least one entry"),
    ("encoder", "similarity", {"inputs": "a\n" * 40}, "inputs", "inputs has 40 texts, the limit is 32"),
    ("encoder", "similarity", {"inputs": "a\n" + "the cat " * 60}, "inputs", "inputs[1] has more than 40 tokens"),
    ("encoder", "rank", {"query": ""}, "query", "source_sentence is empty, expected a text"),
    ("encoder", "rank", {"texts": ""}, "texts", "sentences is empty, expected at least one entry"),
    ("reranker", "rank", {"texts": ""}, "texts", "texts is empty, expected at least one entry"),
    ("masked", "fill", {"inputs": "no mask"}, "inputs", "has no [MASK], expected one"),
    ("encoder", "request", {"body": "{"}, "body", "the body is not valid JSON"),
])  # fmt: skip
def test_errors_stand_beside_their_field(page, model, tab, texts, field, message):
    choose(page, model, tab)
    fill(page, tab, **texts)
    assert run(page, tab).startswith("Refused (4")
    where = f"#{tab} [name={field}]"
    assert page.get_attribute(where, "aria-invalid") == "true"
    assert page.evaluate("selector => document.activeElement.matches(selector)", where)
    assert message in page.inner_text(f"#{page.get_attribute(where, 'aria-describedby')}")
    right = {"inputs": "the [MASK]", "query": "the cat", "texts": "paris", "body": '{"inputs": "a"}'}
    fill(page, tab, **{name: right[name] for name in texts})
    assert run(page, tab).startswith("Done") and page.locator(f"#{tab} [aria-invalid]").count() == 0


def test_a_computation_can_be_cancelled(page):
    page.route("**/embed", lambda route: None)  # no answer comes
    page.click("#similarity .primary")
    page.wait_for_selector("#similarity .cancel:visible")
    page.wait_for_selector("#similarity .clock:text-matches('[0-9]+[.][1-9] s')")
    assert page.inner_text("#similarity .status") == "Computing …"
    page.click("#similarity .cancel")
    page.wait_for_selector("#similarity .primary:not([aria-busy])")
    assert page.inner_text("#similarity .status") == "Cancelled." and page.is_hidden("#similarity .cancel")
    page.unroute("**/embed")
    fill(page, "similarity", inputs="the cat")
    assert run(page, "similarity").startswith("Done")


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl here: apt-get install curl")
def test_the_request_as_curl_is_the_request(page):
    page.click("#similarity summary")
    fill(page, "similarity", inputs='it\'s "the" cat $HOME `x` \\\nparis')
    with page.expect_response("**/embed") as answer:
        run(page, "similarity")
    command = page.inner_text("#similarity .curl pre")
    printed = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True).stdout
    for found, expected in zip(json.loads(printed), answer.value.json(), strict=True):
        assert found == pytest.approx(expected, abs=1e-5)
    assert "Authorization" not in command
    page.click("#similarity .curl button")
    page.wait_for_selector("#similarity .curl button:text-is('Copied')")
    assert page.evaluate("getSelection().toString()").strip() == command.strip()


def test_the_key(browser, folders, monkeypatch):
    monkeypatch.setenv("BERTCORE_API_KEY", "secret-key")
    with served(folders["encoder"], options=("--log-level", "warning")) as (_, port), opened(browser, port) as page:
        page.wait_for_selector("#unlock:not([hidden])")
        assert page.is_hidden("#main") and "requires an API key" in page.inner_text("#notice")
        assert page.get_attribute("#key", "type") == "password" and not page.inner_text("#key-error")
        page.fill("#key", "wrong-key")
        page.press("#key", "Enter")
        page.wait_for_selector("#key-error:not(:empty)")
        assert "not the server's key" in page.inner_text("#key-error")
        page.fill("#key", "secret-key")
        page.press("#key", "Enter")
        page.wait_for_selector("#main:not([hidden])")
        page.click("#similarity summary")
        fill(page, "similarity", inputs="the cat")
        assert run(page, "similarity").startswith("Done")
        assert '-H "Authorization: Bearer $BERTCORE_API_KEY"' in page.inner_text("#similarity .curl pre")
        kept = page.evaluate("[document.documentElement.outerHTML, document.cookie, location.href,"
                             " JSON.stringify(localStorage), JSON.stringify(sessionStorage)].join()")  # fmt: skip
        assert "secret-key" not in kept
        page.fill("#key", "wrong-key")
        assert run(page, "similarity") == "The server requires an API key."
        assert page.get_attribute("#key", "aria-invalid") == "true"
        page.reload()
        page.wait_for_selector("#unlock:not([hidden])")
        assert page.input_value("#key") == ""


def test_a_server_that_has_ended(browser, folders):
    with served(folders["encoder"]) as (process, port), opened(browser, port) as page:
        page.wait_for_selector("#main:not([hidden])")
        process.kill()
        process.wait()
        assert run(page, "similarity").startswith("The server did not answer: ")
        assert page.failures.pop().endswith("ERR_CONNECTION_REFUSED")
