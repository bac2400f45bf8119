"""Real text for the examples, fetched by package name: nothing of it belongs to this project.

    python examples/corpora.py          # fetches both, and says what is in them

Package descriptions: the short and long descriptions of Debian's packages, as apt fetches them (a Debian system, any
user). Film snippets: sentences of film reviews with the mean of 20 people's scores, from -4 to 4, published with
VADER (Hutto and Gilbert 2014) in the PyPI package vaderSentiment 0.5.
"""

from __future__ import annotations

import hashlib
import io
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

FOLDER = Path("data")
SNIPPETS = "vaderSentiment==0.5"
SNIPPETS_SHA256 = "5d97c37f3ef6e24eef331122e055dbedafeb6a56abfce0608b326701116ea49a"


def package_descriptions(folder: Path = FOLDER) -> list[tuple[str, str, str]]:
    """(name, short, long description) of each package, without those whose long one occurred before."""
    lists = (folder / "apt").absolute()
    if not any(lists.glob("*Translation-en*")):
        (lists / "partial").mkdir(parents=True, exist_ok=True)
        options = [f"Dir::State::lists={lists}", f"Dir::Cache={lists}", "Acquire::Languages=en", "Debug::NoLocking=1"]
        _run(["apt-get", "update", "-qq", *(word for option in options for word in ("-o", option))])
    texts = {}
    for file in sorted(lists.glob("*_main_i18n_Translation-en*")):
        for entry in _run(["/usr/lib/apt/apt-helper", "cat-file", str(file)]).decode().split("\n\n"):
            match = re.match(r"Package: (.+)\nDescription-md5: .+\nDescription-en: (.+)\n((?: .*\n?)+)", entry)
            if match:
                paragraphs = re.sub(r"^ ", "", match[3], flags=re.MULTILINE).split("\n.\n")
                texts.setdefault("\n".join(" ".join(part.split()) for part in paragraphs), (match[1], match[2]))
    return [(name, short, long) for long, (name, short) in texts.items()]


def package_sections(folder: Path = FOLDER) -> dict[str, str]:
    """The section of each package: "python", "games", ..."""
    package_descriptions(folder)
    sections = {}
    for file in sorted((folder / "apt").absolute().glob("*_main_*_Packages*")):
        text = _run(["/usr/lib/apt/apt-helper", "cat-file", str(file)]).decode()
        sections |= dict(re.findall(r"^Package: (.+)\n(?:.+\n)*?Section: (.+)$", text, flags=re.MULTILINE))
    return sections


def film_snippets(folder: Path = FOLDER) -> list[tuple[str, float]]:
    """(sentence, mean score) of each snippet, in the order of the file."""
    file = folder / "vaderSentiment-0.5.zip"
    if not file.is_file():
        folder.mkdir(exist_ok=True)
        _run(
            [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", "-d", folder, SNIPPETS]
        )
    found = hashlib.sha256(file.read_bytes()).hexdigest()
    if found != SNIPPETS_SHA256:
        raise SystemExit(f"{file} has the SHA-256 {found}, expected {SNIPPETS_SHA256}")
    inner = zipfile.ZipFile(file).read("vaderSentiment-0.5/additional_resources/hutto_ICWSM_2014.tar.gz")
    with tarfile.open(fileobj=io.BytesIO(inner)) as archive:
        member = archive.extractfile("hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt")
        rows = [line.split("\t") for line in member.read().decode("latin-1").splitlines()]
    return [(text.strip(), float(score)) for _, score, text in rows]


def _run(command: list) -> bytes:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout


if __name__ == "__main__":
    described, snippets = package_descriptions(), film_snippets()
    words = sum(len(text.split()) for _, *pair in described for text in pair)
    print(f"{len(described):,} package descriptions, {words:,} words; {len(snippets):,} film snippets")
