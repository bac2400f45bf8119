"""Digests of the source code that kernels are compiled from: a module and all modules that it imports.

Comments, docstrings and layout do not count, nor do the modules in AROUND_KERNELS: changes that cannot change a kernel
recompile nothing. Parsing this package takes half a second, so its digests are kept beside the compiled kernels, under
a digest of the text of all files.
"""

import ast
import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from ...cache_folder import read_private, write_private
from ...own_name import PACKAGE
from .shipped import read_shipped

ROOT = Path(__file__).parents[2]
# These modules run and cache kernels, but are not part of them.
AROUND_KERNELS = (
    "_numba/compile/cache.py", "_numba/threads.py", "_numba/amx/permission.py",
)  # fmt: skip
_DOCUMENTED = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef


class Sources:
    """Digests of modules; each module is read once.

    Args:
        root: the folder imported as `name`.
    """

    def __init__(self, root: Path = ROOT, name: str = PACKAGE):
        self._root, self._name = root, name
        self._around = {root / file for file in AROUND_KERNELS}
        self._trees: dict[Path, ast.Module] = {}
        self._modules: dict[Path, tuple[str, set[Path]]] = {}

    def digest(self, file: Path) -> str:
        """Return the digest of a module and of all that it imports, directly or not."""
        found, waiting = set(), {file}
        while waiting:
            file = waiting.pop()
            found.add(file)
            waiting |= self._module(file)[1] - found
        return _sha256("".join(sorted(self._module(file)[0] for file in found)))

    def digest_outside(self, file: Path) -> str:
        """Return the digest of a module outside the package, read anew, as are others there that it imports."""
        self._modules = {each: found for each, found in self._modules.items() if each.is_relative_to(self._root)}
        found = self.digest(file)
        self._trees = {}
        return found

    def _module(self, file: Path) -> tuple[str, set[Path]]:
        """Return the digest of a module's own code, and the files that it imports."""
        if file not in self._modules:
            tree = self._tree(file)
            imported = {path for node in ast.walk(tree) for path in self._imported(node, file)}
            self._modules[file] = _sha256(ast.dump(tree)), imported - self._around
        return self._modules[file]

    def _tree(self, file: Path) -> ast.Module:
        if file not in self._trees:
            self._trees[file] = tree = ast.parse(file.read_bytes())
            for node in ast.walk(tree):
                if isinstance(node, _DOCUMENTED) and node.body and ast.get_docstring(node, clean=False) is not None:
                    del node.body[0]
        return self._trees[file]

    def _imported(self, node: ast.AST, file: Path) -> Iterator[Path]:
        """Yield the files that an import statement of `file` takes its names from."""
        if not isinstance(node, ast.ImportFrom):
            return
        module = node.module or ""
        if node.level:
            folder = file.parents[node.level - 1]
        elif f"{module}.".startswith(f"{self._name}."):
            folder, module = self._root, module[len(self._name) + 1 :]
        else:
            return
        for alias in node.names:
            yield from self._home(folder.joinpath(*filter(None, module.split("."))), alias.name)

    def _home(self, place: Path, name: str) -> Iterator[Path]:
        """Yield the file that defines `name` of the module or package at `place` (without its suffix)."""
        if place.with_suffix(".py").is_file():
            yield place.with_suffix(".py")
            return
        for submodule in (place / f"{name}.py", place / name / "__init__.py"):
            if submodule.is_file():
                yield submodule
                return
        package = place / "__init__.py"
        if not package.is_file():
            return
        for node in self._tree(package).body:
            if isinstance(node, ast.ImportFrom) and name in {alias.asname or alias.name for alias in node.names}:
                yield from self._imported(ast.ImportFrom(node.module, [ast.alias(name)], node.level), package)
                return
        yield package


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@cache
def package_digests(folder: Path) -> dict[str, str]:
    """Return the digest of each module of this package by its path; kept in `folder` if it is writable."""
    texts = {file.relative_to(ROOT).as_posix(): file.read_bytes() for file in sorted(ROOT.rglob("*.py"))}
    kept = folder / f"sources-{hashlib.sha256(repr(texts).encode()).hexdigest()[:20]}.json"
    for read in (lambda: read_private(kept), lambda: read_shipped(kept.name)):
        with suppress(OSError, ValueError):  # missing or damaged
            found = json.loads(read())
            if found.keys() == texts.keys():
                return found
    sources = Sources()
    digests = {name: sources.digest(ROOT / name) for name in texts}
    with suppress(OSError):  # a read-only folder
        write_private(kept, json.dumps(digests).encode())
    return digests
