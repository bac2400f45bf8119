"""Checks of the site's pages as they are rendered: a docstring is Markdown that its author does not see as a page."""

import html
import keyword
import re

PARAGRAPH = re.compile(r"<p>(?P<text>.*?)</p>", re.DOTALL)
CODE = re.compile(r"<div class=\"(?P<kind>[^\"]*)highlight\">.*?<code>(?P<text>.*?)</code>", re.DOTALL)
BULLET = r"^\s*(?:[-*+]|\d+[.)]) +\S"
LIST = re.compile(rf"{BULLET}[^\n]*\n(?:[^\n]*\n)*?{BULLET}", re.MULTILINE)
QUOTED = re.compile(r"#.*|\"[^\"\n]*\"|'[^'\n]*'")
WORDS = re.compile(r"(?:\b[a-z]{2,} ){3,}")


def problem(page: str) -> str | None:
    """Return what is wrong with a page of HTML: more titles than one, lists in paragraphs, or prose as code."""
    if (titles := len(re.findall(r"<h1\b", page))) > 1:
        return f"{titles} headings of the first level; does a line of text begin with #?"
    for found in PARAGRAPH.finditer(page):
        if LIST.search(text := _text(found["text"])):
            return f"a list without an empty line before it: {text[:200]!r}"
    for found in CODE.finditer(page):
        if found["kind"].strip() == "language-python" and is_prose(text := _text(found["text"])):
            return f"prose in a block of code: {text[:200]!r}"
    return None


def is_prose(code: str) -> bool:
    """Return if a block of code has three words of English one after another, outside strings and comments."""
    for line in QUOTED.sub(" ", code).splitlines():
        plain = re.sub(rf"\b(?:{'|'.join(keyword.kwlist)})\b", "0", line)
        if WORDS.search(f"{plain} "):
            return True
    return False


def _text(fragment: str) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "", fragment))
