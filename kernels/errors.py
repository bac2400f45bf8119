"""Errors that several parts raise."""


class BackendUnavailable(RuntimeError):
    """The chosen backend cannot run here; the message says why and what to install."""
