"""Real text for the examples, fetched by package name; none of it is part of this project.

    python examples/corpora.py          # fetch all, and print their sizes

Package descriptions: the short and long descriptions of Debian's packages, as apt fetches them (on a Debian system, as
any user), and volunteers' translations. Film snippets: sentences of film reviews with the mean of 20 people's scores,
from -4 to 4, published with VADER (Hutto and Gilbert 2014) in the PyPI package vaderSentiment 0.5. Docstrings:
functions of the running Python's standard library. Mentions: Python's documentation, from Debian's package
python3.11-doc, and the functions, classes, modules, ... that its sources link to. Sections: those of its frequently
asked questions are questions with their answers.
"""

from __future__ import annotations

import ast
import hashlib
import io
import re
import subprocess
import sys
import sysconfig
import tarfile
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path("data")
CAT_FILE = ("/usr/lib/apt/apt-helper", "cat-file")
DOCUMENTATION = "python3.11-doc"
MARKUP = ("..", ">>>", "::", "|", "+--", ":")  # directives, examples, tables and fields are not paragraphs
LINKS = {"attr", "class", "const", "data", "exc", "func", "keyword", "macro", "member", "meth", "mod", "term", "type"}
UNDERLINE = re.compile(r"([=~^*\"+#-])\1{2,}")  # of a heading
LANGUAGES = ("it", "da", "fr", "de", "sk", "ja")
SNIPPETS = "vaderSentiment==0.5"
SNIPPETS_SHA256 = "5d97c37f3ef6e24eef331122e055dbedafeb6a56abfce0608b326701116ea49a"


def package_descriptions() -> list[tuple[str, str, str]]:
    """Return (name, short, long description) of each package, without repeated long descriptions."""
    texts: dict[str, tuple[str, str]] = {}
    for name, _, short, long in _descriptions("en"):
        texts.setdefault(long, (name, short))
    return [(name, short, long) for long, (name, short) in texts.items()]


def translated_descriptions(language: str) -> list[tuple[str, str, str]]:
    """Return (name, English description, translation) of each package translated to "de", "fr" or "it".

    Repeated translations are left out.
    """
    english = {digest: f"{short}\n{long}" for _, digest, short, long in _descriptions("en")}
    texts: dict[str, tuple[str, str]] = {}
    for name, digest, short, long in _descriptions(language):
        if digest in english:
            texts.setdefault(f"{short}\n{long}", (name, english[digest]))
    return [(name, original, translation) for translation, (name, original) in texts.items()]


def _descriptions(language: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield (name, MD5 of the English description, short, long description) of each package in that language."""
    entry = re.compile(rf"Package: (.+)\nDescription-md5: (.+)\nDescription-{language}: (.+)\n((?: .*\n?)+)")
    for file in sorted(_apt_lists(language).glob(f"*_main_i18n_Translation-{language}*")):
        for found in map(entry.match, _run([*CAT_FILE, file]).decode().split("\n\n")):
            if found:
                paragraphs = re.sub(r"^ ", "", found[4], flags=re.MULTILINE).split("\n.\n")
                yield found[1], found[2], found[3], "\n".join(" ".join(part.split()) for part in paragraphs)


def package_sections() -> dict[str, str]:
    """Return the section of each package: "python", "games", ..."""
    sections = {}
    for file in sorted(_apt_lists("en").glob("*_main_*_Packages*")):
        text = _run([*CAT_FILE, file]).decode()
        sections |= dict(re.findall(r"^Package: (.+)\n(?:.+\n)*?Section: (.+)$", text, flags=re.MULTILINE))
    return sections


def film_snippets() -> list[tuple[str, float]]:
    """Return (sentence, mean score) of each snippet, in the order of the file."""
    file = FOLDER / "vaderSentiment-0.5.zip"
    if not file.is_file():
        FOLDER.mkdir(exist_ok=True)
        _run(
            [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", "-d", FOLDER, SNIPPETS]
        )
    found = hashlib.sha256(file.read_bytes()).hexdigest()
    if found != SNIPPETS_SHA256:
        raise SystemExit(f"{file} has the SHA-256 {found}, expected {SNIPPETS_SHA256}")
    inner = zipfile.ZipFile(file).read("vaderSentiment-0.5/additional_resources/hutto_ICWSM_2014.tar.gz")
    with tarfile.open(fileobj=io.BytesIO(inner)) as archive:
        member = archive.extractfile("hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt")
        rows = [line.split("\t") for line in member.read().decode("latin-1").splitlines()]
    return [(text.strip(), float(score)) for _, score, text in rows]


def documented_functions(folder: Path | None = None) -> list[tuple[str, str, str]]:
    """Return (module or package, first paragraph of the docstring, code without it) of each function in a folder.

    The default is the standard library. Tests, and repeated docstrings and code, are left out.
    """
    folder = Path(folder or sysconfig.get_path("stdlib"))
    found: dict[str, tuple[str, str]] = {}
    for file in sorted(folder.rglob("*.py")):
        parts = file.relative_to(folder).with_suffix("").parts
        if {"site-packages", "dist-packages", "test", "tests", "idle_test", "lib2to3"}.isdisjoint(parts):
            for doc, code in _documented(file):
                found.setdefault(doc, (parts[0], code))
    once = {code: (module, doc) for doc, (module, code) in reversed(found.items())}
    return [(module, doc, code) for code, (module, doc) in reversed(once.items())]


def _documented(file: Path) -> Iterator[tuple[str, str]]:
    """Yield (first paragraph of the docstring, code without it) of each function in a file, if it is Python 3."""
    try:
        with warnings.catch_warnings(action="ignore", category=SyntaxWarning):
            tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and len(node.body) > 1:
            doc = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
            if len(doc.split()) > 2:
                node.body = node.body[1:]
                yield doc, ast.unparse(node)


def documented_mentions() -> list[dict[str, Any]]:
    """Return a record of each paragraph of Python's documentation with a link: its page, text and links.

    "entity_spans" are the characters of links, "entities" their targets as named on the page ("len", "os.path.join"),
    "roles" the kinds of the targets ("func", "mod").
    """
    found = []
    for page, source in _documentation_pages():
        paragraphs = source.split("\n\n")
        found += [{"page": page} | _linked(text) for text in paragraphs if not text.lstrip().startswith(MARKUP)]
    return [record for record in found if record["entities"]]


def documentation_sections() -> list[tuple[str, str, str]]:
    """Return (page, title, text) of each section of Python's documentation that has its own text."""
    found = []
    for page, source in _documentation_pages():
        title, lines = "", []
        for line, following in zip(parts := source.split("\n"), [*parts[1:], ""], strict=True):
            if line.strip() and UNDERLINE.fullmatch(following) and len(following) >= len(line):
                found.append((page, title, _plain(lines)))
                title, lines = _linked(line)["text"], []
            elif not UNDERLINE.fullmatch(line):
                lines.append(line)
        found.append((page, title, _plain(lines)))
    return [(page, title, text) for page, title, text in found if title and len(text.split()) > 5]


def _plain(lines: list[str]) -> str:
    """Return the paragraphs of a section without markup, one per line."""
    paragraphs = [part for part in "\n".join(lines).split("\n\n") if not part.lstrip().startswith(MARKUP)]
    texts = (re.sub(r"`([^`<]+?)(?: ?<[^`>]+>)?`_*", r"\1", _linked(part)["text"]).strip() for part in paragraphs)
    return "\n".join(filter(None, texts))


def _documentation_pages() -> Iterator[tuple[str, str]]:
    """Yield the path and the source, in reStructuredText, of each page of Python's documentation."""
    if not any(FOLDER.glob(f"{DOCUMENTATION}_*.deb")):
        lists = _apt_lists("en")
        options = [f"Dir::State::lists={lists}", f"Dir::Cache={lists}"]
        _run(["apt-get", "download", "-qq", *_options(options), DOCUMENTATION], cwd=FOLDER)
    package = max(FOLDER.glob(f"{DOCUMENTATION}_*.deb"))
    with tarfile.open(fileobj=io.BytesIO(_run(["dpkg-deb", "--fsys-tarfile", package]))) as archive:
        for member in archive:
            _, is_source, page = member.name.partition("/_sources/")
            if is_source and page.endswith(".rst.txt"):
                yield page, archive.extractfile(member).read().decode()


def sentences() -> Iterator[str]:
    """Yield distinct sentences and lines of prose of at least four words, until the sources end.

    They come from Python's documentation, the long package descriptions, their translations, and docstrings and
    comments of the standard library and of installed packages.
    """
    seen: set[int] = set()
    for text in _prose():
        for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z\u00c0-\u042f])|\n", text):
            sentence = " ".join(sentence.split())
            if len(sentence.split()) >= 4 and (key := hash(sentence)) not in seen:
                seen.add(key)
                yield sentence


def _prose() -> Iterator[str]:
    yield from (text for _, _, text in documentation_sections())
    yield from (long for _, _, long in package_descriptions())
    for language in LANGUAGES:
        yield from (text for _, _, text in translated_descriptions(language))
    for folder in (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")):
        for file in sorted(Path(folder).rglob("*.py")):
            text = file.read_text(encoding="utf-8", errors="replace")
            yield from (found[0].strip("\"'") for found in re.finditer(r'"""[^"]+"""|\'\'\'[^\']+\'\'\'', text))
            yield from (found[1] for found in re.finditer(r"^ *# (.+)", text, flags=re.MULTILINE))


def _linked(paragraph: str) -> dict[str, Any]:
    """Convert a paragraph of reStructuredText to text and its links.

    A link is :role:`target`, :role:`text <target>`, :role:`~long.target`, which shows its last part, or :role:`!text`,
    which links to nothing.
    """
    paragraph = " ".join(re.sub(r"``|\*+", "", paragraph).split())
    text, spans, targets, roles, end = "", [], [], [], 0
    for link in re.finditer(r":(?:c:|py:)?(\w+):`([~!]?)([^`<]+?)(?: ?<[~!]?([^`>]+)>)?`", paragraph):
        text, end = text + paragraph[end : link.start()], link.end()
        shown = link[3].rpartition(".")[2] if link[2] == "~" else link[3]
        if link[1] in LINKS and link[2] != "!":
            spans.append((len(text), len(text) + len(shown)))
            targets.append((link[4] or link[3]).strip(".()"))
            roles.append(link[1])
        text += shown
    return {"text": text + paragraph[end:], "entity_spans": spans, "entities": targets, "roles": roles}


def _apt_lists(language: str) -> Path:
    """Return the folder of apt's lists, after fetching the descriptions in that language."""
    lists = (FOLDER / "apt").absolute()
    if not any(lists.glob(f"*_Translation-{language}*")):
        (lists / "partial").mkdir(parents=True, exist_ok=True)
        keep = ["APT::Get::List-Cleanup=0", "Debug::NoLocking=1"]
        options = [f"Dir::State::lists={lists}", f"Dir::Cache={lists}", f"Acquire::Languages={language}", *keep]
        _run(["apt-get", "update", "-qq", *_options(options)])
    return lists


def _options(options: list[str]) -> list[str]:
    return [word for option in options for word in ("-o", option)]


def _run(command: list, cwd: Path | None = None) -> bytes:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=cwd).stdout


if __name__ == "__main__":
    described, snippets = package_descriptions(), film_snippets()
    words = sum(len(text.split()) for _, *pair in described for text in pair)
    print(f"{len(described):,} package descriptions, {words:,} words; {len(snippets):,} film snippets")
    print(", ".join(f"{len(translated_descriptions(name)):,} of them in {name}" for name in ("de", "fr", "it")))
    mentions = [target for record in documented_mentions() for target in record["entities"]]
    print(f"{len(documented_functions()):,} functions; {len(mentions):,} mentions of {len(set(mentions)):,} targets")
