"""Packages that bertcore is installed with on request."""

import importlib
from typing import Any


def required(name: str) -> Any:
    """The module of scikit-learn or SciPy of that name; ImportError, which names the extra, where it is missing."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = {"sklearn": "scikit-learn", "scipy": "SciPy"}[name.partition(".")[0]]
        raise ImportError(f"{package} is not installed, which this needs: pip install 'bertcore[training]'") from error
