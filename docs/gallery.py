"""The gallery: a card for each script in examples/, from its docstring and the table of results in runs.md."""

import ast
import re
from pathlib import Path

DOCS = Path(__file__).parent
TOOLS = {"corpora", "retrieval", "runs", "spread"}  # shared by the examples
RESULT = re.compile(r"^\| (?P<about>[^|]+) \| (?P<result>[^|]+) \| `python examples/(?P<name>\w+)\.py", re.MULTILINE)


def gallery() -> str:
    """Return a card for each example.

    Raises:
        ValueError: for an example without a command in its docstring, or without a result in runs.md.
    """
    runs = (DOCS / "runs.md").read_text("utf-8").replace("](#", "](runs.md#")  # read from another page here
    results = {found["name"]: found["result"] for found in RESULT.finditer(runs)}
    cards = []
    for file in examples():
        title, *parts = (ast.get_docstring(ast.parse(file.read_text("utf-8"))) or "").split("\n\n")
        commands = [part for part in parts if part.startswith("    python ")]
        if not commands:
            raise ValueError(f"examples/{file.name} has no command in its docstring")
        if file.stem not in results:
            raise ValueError(f"examples/{file.name} has no result in the table of docs/runs.md")
        lines = (re.sub(r" +\[.*| +# .*", "", line.strip()) for line in commands[0].splitlines())
        command = "\n".join(line for line in lines if f"/{file.name}" in line)
        about = next(part for part in parts if part not in commands)
        about = re.split(r"(?<=[a-z)]\.) (?=[A-Z])", " ".join(about.split()))[0]
        text = f"### {title.rstrip('.')}\n\n{about}\n\n```sh\n{command}\n```\n\n**Result:** {results[file.stem]}"
        picture = f"images/{file.stem}.png"
        if (DOCS / picture).exists():
            text += f"\n\n![{title.rstrip('.')}]({picture})"
        cards.append(f"<div markdown>\n\n{text}\n\n</div>")
    return '<div class="cards" markdown>\n' + "\n".join(cards) + "\n</div>"


def examples() -> list[Path]:
    """Return the scripts that are examples."""
    return [file for file in sorted((DOCS.parent / "examples").glob("*.py")) if file.stem not in TOOLS]
