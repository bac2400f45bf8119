"""The error every checkpoint problem is reported with."""


class CheckpointError(ValueError):
    """A checkpoint cannot be read, or does not fit the model; the message names the file and all that is wrong."""


def listed(items: list[str], limit: int = 10) -> str:
    """`items` joined by commas, cut after `limit` with the number left out."""
    rest = f", and {len(items) - limit} more" if len(items) > limit else ""
    return ", ".join(items[:limit]) + rest
