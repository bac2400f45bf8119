"""The error every checkpoint problem is reported with."""


class CheckpointError(ValueError):
    """A checkpoint cannot be read, or does not fit the model; the message names the file and all that is wrong."""


def listed(items: list[str]) -> str:
    """`items` joined by commas, cut after ten with the number left out."""
    rest = f", and {len(items) - 10} more" if len(items) > 10 else ""
    return ", ".join(items[:10]) + rest
