"""The parts of late interaction around the encoder: rows of tokens, maps of token vectors, pooling of vectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertcore.arguments import check_count, check_number, required, warn_caller
from bertcore.checkpoint import CheckpointError, open_checkpoint
from bertcore.kernels.arrays import Array
from bertcore.models.model import NewlyInitialisedWarning
from bertcore.nn import functional
from bertcore.nn.parameter import Block
from bertcore.passes import Pass
from bertcore.tape import Tensor
from bertcore.tasks.multi_vector.settings import LateSettings
from bertcore.tasks.sentence_encoder.modules import Dense, read_dense
from bertcore.tasks.similarity import normalized

VECTORS = "token_embeddings"
LINEAR = {"bias": False, "activation_function": "torch.nn.modules.linear.Identity"}


class TokenHead(Block):
    """The maps of hidden states to token vectors, and their scaling to length 1.

    Attributes:
        maps: Dense blocks, whose parameters' names begin with "1_Dense.", ...
        configs: the config of each, as it is saved.
        normalize: whether vectors are scaled to length 1.
        width: length of a vector.
    """

    def __init__(self, settings: LateSettings, hidden_size: int, dtype: str, new_width: int):
        self.maps: list[Dense] = []
        self.configs: list[dict[str, Any]] = []
        self.normalize, self.width = settings.normalize, hidden_size
        for number, module in enumerate(settings.maps, 1):
            self._add(*read_dense(module.folder, self.width, dtype, VECTORS, f"{number}_Dense."))
        if settings.projection is not None:
            self._add_linear(*settings.projection, dtype)
        elif settings.is_new:
            warn_caller(
                f"{settings.model_folder} has no map to token vectors: newly initialised, train before use",
                NewlyInitialisedWarning,
            )
            dense = self._made(new_width, bias=False)
            for parameter in dense.parameters():
                parameter.initialise(np.random.default_rng(0), (3 * hidden_size) ** -0.5, dtype)

    def _add(self, dense: Dense, config: Mapping[str, Any], width: int) -> None:
        self.maps.append(dense)
        self.configs.append(dict(config) | {"module_input_name": VECTORS, "module_output_name": VECTORS})
        self.width = width

    def _made(self, width: int, *, bias: bool) -> Dense:
        sizes = {"in_features": self.width, "out_features": width}
        dense = Dense(sizes, activation=None, bias=bias, residual=False, prefix="1_Dense.")
        self._add(dense, LINEAR | sizes | {"bias": bias}, width)
        return dense

    def _add_linear(self, path: Path, start: str, dtype: str) -> None:
        """Add the map whose weights stand beside the model's, or in a file of their own."""
        opened = open_checkpoint(path)
        shape = opened.info[f"{start}weight"].shape if f"{start}weight" in opened else None
        if shape is None or len(shape) != 2 or shape[1] != self.width:
            what = "is missing" if shape is None else f"has shape {tuple(shape)}"
            raise CheckpointError(f"{opened.source}: {start}weight {what}, expected (vectors, {self.width})")
        dense = self._made(shape[0], bias=f"{start}bias" in opened)
        for parameter in dense.parameters():
            (name,) = parameter.names
            values = np.asarray(opened[start + name.rpartition(".")[2]], dtype)
            if values.shape != parameter.shape:
                raise CheckpointError(f"{opened.source}: {start}bias has shape {values.shape}, expected {shape[:1]}")
            parameter.fill({name: values}, dtype)

    def __call__(self, run: Pass, hidden: Tensor) -> Tensor:
        """Map hidden states, (tokens, hidden), to vectors, (tokens, width)."""
        rows = functional.widened(hidden) if run.tape is None else hidden
        for dense in self.maps:
            rows = dense(run, rows)
        return functional.unit_rows(run, rows) if self.normalize else rows


@dataclass(frozen=True)
class TokenRow:
    """The tokens of one text."""

    ids: np.ndarray  # token ids, int32 (tokens,)
    seen: np.ndarray  # which of them other tokens attend to, booleans
    scored: np.ndarray  # which of them have a vector, booleans

    def __len__(self) -> int:
        return len(self.ids)


def pool_tokens(
    vectors: Array, pool_factor: float, *, protected_tokens: int = 1, normalize_embeddings: bool = True
) -> np.ndarray:
    """Reduce a text's vectors to the means of clusters, by Ward's method on cosine distances.

    Args:
        vectors: (tokens, dim), of length 1.
        pool_factor: about tokens / pool_factor vectors are kept; 1 keeps all.
        protected_tokens: number of first vectors that are kept unchanged.
        normalize_embeddings: whether to scale the result to length 1.

    Raises ValueError for a `pool_factor` below 1 and negative `protected_tokens`, ImportError if SciPy is missing.
    Source: Clavié et al. 2024, arXiv:2409.14683.
    """
    if check_number("pool_factor", pool_factor) < 1:
        raise ValueError(f"pool_factor is {pool_factor}, expected at least 1")
    check_count("protected_tokens", protected_tokens, 0)
    first, rest = vectors[:protected_tokens], vectors[protected_tokens:]
    count = max(int(len(rest) // pool_factor), 1)
    if count < len(rest):
        hierarchy = required("scipy.cluster.hierarchy")
        distances = (1 - rest @ rest.T).clip(0, 2)[np.triu_indices(len(rest), 1)]
        labels = hierarchy.fcluster(hierarchy.linkage(distances, "ward"), count, "maxclust")
        _, groups = np.unique(labels, return_inverse=True)
        sums = np.zeros((groups.max() + 1, rest.shape[1]), vectors.dtype)
        np.add.at(sums, groups, rest)
        means = sums / np.bincount(groups)[:, None].astype(vectors.dtype)
        vectors = np.concatenate([first, means])
    return normalized(vectors) if normalize_embeddings else vectors
