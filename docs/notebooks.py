"""Notebooks as pages of the site: text, code, and the output that is kept with it."""

import json
from pathlib import Path


def notebook_page(file: Path) -> str:
    """Return a notebook as Markdown, with a link to the file after its title."""
    title, *cells = (_cell(each) for each in json.loads(file.read_text(encoding="utf-8"))["cells"])
    heading, _, rest = title.partition("\n")
    link = f"[:material-notebook-outline: This page is a notebook]({file.name})"
    return "\n\n".join((heading, link, rest.strip(), *cells))


def printed(cell: dict) -> str:
    """Return what a cell is kept to have printed."""
    return "".join("".join(output["text"]) for output in cell["outputs"])


def _cell(cell: dict) -> str:
    text = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return text
    output = printed(cell)
    return f"```python\n{text}\n```" + (f"\n\n```text\n{output.rstrip()}\n```" if output else "")
