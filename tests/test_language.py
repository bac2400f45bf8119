"""The English of the project: openings of docstrings, and phrases that a native reader stumbles over."""

import ast
import re
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent
FOLDERS = ("kernels", "bertcore", "tests", "bench", "examples", "docs")
ENDINGS = {".py", ".md", ".cu", ".cuh", ".h", ".cpp", ".c"}

OPENINGS = re.compile(r"(What|Whether|How|Where|When|Who|Which|That|Those|They|None|As)\b")
PHRASES = (
    *("told", "nobody", "of which", "of whom", "who has", "who calls", "who gives", "whoever"),
    *("is no list", "is no array", "is no number", "is no integer", "what is no", "what is none", "that is none"),
    *("that are none", "there that is", "if there is one", "where there is none", "which there is none"),
)
PATTERN = re.compile("|".join(rf"\b{phrase}\b" for phrase in PHRASES))


def files():
    """Every text of the project but this one."""
    inside = [file for folder in FOLDERS for file in (REPOSITORY / folder).rglob("*")]
    found = [file for file in [*REPOSITORY.glob("*"), *inside] if file.suffix in ENDINGS and file.is_file()]
    return sorted(file for file in found if file != Path(__file__))


def docstrings(file):
    """(line, text) of each docstring of a Python file."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "lineno", 1), text


def faults(file):
    """(line, what is wrong) of a file."""
    lines = file.read_text(encoding="utf-8").splitlines()
    found = [(number, match[0]) for number, line in enumerate(lines, 1) if (match := PATTERN.search(line.lower()))]
    if file.suffix == ".py":
        found += [(line, f"docstring: {text[:50]}") for line, text in docstrings(file) if OPENINGS.match(text)]
    return found


def test_the_language_is_plain():
    wrong = [f"{file.relative_to(REPOSITORY)}:{line}: {what}" for file in files() for line, what in faults(file)]
    assert not wrong, "\n".join(wrong)


if __name__ == "__main__":  # python tests/test_language.py kernels/linear
    chosen = [Path(name).resolve() for name in sys.argv[1:]]
    for path in files():
        if any(path.is_relative_to(part) for part in chosen):
            for line, what in sorted(faults(path)):
                print(f"{path}:{line}: {what}")
