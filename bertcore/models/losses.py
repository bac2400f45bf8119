"""Losses of models, and the checks of their labels.

Losses and the names of labels follow transformers: without any label, the loss is NaN.
"""

import functools

import numpy as np

from bertcore import kernels
from bertcore.kernels.arrays import ArrayLike, NativeArray
from bertcore.models.inputs import integer_batch, refuse_where
from bertcore.nn import functional
from bertcore.nn.packing import PackedBatch
from bertcore.passes import Pass
from bertcore.tape import Tensor, value_of

IGNORED = functional.losses.IGNORED
PROBLEM_TYPES = ("regression", "single_label_classification", "multi_label_classification")


def cross_entropy(run: Pass, logits: Tensor, labels: NativeArray) -> Tensor:
    """Return the mean cross entropy over the rows whose label is not -100, under the active options."""
    options = run.class_options
    if options is None:
        return functional.cross_entropy(run, logits, labels=labels)
    weights, smoothing = options.weights_for(value_of(logits), run.to_backend), options.label_smoothing
    return functional.cross_entropy(run, logits, labels=labels, label_smoothing=smoothing, class_weights=weights)


def total(run: Pass, *losses: Tensor) -> Tensor:
    """Return the sum of losses, each times its factor in `run.loss_factors`."""
    if run.trace.losses is not None:
        run.trace.losses += map(value_of, losses)
    factors = run.loss_factors or [1] * len(losses)
    parts = (
        loss if factor == 1 else functional.scale(run, loss, factor=factor)
        for loss, factor in zip(losses, factors, strict=True)
        if factor
    )
    return functools.reduce(functools.partial(functional.add, run), parts)


def token_loss(run: Pass, logits: Tensor, labels: ArrayLike, packed: PackedBatch, num_classes: int, *,
               name: str = "labels", kind: str = "") -> Tensor:  # fmt: skip
    """Return the mean cross entropy over the tokens whose label, (sequences, length), is not -100."""
    return cross_entropy(run, logits, run.to_backend(words(packed, labels, num_classes, name, kind)))


def words(packed: PackedBatch, labels: ArrayLike, num_classes: int, name: str = "labels", kind: str = "") -> np.ndarray:
    """Return the label of each packed token, in host memory; -100 for no label.

    `kind` is "entity_" for labels of entities, the prefix of their inputs' names.
    """
    array = integer_batch(name, labels)
    if array.shape != packed.shape:
        raise ValueError(f"{name} has shape {array.shape}, expected {packed.shape} as {kind or 'input_'}ids has")
    _check_classes(name, array, num_classes)
    kept = packed.strip(array)
    if np.count_nonzero(kept != IGNORED) != np.count_nonzero(array != IGNORED):
        raise ValueError(f"{name} has a label at a padded position ({kind}attention_mask 0): set it to -100")
    return kept


def next_words(packed: PackedBatch, labels: ArrayLike, num_classes: int) -> np.ndarray:
    """Return for each packed token the label of the next one, which it predicts, in host memory; -100 for none."""
    own = words(packed, labels, num_classes)
    following = np.full(own.shape, IGNORED, np.int64)
    following[:-1] = own[1:]
    following[packed.cu_seqlens[1:][packed.has_tokens] - 1] = IGNORED
    return following


def sequence_loss(run: Pass, logits: Tensor, labels: ArrayLike, num_classes: int, *, name: str = "labels") -> Tensor:
    """Return the mean cross entropy over the sequences whose label, (sequences,) or (sequences, 1), is not -100."""
    array = label_array(name, labels)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} holds {array.dtype}, expected integers")
    array = _one_each(name, array, logits)
    _check_classes(name, array, num_classes)
    return cross_entropy(run, logits, run.to_backend(array))


def classification_loss(run: Pass, logits: Tensor, labels: ArrayLike, num_labels: int, problem_type: str | None, *,
                        soft_labels: bool = False) -> Tensor:  # fmt: skip
    """Return the loss of a sequence classifier, by the config's problem_type.

    "single_label_classification": mean cross entropy; labels are classes, (sequences,), or class probabilities (from a
    teacher, say), floats (sequences, num_labels). "regression": mean squared error; labels are numbers, (sequences,) or
    (sequences, num_labels). "multi_label_classification": mean binary cross entropy; labels are numbers from 0 to 1,
    (sequences, num_labels). Without a problem_type, one label means regression; otherwise integer labels are classes
    and others multi-label targets, or with `soft_labels` (`Family.soft_labels`) class probabilities.
    """
    array = label_array("labels", labels)
    if problem_type is None:
        if soft_labels and num_labels > 1 and array.ndim == 2 and array.shape[1] > 1:
            return soft_loss(run, logits, array)
        problem_type = PROBLEM_TYPES[0 if num_labels == 1 else 1 if array.dtype.kind in "iu" else 2]
        if array.dtype.kind == "f" and array.ndim == 1 and num_labels > 1:
            raise ValueError(
                f"labels holds {array.dtype} of shape {array.shape}, expected integers, a class for each sequence, or "
                f"numbers of (sequences, {num_labels})"
            )
    if problem_type not in PROBLEM_TYPES:
        raise ValueError(f"config: problem_type is {problem_type!r}, known are {', '.join(PROBLEM_TYPES)}")
    if problem_type == "single_label_classification":
        if array.dtype.kind == "f" and array.ndim == 2 and num_labels > 1:
            return soft_loss(run, logits, array)
        return sequence_loss(run, logits, array, num_labels)
    if problem_type == "multi_label_classification":
        return binary_loss(run, logits, array)
    array = _one_each("labels", array, logits)[:, None] if num_labels == 1 else array
    return functional.mean_squared_error(run, logits, labels=floating_labels(run, array, logits))


def soft_loss(run: Pass, logits: Tensor, labels: np.ndarray) -> Tensor:
    """Return the mean cross entropy with class probabilities of the shape of `logits`."""
    options, array = run.class_options, floating_labels(run, labels, logits)
    if not (labels >= 0).all():
        raise ValueError(f"labels holds {labels.min()}, expected probabilities of classes")
    if options is not None:
        classes, smoothing = array.shape[1], options.label_smoothing
        array = (1 - smoothing) * array + smoothing / classes
        weights = options.weights_for(array, run.to_backend)
        array = (array if weights is None else array * weights).astype(value_of(logits).dtype)
    return functional.soft_cross_entropy(run, logits, labels=array)


def binary_loss(run: Pass, logits: Tensor, labels: np.ndarray) -> Tensor:
    """Return the mean binary cross entropy with labels from 0 to 1 of the shape of `logits`."""
    array = floating_labels(run, labels, logits)
    refuse_where(~((labels >= 0) & (labels <= 1)), "labels", labels, "0 to 1")
    return functional.binary_cross_entropy(run, logits, labels=array)


def position_loss(run: Pass, logits: Tensor, column: int, positions: ArrayLike, name: str,
                  shape: tuple[int, int]) -> Tensor:  # fmt: skip
    """Return the mean cross entropy of a column among the columns of its sequence; `logits` are (columns, 2)."""
    array = label_array(name, positions)
    if array.dtype.kind not in "iu" or array.size != shape[0]:
        raise ValueError(f"{name} is {array.dtype} of shape {array.shape}, expected integers, ({shape[0]},)")
    array = array.reshape(-1)
    if (array < 0).any():
        raise ValueError(f"{name}[{array.argmin()}] is {array.min()}, expected a column, from 0 on")
    labels = run.to_backend(np.where(array < shape[1], array, IGNORED))
    scores = functional.reshape(run, functional.slice_columns(run, logits, first=column, last=column + 1), shape=shape)
    return cross_entropy(run, scores, labels)


def floating_labels(run: Pass, labels: np.ndarray, logits: Tensor) -> NativeArray:
    """Return labels in the dtype, shape and memory of `logits`."""
    plain = value_of(logits)
    if labels.shape != plain.shape:
        raise ValueError(f"labels has shape {labels.shape}, expected {plain.shape}")
    with np.errstate(over="ignore"):
        array = labels.astype(plain.dtype)
    if not np.isfinite(array).all():
        raise ValueError(f"labels holds {labels[~np.isfinite(array)][0]}, expected finite numbers of {plain.dtype}")
    return run.to_backend(array)


def label_array(name: str, labels: ArrayLike) -> np.ndarray:
    """Return labels of any shape as an array of numbers in host memory."""
    try:
        array = kernels.to_host(labels)
    except ValueError as error:  # lists of different lengths
        raise ValueError(f"{name} is not a table of numbers: {error}") from error
    if array.dtype.kind not in "iuf":
        raise TypeError(f"{name} holds {array.dtype}, expected numbers")
    return array


def _one_each(name: str, array: np.ndarray, logits: Tensor) -> np.ndarray:
    sequences = value_of(logits).shape[0]
    if array.size != sequences or array.ndim > 2:
        raise ValueError(f"{name} has shape {array.shape}, expected ({sequences},): one for each sequence")
    return array.reshape(-1)


def _check_classes(name: str, array: np.ndarray, num_classes: int) -> None:
    wrong = (array != IGNORED) & ((array < 0) | (array >= num_classes))
    refuse_where(wrong, name, array, f"0 to {num_classes - 1}, or {IGNORED} for none")
