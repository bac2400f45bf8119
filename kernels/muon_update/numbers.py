"""The numbers of Muon; the sources are in the contract (__init__.py)."""

COEFFICIENTS = 3.4445, -4.7750, 2.0315  # a, b and c of a step
STEPS = 5
EPS = 1e-7
RMS = 0.2  # of an update, as usual for AdamW


def rate_of(shape, lr):
    """Return the factor of the orthogonalized matrix."""
    return lr * RMS * max(shape) ** 0.5
