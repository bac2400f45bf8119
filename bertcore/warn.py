"""Warnings that point at the user's own line, however deep in bertcore they arise."""

import os
import sys
import warnings

_PACKAGE = os.path.dirname(__file__) + os.sep


def warn_caller(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the innermost line outside bertcore that led here: `skip_file_prefixes`, which Python 3.11 lacks."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
