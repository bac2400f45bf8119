"""Every CUDA source of bertcore.kernels and its kernels."""

import functools
import importlib
from pathlib import Path

from bertcore import kernels
from bertcore.kernels import _cuda

KERNELS = Path(kernels.__file__).parent


def sources(operation):
    """The .cu files of an operation's folder."""
    return sorted(operation.rglob("*.cu"))


OPERATIONS = sorted({path.parent.name for path in KERNELS.glob("[a-z]*/reference.py") if sources(path.parent)})


def modules(operation):
    """Return the _cuda.Source objects of an operation's cuda.py, or of the modules in its folder cuda/."""
    names = ["cuda", *(f"cuda.{path.stem}" for path in sorted((KERNELS / operation / "cuda").glob("[a-z]*.py")))]
    namespaces = [vars(importlib.import_module(f"{kernels.__name__}.{operation}.{name}")) for name in names]
    return [value for names in namespaces for value in names.values() if isinstance(value, _cuda.Source)]


@functools.cache
def module_with(kernel, text):
    """Return the module with the source `text` that launches `kernel`."""
    every = (module for operation in OPERATIONS for module in modules(operation))
    found = [module for module in every if kernel in module.instantiations and module.text == text]
    if not found:
        raise LookupError(f"no cuda.py has a module with this source and the kernel {kernel}")
    return found[0]
