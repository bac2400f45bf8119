"""SparseEncoder: sparse embeddings of texts from published models: SPLADE, inference-free SPLADE, and CSR."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

import numpy as np

from bertcore.arguments import DType, check_count, naming_nearest, older_names, required
from bertcore.checkpoint.files import CONFIG_NAME, write_json
from bertcore.kernels import checks
from bertcore.models.auto import AutoModel, AutoModelForMaskedLM
from bertcore.passes import Pass
from bertcore.tasks.encoders import EncoderOptions, EncoderPool, ReadingOptions, locking_folder
from bertcore.tasks.folder import (
    MODULES_NAME,
    TRANSFORMER_NAMES,
    Module,
    Routes,
    module_entries,
    read_routes,
    update_json,
)
from bertcore.tasks.reading import PromptedReader, ReadOptions, by_route
from bertcore.tasks.search import SparseIndex
from bertcore.tasks.sentence_encoder.encoder import SentenceEncoder
from bertcore.tasks.similarity import SIMILARITIES
from bertcore.tasks.sparse_modules import (
    DOCUMENT,
    QUERY,
    TYPES,
    AutoEncoder,
    LearnedWeights,
    MergedWords,
    SparseRow,
    SparseSettings,
    TokenWeights,
    as_table,
    as_tensor,
    as_vector,
    find_idf,
    like,
    pooled_words,
    read_sparse_settings,
    sparse_row,
    write_router,
)
from bertcore.tasks.texts import checked_texts, listed_texts, progress_bar

if TYPE_CHECKING:
    import torch
    from scipy.sparse import csr_array

    SparseRows: TypeAlias = csr_array | torch.Tensor | list[SparseRow]


class TextOptions(ReadingOptions, total=False):
    """Arguments of `SparseEncoder.encode_stream` other than the texts and their prompt."""

    batch_size: int | None
    max_active_dims: int | None
    task: str | None


class SparseEncoder(PromptedReader):
    """Turn each text into a sparse vector: one weight per token of the vocabulary, mostly zero (SPLADE).

    The weight of a vocabulary token is the maximum over the text of the masked language model's log(1 + relu(logit))
    (Formal et al. 2021, arXiv:2109.10086), or their sum (arXiv:2107.05720). Memory holds the logits of a few texts at a
    time, never those of a batch. Instead of a model, a table may hold the weights of tokens, so that queries need no
    pass (arXiv:2411.04403); or an autoencoder makes a sentence encoder's vectors sparse (CSR, arXiv:2503.01776).

    Args:
        model_name_or_path: a model as sentence-transformers publishes it: MLMTransformer and SpladePooling,
            SparseStaticEmbedding, the modules of a sentence encoder and SparseAutoEncoder (a new one, to be trained,
            where that is missing), or a Router of these; a plain masked language model's folder, where an idf.json has
            the weights of queries; BGE-M3 (its sparse_linear.pt); or its id on the Hugging Face hub.
        dtype: dtype of weights and computation, as for AutoModel; embeddings are float32.
        max_seq_length: cut texts to this many tokens, including special tokens; by default as published.
        similarity_fn_name: "dot", "cosine", "euclidean" or "manhattan"; by default as published, or "dot".
        max_active_dims: keep this many of the greatest weights of each text; by default as published, or all.
        options: see `Encoder`.

    Attributes:
        settings: settings of the folder.
        max_seq_length, similarity_fn_name, max_active_dims: as given, or else as published.
        embedding_dimension: size of the vocabulary, or of an autoencoder's code.
        head: the table of weights or the autoencoder, a block with parameters; None for SPLADE.

    Raises:
        CheckpointError: a file of the folder is invalid, or the checkpoint has no masked language model's head.
        ValueError: a number is out of range.
    """

    @locking_folder
    def __init__(
        self,
        model_name_or_path: str | os.PathLike[str],
        *,
        dtype: DType | None = None,
        max_seq_length: int | None = None,
        similarity_fn_name: str | None = None,
        max_active_dims: int | None = None,
        **options: Unpack[EncoderOptions],
    ):
        folder = self._open(model_name_or_path, "sparse encoder", options)

        def load(reader: SparseEncoder, modules: list[Module] | None, models: dict[Path, Any]) -> None:
            reader._load_parts(read_sparse_settings(folder, modules), dtype, max_seq_length, models)

        self._load_routes(load)
        settings = self.settings
        self.similarity_fn_name = settings.similarity if similarity_fn_name is None else similarity_fn_name
        if max_active_dims is None:
            most = None if settings.dense is None else self.head.k
            self.max_active_dims = settings.max_active_dims or most
        else:
            self.max_active_dims = check_count("max_active_dims", max_active_dims)

    def _load_parts(
        self, settings: SparseSettings, dtype: str | None, max_seq_length: int | None, models: dict[Path, Any]
    ) -> None:
        """Load the model, the tokenizer and the head; `models` has those already loaded, by folder."""
        self.settings, self.head, where = settings, None, settings.model_folder
        of_head = "float64" if dtype == "float64" else "float32"
        if settings.dense is not None:
            self.dense = SentenceEncoder.__new__(SentenceEncoder)
            self.dense.task = self.dense.truncate_dim = None
            self.dense.load_parts(settings.dense, dtype, max_seq_length, None, models)
            for name in ("model", "tokenizer", "_lengths", "_length"):
                setattr(self, name, getattr(self.dense, name))
            self.head = AutoEncoder(settings.head_folder, self.dense.embedding_dimension, of_head)
            self.embedding_dimension = self.head.hidden_dim
        elif settings.linear is not None:
            self.model = AutoModel.from_pretrained(where, dtype=dtype, add_pooling_layer=False)
            self._load_tokenizer(where, max_seq_length, settings.max_seq_length)
            self.head = LearnedWeights(settings.linear, self.model.spec.hidden_size, self.tokenizer)
            self.embedding_dimension = self.model.spec.vocab_size
        elif settings.is_static:
            self.model = SimpleNamespace(spec=SimpleNamespace(longest_sequence=None), dtype="float32")
            self._load_tokenizer(where, max_seq_length, settings.max_seq_length, "bare")
            self.head = TokenWeights(where, self.folder, self.tokenizer.get_vocab(), of_head)
            self.embedding_dimension = len(self.head.table)
        else:
            if where not in models:
                self._load_trained(AutoModelForMaskedLM, where, dtype, "masked language model")
                models[where] = self.model
            self.model = models[where]
            self._load_tokenizer(where, max_seq_length, settings.max_seq_length)
            self.embedding_dimension = self.model.spec.vocab_size

    def _find_routes(self) -> Routes | None:
        """Return the routes of the folder; an idf.json beside a plain model has the weights of queries."""
        folder = self.folder
        if not (folder / MODULES_NAME).is_file() and find_idf(folder, folder) is not None:
            kinds = {"query": ["SparseStaticEmbedding"], "document": ["Transformer", "SpladePooling"]}
            return Routes({name: [Module(kind, kind, folder) for kind in kinds[name]] for name in kinds}, "document")
        return read_routes(folder)

    @by_route
    @older_names(sentences="inputs")
    @naming_nearest(*TextOptions.__annotations__)
    def encode(
        self,
        inputs: str | Iterable[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        *,
        convert_to_tensor: bool | None = None,
        convert_to_sparse_tensor: bool | None = None,
        pool: EncoderPool | None = None,
        chunk_size: int | None = None,
        save_to_cpu: bool = True,
        **options: Unpack[TextOptions],
    ) -> csr_array:
        """Embed texts as a sparse matrix (texts, vocabulary), float32; one text as a row, (vocabulary,).

        Args:
            inputs: one string or several.
            prompt_name, prompt, options: as for `encode_stream`, also for errors.
            convert_to_tensor: True gives a PyTorch tensor, as does `convert_to_sparse_tensor`; False a list of tensors.
            convert_to_sparse_tensor: whether that tensor is sparse (default).
            pool: the processes of `start_multi_process_pool` to compute with; a list as `device` starts a pool.
            chunk_size: number of texts sent to a process of the pool at once.
            save_to_cpu: ignored; embeddings are always in host memory.

        Raises ImportError if SciPy is missing, or PyTorch for a tensor.
        """
        for name, flag in (("_tensor", convert_to_tensor), ("_sparse_tensor", convert_to_sparse_tensor)):
            checks.boolean(f"convert_to{name}", False if flag is None else flag)
        sparse = required("scipy.sparse")  # fail before any work
        many, is_one = listed_texts(inputs), isinstance(inputs, str)
        given: dict[str, Any] = {"prompt": prompt, "prompt_name": prompt_name, **options}
        parts = self._in_processes(many, pool, chunk_size, given)
        if parts:
            found = sparse.vstack(parts, format="csr")
        else:
            rows = self._short(many[0], given) if parts is None and is_one else None
            rows = rows or (list(self.encode_stream(many, **given)) if parts is None else [])
            if is_one and rows:  # a row of a table takes SciPy 25 times as long
                found = as_vector(rows[0], self.embedding_dimension)
            else:
                found = as_table(rows, self.embedding_dimension)
        found = found[0] if is_one and found.ndim == 2 else found
        if convert_to_tensor is None and convert_to_sparse_tensor is None:
            return found
        tensor = as_tensor(found, convert_to_sparse_tensor is not False)
        return list(tensor) if convert_to_tensor is False and tensor.ndim == 2 else tensor

    def _short(self, text: str, given: Mapping[str, Any]) -> list[SparseRow] | None:
        """Return the row of a text with looked-up weights, in half the time of `encode_stream`.

        Returns None for other models, for options, and for a text that is too long.
        """
        prompts = {"prompt": given["prompt"], "prompt_name": given["prompt_name"]}
        if not self.settings.is_static or given.keys() - prompts.keys() - {"task"}:
            return None
        if self.routes is None:
            checks.choice("task", given.get("task"), (None, "query", "document"))
        ((ids, was_cut),) = self.token_rows([text], self.prompt(**prompts))
        return None if was_cut else [self.head.row(ids, self.max_active_dims)]

    @by_route
    @naming_nearest(*TextOptions.__annotations__)
    def encode_stream(
        self,
        inputs: Iterable[str],
        *,
        prompt: str | None = None,
        prompt_name: str | None = None,
        max_active_dims: int | None = None,
        task: str | None = None,
        batch_size: int | None = None,
        **options: Unpack[ReadingOptions],
    ) -> Iterator[SparseRow]:
        """Return an iterator over the `SparseRow`s of texts, in their order; texts may be a stream.

        Memory is bounded, however many texts there are. The backend is the one that is active at this call.

        Args:
            inputs, prompt, prompt_name, batch_size: as for `SentenceEncoder.encode`.
            max_active_dims: replaces the encoder's value for this call.
            task: "query" or "document", as passed by `encode_query` and `encode_document`; with a Router, the name of a
                route. Without a Router, both are read alike.
            options: see `ReadingOptions`.

        Raises:
            TypeError: a text is not a string.
            ValueError: a text is not valid Unicode, a prompt name is unknown, an argument is out of range, or a text is
                too long for truncation "error".
        """
        checked, bar = checked_texts(inputs, "inputs"), options.pop("show_progress_bar", None)
        before = self.prompt(prompt, prompt_name)
        how = self._reading(ReadOptions, before, batch_size=batch_size, **{"merge": "max"} | options)
        if self.routes is None:
            checks.choice("task", task, (None, "query", "document"))
        if how.cutting.reads_all and self.settings.is_static:
            raise ValueError("truncation is 'chunk', but token weights need no windows: max_seq_length is not limited")
        skipped = 0 if self.settings.dense is None else self.dense.skipped_tokens(how.prompt)
        most = self.max_active_dims if max_active_dims is None else check_count("max_active_dims", max_active_dims)
        whole = MergedWords(how.merge, self.embedding_dimension, most)
        kept = None if how.cutting.reads_all else most  # with windows, all weights are merged first

        def rows() -> Iterator[SparseRow]:
            with progress_bar(None, bar) as advance:
                found = self._read(checked, lambda batch: self.words(batch, kept, skipped), whole, how, advance)
                yield from chain.from_iterable(found)

        return rows()

    def decode(self, embeddings: SparseRow | csr_array | torch.Tensor, top_k: int | None = None) -> list[Any]:
        """Return the vocabulary tokens of embeddings with their weights, greatest first.

        Args:
            embeddings: a `SparseRow`, a sparse matrix as returned by `encode`, or a row of one; also as sparse or dense
                PyTorch tensors.
            top_k: number of tokens; all by default.

        Returns:
            [(token, weight)] for a row, a list of such lists for a matrix.
        """
        if top_k is not None:
            check_count("top_k", top_k)
        if isinstance(embeddings, SparseRow):
            known = embeddings.indices < len(self.tokenizer)  # the model's vocabulary is often rounded up
            embeddings = SparseRow(embeddings.indices[known], embeddings.values[known])
            order = np.argsort(-embeddings.values, kind="stable")[:top_k]
            words = self.tokenizer.convert_ids_to_tokens(embeddings.indices[order].tolist())
            return list(zip(words, embeddings.values[order].tolist(), strict=True))
        if not hasattr(embeddings, "tocsr") and not hasattr(embeddings, "is_sparse"):
            raise TypeError(f"embeddings is {type(embeddings).__name__}, expected a SparseRow or a sparse matrix")
        if embeddings.ndim not in (1, 2):
            raise ValueError(f"embeddings has shape {tuple(embeddings.shape)}, expected one row or a table of rows")
        table = as_table(embeddings)
        if embeddings.ndim == 1:
            return self.decode(SparseRow(table.indices, table.data), top_k)
        parts = (slice(*ends) for ends in pairwise(table.indptr))
        return [self.decode(SparseRow(table.indices[part], table.data[part]), top_k) for part in parts]

    def similarity(self, embeddings1: SparseRows, embeddings2: SparseRows) -> Any:
        """Return the similarity (n, m) of the rows of two sparse matrices, (n, vocabulary) and (m, vocabulary).

        The matrices are as returned by `encode`: SciPy matrices, PyTorch tensors (the result is then a tensor) or lists
            of `SparseRow`s. `similarity_fn_name` selects the function; except for "dot", memory holds dense matrices.
        """
        left, right = (as_table(each, self.embedding_dimension) for each in (embeddings1, embeddings2))
        if self.similarity_fn_name == "dot":
            return like(embeddings1, SparseIndex(right).scores(left))
        of_all = SIMILARITIES[self.similarity_fn_name].of_all
        return like(embeddings1, of_all(left.toarray(), right.toarray()))

    def similarity_pairwise(self, embeddings1: SparseRows, embeddings2: SparseRows) -> Any:
        """Return the similarity (n,) of the rows at the same index."""
        left, right = (as_table(each, self.embedding_dimension) for each in (embeddings1, embeddings2))
        if self.similarity_fn_name == "dot":
            return like(embeddings1, left.multiply(right).sum(axis=-1))
        of_pairs = SIMILARITIES[self.similarity_fn_name].of_pairs
        return like(embeddings1, of_pairs(left.toarray(), right.toarray()))

    @staticmethod
    def intersection(embeddings_1: csr_array | torch.Tensor, embeddings_2: csr_array | torch.Tensor) -> Any:
        """Return the products of the weights that two embeddings share, for a row or for each row of a matrix."""
        first = as_table(embeddings_1)
        found = first.multiply(as_table(embeddings_2, first.shape[1])).tocsr()
        found = found if embeddings_1.ndim == embeddings_2.ndim == 2 or found.shape[0] > 1 else found[0]
        return as_tensor(found, True) if hasattr(embeddings_1, "is_sparse") else found

    @staticmethod
    def sparsity(embeddings: SparseRows) -> dict[str, float]:
        """Return the mean number of non-zero weights, "active_dims", and the share of zeros, "sparsity_ratio"."""
        table = as_table(embeddings)
        if not all(table.shape):
            raise ValueError(f"embeddings has shape {table.shape}, expected at least one row")
        active = table.nnz / table.shape[0]
        return {"active_dims": active, "sparsity_ratio": 1 - active / table.shape[1]}

    def _saved_settings(self) -> dict[str, Any]:
        return {
            "max_active_dims": self.max_active_dims, "similarity_fn_name": self.similarity_fn_name,
            "model_type": "SparseEncoder",
        }  # fmt: skip

    def _save_model(self, folder: Path) -> None:
        if self.settings.is_static:
            self.head.save(folder)
            self.tokenizer.save_pretrained(folder)
        else:
            super()._save_model(folder)

    def _fill(self, target: Path, where: Path) -> None:
        if self.routes is not None and self.routes.file is None:
            query, document = (self.readers[name] for name in ("query", "document"))
            query._save_model(target / QUERY)
            document._save_model(target / DOCUMENT)
            prompts = {"prompts": dict(self.prompts), "default_prompt_name": self.default_prompt_name}
            write_router(target, document.settings, document.max_seq_length, prompts | self._saved_settings())
            return
        super()._fill(target, where)
        for reader in self.readers.values() or [self]:
            settings = reader.settings
            if settings.dense is None:
                continue
            name = f"{len(settings.folders)}_SparseAutoEncoder"
            own = settings.head_folder.relative_to(self.folder) if settings.head_folder else name
            reader.head.save(target / own)
            if settings.head_folder is None:
                listed = json.loads((target / MODULES_NAME).read_bytes())
                listed.append(
                    {"idx": len(listed), "name": str(len(listed)), "path": name, "type": TYPES["AutoEncoder"]}
                )
                write_json(target / MODULES_NAME, listed)

    def _write_modules(self, target: Path) -> None:
        if self.settings.is_static or self.settings.linear is not None or self.settings.dense is not None:
            return
        kinds = {"": TYPES["Transformer"], "1_SpladePooling": TYPES["Pooling"]}
        write_json(target / MODULES_NAME, module_entries(kinds))
        write_json(target / "1_SpladePooling" / CONFIG_NAME, self.settings.pooling_config)
        update_json(target / TRANSFORMER_NAMES[0], {"transformer_task": "fill-mask"})

    def words(self, batch: list[np.ndarray], max_active_dims: int | None = None, skipped: int = 0) -> list[SparseRow]:
        """Return the weights of each text of a batch of token ids, at most `max_active_dims` of them.

        The first `skipped` tokens are not pooled into an autoencoder's vector.
        """
        if self.settings.is_static:
            return [self.head.row(ids, max_active_dims) for ids in batch]
        if self.settings.dense is not None:
            return self.head.rows(self.dense.finished(self.dense.pooled(batch, skipped), None, None), max_active_dims)
        hidden, cu_seqlens = self.model.encode_packed(batch)
        if self.settings.linear is not None:
            found = self.head.rows(batch, hidden, cu_seqlens, self.embedding_dimension)
            return [sparse_row(weights, max_active_dims) for weights in found]
        head = functools.partial(self.model.heads[0], Pass.begin(hidden))
        pooled = pooled_words(head, hidden, cu_seqlens, self.settings)
        return [sparse_row(weights, max_active_dims) for weights in pooled]
