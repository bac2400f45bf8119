"""Many different texts: Python's own documentation, docstrings and source, and hard cases of Unicode."""

import ast
import sysconfig
from bisect import bisect_left
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np

from tests.tokenization.corpus import HARD_TEXTS

FILES = ("argparse", "ast", "datetime", "decimal", "email/message", "fractions", "heapq", "http/client", "inspect",
         "json/decoder", "logging/__init__", "pathlib", "random", "re", "shutil", "statistics", "tarfile", "textwrap",
         "threading", "turtle", "typing", "unittest/case", "urllib/parse", "zipfile")  # fmt: skip


def varied_texts(count: int) -> list[str]:
    """Return `count` different texts of 1 to about 450 words, with lengths spread on a logarithmic scale."""
    rng = np.random.default_rng(0)
    sources = sorted((text.split() for text in _sources()), key=len)
    lengths = [len(words) for words in sources]
    texts = dict.fromkeys(text for text in HARD_TEXTS if text.strip())
    while len(texts) < count:
        length = int(np.exp(rng.uniform(0, np.log(450))))
        words = sources[rng.integers(bisect_left(lengths, length), len(sources))]  # long enough
        first = rng.integers(len(words) - length + 1)
        texts[" ".join(words[first : first + length])] = None
    return list(texts)[:count]


def _sources() -> list[str]:
    library = Path(sysconfig.get_path("stdlib"))
    files = [library / f"{name}.py" for name in FILES]
    codes = [file.read_text(encoding="utf-8") for file in files if file.is_file()]
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    nodes = [node for code in codes for node in ast.walk(ast.parse(code)) if isinstance(node, documented)]
    docstrings = [text for node in nodes if (text := ast.get_docstring(node))]
    return [*topics.values(), *docstrings, *codes]
