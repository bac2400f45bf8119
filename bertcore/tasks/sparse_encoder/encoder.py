"""SparseEncoder: a published SPLADE model, from its folder to the words that a text is about."""

import functools
import os
import warnings
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from bertcore import kernels
from bertcore.arguments import check_count, required
from bertcore.checkpoint import CheckpointError, resolve
from bertcore.execution import Pass
from bertcore.kernels import checks
from bertcore.models.auto import AutoModelForMaskedLM
from bertcore.models.model import NewlyInitialisedWarning
from bertcore.tasks.batching import BATCH_TOKENS
from bertcore.tasks.long_texts import Cutting
from bertcore.tasks.merged_windows import MERGES
from bertcore.tasks.progress import progress_bar
from bertcore.tasks.reading import Encoder
from bertcore.tasks.sparse_encoder.pooling import pooled_words
from bertcore.tasks.sparse_encoder.rows import MergedWords, SparseRow, sparse_row
from bertcore.tasks.sparse_encoder.settings import read_sparse_settings
from bertcore.tasks.texts import checked_texts, sequence_length
from bertcore.tokenization import AutoTokenizer

if TYPE_CHECKING:
    from scipy.sparse import csr_array


class SparseEncoder(Encoder):
    """Turns each text into a weight for each word of the vocabulary, most of them zero (SPLADE).

    A word's weight is the greatest log(1 + relu(logit)) that the masked language model gives it at any token of the
    text (Formal et al. 2021, arXiv:2109.10086), or their sum (arXiv:2107.05720). The logits of a few texts at a time
    are in memory, never those of a batch.

    Args:
        folder: a model as sentence-transformers publishes it (modules.json: MLMTransformer and SpladePooling), a plain
            masked language model's folder, or its id on the Hugging Face hub.
        dtype: of the weights and the computation, as for AutoModel; embeddings are float32.
        max_seq_length: cut texts to this many tokens, special ones included; by default as published.
        max_active_dims: keep this many words of each text, those of the greatest weights; by default as published, or
            all.
        revision, token, cache_dir, local_files_only: for an id on the hub, as `checkpoint.resolve` has them.

    Attributes:
        settings: those of the folder.
        embedding_dimension: the number of words.
        max_seq_length: where texts are cut, in tokens.
        model, tokenizer: the parts.

    Raises:
        CheckpointError: which file of the folder is wrong, or a checkpoint without a masked language model's head.
        ValueError: a number out of range.

    The first call that cuts texts ends with a TextsCutWarning that says how many. One encoder may be used by several
    threads at once.
    """

    def __init__(
        self,
        folder: str | os.PathLike,
        *,
        dtype: str | None = None,
        max_seq_length: int | None = None,
        max_active_dims: int | None = None,
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: str | os.PathLike | None = None,
        local_files_only: bool = False,
    ):
        hub = {"revision": revision, "token": token, "cache_dir": cache_dir, "local_files_only": local_files_only}
        self.settings = settings = read_sparse_settings(resolve(folder, "sentence_encoder", **hub))
        where = settings.model_folder
        with warnings.catch_warnings():  # a missing head is an error here
            warnings.simplefilter("ignore", NewlyInitialisedWarning)
            self.model: Any = AutoModelForMaskedLM.from_pretrained(where, dtype=dtype)
        if self.model.newly_initialised:
            raise CheckpointError(
                f"{where} does not hold {', '.join(self.model.newly_initialised)}: it is no masked language model"
            )
        self.tokenizer = AutoTokenizer.from_pretrained(where)
        special, positions = self.tokenizer.num_special_tokens_to_add(), self.model.spec.longest_sequence
        published = settings.max_seq_length or self.tokenizer.model_max_length
        self.max_seq_length = sequence_length(max_seq_length, published, positions, special, where)
        self._max_active = (
            settings.max_active_dims if max_active_dims is None else check_count("max_active_dims", max_active_dims)
        )
        self.embedding_dimension = self.model.spec.vocab_size

    def encode(
        self,
        texts: Iterable[str],
        *,
        prompt: str | None = None,
        prompt_name: str | None = None,
        max_active_dims: int | None = None,
        truncation: Any = "warn",
        stride: int | None = None,
        merge: str = "max",
        batch_tokens: int = BATCH_TOKENS,
        show_progress: bool | None = None,
    ) -> "csr_array":
        """Embed texts into a sparse matrix (texts, words), float32 (needs SciPy).

        Args:
            texts: strings; an empty one is a text like any other.
            prompt, prompt_name: text to put before each, or the name of one of the model's own prompts; by default the
                model's default prompt, if it has one.
            max_active_dims: replaces the encoder's, for this call.
            truncation: what happens to texts longer than `max_seq_length`: "warn" cuts them and warns once, with
                counts; True cuts them; "error" refuses them; "chunk" reads all of them, in overlapping windows.
            stride: for "chunk", how many tokens two windows share; by default a quarter of a window.
            merge: for "chunk", what makes the weights of those of a text's windows: the "max" of each word, or their
                "mean", weighted by tokens.
            batch_tokens: how many tokens are computed at once; bounds the memory, does not change the result.
            show_progress: True or False; by default on a terminal, when the work takes long.

        Raises:
            TypeError: which of `texts` is not a string.
            ValueError: a text that is not valid Unicode, an unknown prompt name, a number that is not positive, a wrong
                `truncation`, `stride` or `merge`, a text that is too long where that is refused.
            ImportError: without SciPy; `encode_stream` needs none.
        """
        sparse = required("scipy.sparse")  # before the work, and not after it
        asked = {"prompt": prompt, "prompt_name": prompt_name, "max_active_dims": max_active_dims}
        how = {"truncation": truncation, "stride": stride, "merge": merge, "batch_tokens": batch_tokens}
        rows = list(self.encode_stream(texts, show_progress=show_progress, **asked, **how))
        offsets = np.cumsum([0, *(len(row.indices) for row in rows)])
        indices = np.concatenate([np.zeros(0, np.int32), *(row.indices for row in rows)])
        values = np.concatenate([np.zeros(0, np.float32), *(row.values for row in rows)])
        return sparse.csr_array((values, indices, offsets), shape=(len(rows), self.embedding_dimension))

    def encode_stream(
        self,
        texts: Iterable[str],
        *,
        prompt: str | None = None,
        prompt_name: str | None = None,
        max_active_dims: int | None = None,
        truncation: Any = "warn",
        stride: int | None = None,
        merge: str = "max",
        batch_tokens: int = BATCH_TOKENS,
        show_progress: bool | None = None,
    ) -> Iterator[SparseRow]:
        """Embed texts as they come: an iterator over their `SparseRow`s, in their order.

        Memory is bounded, however many texts there are. The backend is the one in force at this call; the arguments are
        those of `encode`.
        """
        checked, batch_tokens = checked_texts(texts), check_count("batch_tokens", batch_tokens)
        before = self.prompt(prompt, prompt_name)
        most = self._max_active if max_active_dims is None else check_count("max_active_dims", max_active_dims)
        cutting, backend = Cutting(truncation, self.max_seq_length, stride), kernels.get_backend()
        checks.choice("merge", merge, MERGES)
        whole = MergedWords(merge, self.embedding_dimension, most)
        kept = None if cutting.reads_all else most  # those of a text are chosen of all of its windows' words
        how = whole, cutting, batch_tokens, backend

        def rows() -> Iterator[SparseRow]:
            with progress_bar(None, show_progress) as advance:
                found = self._read(checked, lambda batch: self.words(batch, kept), *how, advance, before)
                yield from chain.from_iterable(found)

        return rows()

    def decode(self, embeddings: Any, top_k: int | None = None) -> Any:
        """The words of embeddings and their weights, the greatest first.

        Args:
            embeddings: a `SparseRow`, or a sparse matrix as `encode` returns it, or a row of one.
            top_k: how many words; all by default.

        Returns:
            [(word, weight)] for a row, a list of such lists for a matrix.
        """
        if top_k is not None:
            check_count("top_k", top_k)
        if isinstance(embeddings, SparseRow):
            known = embeddings.indices < len(self.tokenizer)  # a model's vocabulary is often rounded up
            embeddings = SparseRow(embeddings.indices[known], embeddings.values[known])
            order = np.argsort(-embeddings.values, kind="stable")[:top_k]
            words = self.tokenizer.convert_ids_to_tokens(embeddings.indices[order].tolist())
            return list(zip(words, embeddings.values[order].tolist(), strict=True))
        if not hasattr(embeddings, "tocsr"):
            raise TypeError(f"embeddings is {type(embeddings).__name__}, expected a SparseRow or a sparse matrix")
        if embeddings.ndim == 1:
            return self.decode(embeddings.reshape(1, -1), top_k)[0]
        embeddings = embeddings.tocsr()
        rows = zip(embeddings.indptr[:-1], embeddings.indptr[1:], strict=True)
        parts = (SparseRow(embeddings.indices[a:b], embeddings.data[a:b]) for a, b in rows)
        return [self.decode(part, top_k) for part in parts]

    def similarity(self, left: Any, right: Any) -> np.ndarray:
        """The dot product of every row of `left` (n, words) with every row of `right` (m, words): (n, m)."""
        return (left @ right.T).toarray()

    def words(self, batch: list[np.ndarray], max_active_dims: int | None = None) -> list[SparseRow]:
        """The words of each text of a batch of token ids, at most `max_active_dims` of them."""
        hidden, cu_seqlens = self.model.encode_packed(batch)
        head = functools.partial(self.model.heads[0], Pass.begin(hidden))
        pooled = pooled_words(head, hidden, cu_seqlens, self.settings)
        return [sparse_row(weights, max_active_dims) for weights in pooled]
