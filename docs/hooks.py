"""Hooks of MkDocs, which builds the site: inclusions, notebooks, checks, and files for language models."""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # MkDocs loads this file alone

from checks import problem
from inclusions import included
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from notebooks import notebook_page

_pages: list[tuple[str, str, str]] = []  # title, address, Markdown


def on_pre_build(**_: Any) -> None:
    """Forget the pages of an earlier build (`mkdocs serve` builds several times)."""
    _pages.clear()


def on_files(files: Files, *, config: Any, **_: Any) -> Files:
    """Return the files with a page for each notebook."""
    for file in list(files):
        if file.src_uri.endswith(".ipynb"):
            page = notebook_page(Path(config.docs_dir, file.src_uri))
            files.append(File.generated(config, file.src_uri.replace(".ipynb", ".md"), content=page))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Return the page with its inclusions."""
    text = included(markdown)
    _pages.append((page.title, page.file.src_uri, text))
    return text


def on_post_page(output: str, *, page: Any, **_: Any) -> str:
    """Check a page, with the docstrings that mkdocstrings has inserted.

    Raises:
        PluginError: for what `checks.problem` finds.
    """
    if found := problem(output):
        raise PluginError(f"{page.file.src_uri}: {found}")
    return output


def on_post_build(*, config: Any, **_: Any) -> None:
    """Write what language models read: llms.txt, a list of pages, and each page's Markdown beside its HTML."""
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    for title, address, text in _pages:
        lines.append(f"- [{title}]({address}): {_summary(text)}")
        file = Path(config.site_dir, address)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    Path(config.site_dir, "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _summary(text: str) -> str:
    """Return the first sentence of a page, after its title."""
    paragraph = next((part for part in text.split("\n\n") if part[:1] not in "#<|`![-" and part.strip()), "")
    return " ".join(paragraph.split()).partition(". ")[0].rstrip(":.") + "."
