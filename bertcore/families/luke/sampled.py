"""The loss of masked entities over a sample of all entities."""

import numpy as np

from bertcore.heads import LanguageModelHead
from bertcore.kernels.arrays import ArrayLike
from bertcore.models.losses import label_array
from bertcore.nn import functional
from bertcore.passes import Pass
from bertcore.tape import Tensor, value_of

IGNORED = functional.losses.IGNORED
NEVER = -1e4  # a logit whose exponential is zero


def sampled_loss(
    run: Pass, head: LanguageModelHead, hidden: Tensor, labels: np.ndarray, sample: ArrayLike, num_classes: int
) -> Tensor:
    """Return the mean cross entropy over the entities with a label, estimated from the logits of a sample.

    The sum of exp(logit) over all other classes is estimated by the sum over the sample, times the number of all
    classes divided by the sample's: importance sampling (Bengio and Senecal 2008, "Adaptive importance sampling to
    accelerate training of a neural probabilistic language model"; Jean et al. 2015, arXiv:1412.2007). The factor is
    added to each logit as -log Q, where Q is the probability that the sample has the class, as in Yi et al. 2019,
    "Sampling-bias-corrected neural modeling for large corpus item recommendations". With all classes as the sample the
    loss is exact.

    Args:
        run: the pass.
        head: the head that computes the logits.
        hidden: states, (entities, hidden).
        labels: (entities,), in host memory; -100 for no label.
        sample: distinct classes, drawn uniformly, (sample,).
        num_classes: the number of all classes.
    """
    sample = label_array("entity_sample", sample)
    if sample.ndim != 1 or sample.dtype.kind not in "iu" or not 0 < len(np.unique(sample)) == len(sample):
        raise ValueError(f"entity_sample is {sample.dtype} of shape {sample.shape}, expected distinct integers, (n,)")
    if sample.min() < 0 or sample.max() >= num_classes:
        raise ValueError(f"entity_sample has {sample.min()} to {sample.max()}, expected 0 to {num_classes - 1}")
    rows = np.flatnonzero(labels != IGNORED)
    classes = np.concatenate([sample, np.setdiff1d(labels[rows], sample)])
    order = np.argsort(classes)
    targets = order[np.searchsorted(classes, labels[rows], sorter=order)]
    terms = np.full((len(rows), len(classes)), NEVER)
    terms[:, : len(sample)] = np.log(num_classes / len(sample))
    terms[np.arange(len(rows)), targets] = 0  # the correct class counts exactly
    chosen = functional.take_rows(run, hidden, rows=run.to_backend(rows))
    logits = head.among(run, chosen, run.to_backend(classes))
    terms = run.to_backend(terms.astype(value_of(logits).dtype))
    return functional.cross_entropy(run, functional.add(run, logits, terms), labels=run.to_backend(targets))
