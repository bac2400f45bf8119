"""MultiVectorEncoder: one vector per token of a text, from a published late-interaction encoder (ColBERT)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np

from bertcore import kernels
from bertcore.arguments import DType, check_count, check_number, naming_nearest, required
from bertcore.checkpoint import save_checkpoint
from bertcore.checkpoint.files import write_json
from bertcore.kernels import checks
from bertcore.models.auto import AutoModel
from bertcore.passes import Pass
from bertcore.tape import value_of
from bertcore.tasks.encoders import EncoderOptions, EncoderPool, locking_folder
from bertcore.tasks.folder import MODULES_NAME, SETTINGS_NAME, TRANSFORMER_NAMES, Prompts, module_entries
from bertcore.tasks.long_texts import Cutting, MergedWindows
from bertcore.tasks.multi_vector.modules import (
    SIMILARITIES,
    TASKS,
    VECTORS,
    TokenHead,
    TokenPooling,
    TokenRow,
    checked_expansion,
    pool_tokens,
    read_late_settings,
)
from bertcore.tasks.reading import PromptedReader, ReadOptions
from bertcore.tasks.search import ranking
from bertcore.tasks.similarity import TokenVectors, maxsim, maxsim_pairwise, normalized
from bertcore.tasks.texts import (
    BATCH_TOKENS,
    MOST_TOKENS,
    CutTexts,
    check_words,
    checked_text,
    checked_texts,
    listed_texts,
    progress_bar,
)

AT_ONCE = 256  # documents scored at once


class LateOptions(TypedDict, total=False):
    """Arguments of `MultiVectorEncoder.encode` that it passes to `encode_stream`."""

    pool_factor: float
    protected_tokens: int
    truncation: bool | str
    batch_tokens: int


@dataclass(frozen=True, kw_only=True)
class LateReadOptions(ReadOptions):
    """The checked options of one call: `task` and `pooling` beside those of all readers."""

    task: str | None
    pooling: TokenPooling
    normalize_embeddings: bool


class MultiVectorEncoder(PromptedReader):
    """Turn each text into one vector for each of its tokens, as sentence-transformers 6 does (ColBERT).

    The score of a query and a document is the sum over the query's vectors of the highest dot product with a vector of
    the document (Khattab and Zaharia 2020, arXiv:2004.12832). Queries and documents differ in the token before the
    text, in length, in the [MASK] tokens that fill up queries, and in tokens without a vector (punctuation in
    documents).

    Args:
        model_name_or_path: a model as sentence-transformers 6, PyLate or Stanford's ColBERT publish it, BGE-M3 (its
            colbert_linear.pt), or any encoder, which gets a new map to token vectors, to be trained. Or its id on the
            Hugging Face hub ("ORGANISATION/NAME").
        dtype: dtype of weights and computation, as for AutoModel; vectors are float32.
        max_seq_length: cut texts to this many tokens, including special tokens, if the task has no length of its own.
        query_length, document_length: the same for queries and for documents; by default as published.
        query_expansion: the tokens that fill up queries: {"strategy": "fixed" or "min", "length": 32, "attend": whether
            other tokens attend to them, "token": by default the mask token}; False for none; True or by default as
            published.
        skiplist_words: tokens without a vector in documents; by default as published. Words that are not tokens of the
            vocabulary are ignored.
        embedding_dimension: length of the vectors of a new map, by default 128.
        similarity_fn_name: "maxsim", or "meanmaxsim", which divides it by the number of the query's vectors; by default
            as published, or "maxsim".
        options: see `Encoder`.

    Attributes:
        settings: settings of the folder.
        query_length, document_length, query_expansion, similarity_fn_name: as above.
        head: the maps of hidden states to token vectors, a block with parameters.

    Raises:
        CheckpointError: a file of the folder is invalid, or a module is not supported.
        ValueError: a length is out of range, or a name is unknown.
    """

    SUPPORTED_SIMILARITY_FN_NAMES = tuple(SIMILARITIES)

    @locking_folder
    def __init__(
        self,
        model_name_or_path: str | os.PathLike[str],
        *,
        dtype: DType | None = None,
        max_seq_length: int | None = None,
        query_length: int | None = None,
        document_length: int | None = None,
        query_expansion: Mapping[str, Any] | bool | None = None,
        skiplist_words: Sequence[str] | None = None,
        embedding_dimension: int | None = None,
        similarity_fn_name: str | None = None,
        **options: Unpack[EncoderOptions],
    ):
        folder = self._open(model_name_or_path, "late-interaction encoder", options)
        self.settings = settings = read_late_settings(folder)
        if options.get("prompts") is None:
            self._prompts = Prompts(settings.prompts, self._prompts.default)
        self.similarity_fn_name = settings.similarity if similarity_fn_name is None else similarity_fn_name
        self.model: AutoModel = AutoModel.from_pretrained(settings.model_folder, dtype=dtype, add_pooling_layer=False)
        self._load_tokenizer(settings.model_folder, max_seq_length, settings.max_seq_length)
        self._keep_prefixes_whole()
        queries, documents = settings.query_length, settings.document_length
        self.query_length = queries if query_length is None else check_count("query_length", query_length)
        self.document_length = documents if document_length is None else check_count("document_length", document_length)
        if query_expansion is True and settings.expansion is None:
            raise ValueError("query_expansion is True, expected a mapping or False: the model does not define one")
        self.query_expansion = (
            settings.expansion if query_expansion in (None, True) else checked_expansion(query_expansion)
        )
        self._check_expansion()
        words = settings.skiplist_words if skiplist_words is None else skiplist_words
        check_words("skiplist_words", words)
        if settings.skips_first:
            words = [token for token in (self.tokenizer.cls_token, *words) if token]
        self.skiplist_words = tuple(words)
        unknown, tokens = self.tokenizer.unk_token, self.tokenizer.get_vocab()
        ids = {word: tokens.get(word) for word in self.skiplist_words}
        self._skipped = [number for word, number in ids.items() if number is not None or word == unknown]
        of_maps = "float64" if self.model.dtype == "float64" else "float32"
        new = 128 if embedding_dimension is None else check_count("embedding_dimension", embedding_dimension)
        self.head = TokenHead(settings, self.model.spec.hidden_size, of_maps, new)
        if embedding_dimension not in (None, self.head.width):
            expected = f"expected {self.head.width} or None: the model has a map to token vectors"
            raise ValueError(f"embedding_dimension is {embedding_dimension}, {expected}")

    def _keep_prefixes_whole(self) -> None:
        """Let the tokenizer recognise the tokens before texts ("[unused0]", "[Q] ") as entries of its vocabulary."""
        from tokenizers import AddedToken

        known = self.tokenizer.get_vocab()
        for text in self.settings.prefixes.values():
            token = next((one for one in (text, *text.split(None, 1)[:1]) if one in known), None)
            if token is not None and self.tokenizer.tokenize(token) != [token]:
                self.tokenizer.add_tokens([AddedToken(token, normalized=False, special=True)], special_tokens=True)

    def _check_expansion(self) -> None:
        """Check that queries can be filled up, and store the filling token."""
        expansion, positions = self.query_expansion, self.model.spec.longest_sequence
        if expansion is None:
            return
        most = min(positions or MOST_TOKENS, self.query_length or MOST_TOKENS)
        least = max(1, self._lengths[2])
        if expansion.strategy == "min":
            most = positions or MOST_TOKENS
        if not least <= expansion.length <= most:
            raise ValueError(
                f"query_expansion['length'] is {expansion.length}, expected {least} (the special tokens of a text) to "
                f"{most}, the least of the model's positions and query_length"
            )
        token = expansion.token or self.tokenizer.mask_token or self.tokenizer.eos_token
        found = None if token is None else self.tokenizer.get_vocab().get(token)
        if found is None:
            raise ValueError(f"query_expansion['token'] is {token!r}, expected a token of the vocabulary")
        self._filling = found

    @property
    def embedding_dimension(self) -> int:
        """The length of a vector."""
        return self.head.width

    def length_of(self, task: str | None) -> int:
        """Return the length that texts of a task are cut to, in tokens."""
        own = {"query": self.query_length, "document": self.document_length}.get(task or "")
        length, expansion = own or self.max_seq_length, self.query_expansion
        if task == "query" and expansion is not None:
            length = expansion.length if expansion.strategy == "fixed" else max(length, expansion.length)
        return max(min(length, self.model.spec.longest_sequence or MOST_TOKENS), self._lengths[2])

    @naming_nearest(*LateOptions.__annotations__)
    def encode(
        self,
        inputs: str | Iterable[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        *,
        convert_to_numpy: bool = True,
        device: str | Sequence[str] | None = None,
        normalize_embeddings: bool = False,
        pool: EncoderPool | None = None,
        chunk_size: int | None = None,
        task: str | None = None,
        **options: Unpack[LateOptions],
    ) -> Any:
        """Embed one text or many; `encode_query` and `encode_document` choose task and prompt.

        Args:
            inputs, prompt_name, prompt, batch_size, show_progress_bar, device, normalize_embeddings, pool, chunk_size:
                as for `SentenceEncoder.encode`.
            convert_to_numpy: False gives tensors of PyTorch.
            task: "query", "document" or None.
            options: `pool_factor`, which keeps about one in `pool_factor` vectors of a document (see `pool_tokens`),
                and the first `protected_tokens` unchanged; `truncation`, "warn", True or "error", the treatment of
                texts that are too long; `batch_tokens`, the maximum number of tokens computed at once.

        Returns:
            For each text float32 (tokens, dim): a list of arrays, or one array for one string.

        Raises:
            TypeError: a text is not a string, or an argument has another type or is unknown.
            ValueError: a text has a lone surrogate, a name is unknown, or a number is out of range.
        """
        checks.boolean("convert_to_numpy", convert_to_numpy)
        many = listed_texts(inputs)
        given: dict[str, Any] = {
            "prompt": prompt, "prompt_name": prompt_name, "batch_size": batch_size, "device": device, "task": task,
            "normalize_embeddings": normalize_embeddings, "show_progress_bar": show_progress_bar, **options,
        }  # fmt: skip
        parts = self._in_processes(many, pool, chunk_size, given)
        found = list(self.encode_stream(many, **given) if parts is None else chain.from_iterable(parts))
        if not convert_to_numpy:
            found = [required("torch").from_numpy(vectors) for vectors in found]
        return found[0] if isinstance(inputs, str) else found

    def encode_stream(
        self,
        inputs: Iterable[str],
        *,
        prompt: str | None = None,
        prompt_name: str | None = None,
        task: str | None = None,
        normalize_embeddings: bool = False,
        pool_factor: float = 1.0,
        protected_tokens: int = 1,
        batch_size: int | None = None,
        device: str | None = None,
        truncation: bool | str = "warn",
        batch_tokens: int = BATCH_TOKENS,
        show_progress_bar: bool | None = None,
    ) -> Iterator[np.ndarray]:
        """Return an iterator over the float32 (tokens, dim) vectors of texts, in their order; texts may be a stream.

        Memory is bounded by `batch_tokens`. The backend is the one that is active at this call. Arguments and errors
        are as for `encode`.
        """
        checked = checked_texts(inputs, "inputs")
        if task is not None:
            checks.choice("task", task, TASKS)
        cutting = Cutting(truncation, self.length_of(task))
        if cutting.reads_all:
            raise ValueError("truncation is 'chunk', expected 'warn', True or 'error': windows are not supported")
        if check_number("pool_factor", pool_factor) < 1:
            raise ValueError(f"pool_factor is {pool_factor}, expected at least 1")
        pooling = TokenPooling(pool_factor, check_count("protected_tokens", protected_tokens, 0), True)
        how = LateReadOptions(
            cutting=cutting, backend=self._backend(device), prompt=self.prompt(prompt, prompt_name), task=task,
            batch_tokens=batch_tokens, batch_size=batch_size, pooling=pooling,
            normalize_embeddings=checks.boolean("normalize_embeddings", normalize_embeddings),
        )  # fmt: skip

        def vectors() -> Iterator[np.ndarray]:
            with progress_bar(None, show_progress_bar) as advance:
                found = self._read(checked, self.vectors, MergedWindows("mean"), how, advance)
                yield from (self._pooled(each, how) for each in chain.from_iterable(found))

        return vectors()

    def _pooled(self, vectors: np.ndarray, how: LateReadOptions) -> np.ndarray:
        """Return a text's vectors after its pooling: the published one, then the call's."""
        own, task = self.settings.pooling, how.task or "document"
        if own is not None and task in own.tasks:
            vectors = pool_tokens(
                vectors, own.pool_factor, protected_tokens=own.num_protected_tokens,
                normalize_embeddings=own.normalize_embeddings,
            )  # fmt: skip
        vectors = normalized(vectors) if how.normalize_embeddings else vectors
        if how.pooling.pool_factor > 1 and task in how.pooling.tasks:
            vectors = pool_tokens(vectors, how.pooling.pool_factor, protected_tokens=how.pooling.num_protected_tokens)
        return vectors

    def vectors(self, batch: Sequence[TokenRow]) -> list[np.ndarray]:
        """Return the vectors of each text of a batch of token rows, (tokens, dim) float32."""
        hides = any(not row.seen.all() for row in batch)
        ids, seen = [row.ids for row in batch], [row.seen for row in batch] if hides else None
        hidden, _ = self.model.encode_packed(ids, seen)
        rows = kernels.to_host(value_of(self.head(Pass.begin(hidden), hidden))).astype(np.float32, copy=False)
        kept, ends = rows[np.concatenate([row.scored for row in batch])], [int(row.scored.sum()) for row in batch]
        return [part.copy() for part in np.split(kept, np.cumsum(ends)[:-1])]

    def _rows(self, texts: list[str], how: LateReadOptions) -> list[tuple[TokenRow, bool]]:  # type: ignore[override]
        return self.token_rows(texts, how.prompt, how.task)

    def token_rows(self, texts: list[str], prompt: str = "", task: str | None = None) -> list[tuple[TokenRow, bool]]:  # type: ignore[override]
        """Return the tokens of each text, cut to its task's length, and whether it was cut."""
        prepared = [self.prepared(text, prompt) for text in texts]
        found = self.tokenizer.encode_beginnings(prepared, self.length_of(task))
        return [(self.token_row(ids, task), was_cut) for ids, was_cut in found]

    def token_row(self, ids: Sequence[int], task: str | None) -> TokenRow:
        """Return the row of a text's token ids: filled up for a query, and without skipped tokens."""
        expansion = self.query_expansion if task == "query" else None
        missing = 0 if expansion is None else max(expansion.length - len(ids), 0)
        row, real = np.array(ids, np.int32), np.ones(len(ids) + missing, bool)
        if expansion is not None and missing:
            filling = np.full(missing, self._filling, np.int32)
            on_left = self.tokenizer.padding_side == "left"
            row = np.concatenate([filling, row] if on_left else [row, filling])
            real[slice(missing) if on_left else slice(len(ids), None)] = expansion.attend
        scored = np.ones(len(row), bool)
        if (task or "document") in self.settings.skiplist_tasks:
            scored &= ~np.isin(row, self._skipped)
        if task != "query" and self.settings.keep_only_token_ids:
            scored &= np.isin(row, self.settings.keep_only_token_ids)
        return TokenRow(row, real, scored)

    def similarity(self, embeddings1: TokenVectors, embeddings2: TokenVectors) -> Any:
        """Return the scores (n, m) of every query with every document, by `similarity_fn_name`.

        Both are lists of (tokens, dim), as `encode` returns them, a padded array (texts, tokens, dim), in which rows of
        zeros are ignored, or one text's (tokens, dim). A document without vectors scores -1e9.
        """
        return maxsim(embeddings1, embeddings2, length_normalize=self.similarity_fn_name == "meanmaxsim")

    def similarity_pairwise(self, embeddings1: TokenVectors, embeddings2: TokenVectors) -> Any:
        """Return the scores (n,) of the query and the document at the same index; otherwise as `similarity`."""
        return maxsim_pairwise(embeddings1, embeddings2, length_normalize=self.similarity_fn_name == "meanmaxsim")

    def score_stream(self, query: str, documents: Iterable[str], **options: Any) -> Iterator[float]:
        """Yield the score of a query with each document, in order; memory holds only a few documents' vectors."""
        asked = self.encode_query(query, **options)
        found = self.encode_document_stream(documents, **options)
        while block := list(islice(found, AT_ONCE)):
            yield from self.similarity([asked], block)[0].tolist()

    def rank(
        self, query: str, documents: Sequence[str], top_k: int | None = None, return_documents: bool = False,
        **options: Any,
    ) -> list[dict[str, Any]]:  # fmt: skip
        """Rank documents by how well they answer the query, best first; ties keep their order.

        Arguments and result are as for `CrossEncoder.rank`; `options` are those of `encode`.
        """
        most = None if top_k is None else check_count("top_k", top_k)
        query, texts = checked_text("query", query), list(checked_texts(documents, "documents"))
        return ranking(np.array([*self.score_stream(query, texts, **options)]), texts, most, return_documents)

    def _cut_texts(self, max_length: int | None) -> CutTexts:
        return CutTexts(self, max_length, self.model.spec.longest_sequence, argument="query_length, document_length")

    def _saved_where(self) -> Path:
        return Path()

    def _fill(self, target: Path, where: Path) -> None:
        """Write the format of sentence-transformers 6, whatever format was read."""
        base, own = "sentence_transformers.base.modules", "sentence_transformers.multi_vector_encoder.modules"
        settings = self.settings
        self._save_model(target)
        modules = {"": f"{base}.transformer.Transformer"}
        for number, (dense, config) in enumerate(zip(self.head.maps, self.head.configs, strict=True), 1):
            modules[f"{number}_Dense"] = f"{base}.dense.Dense"
            tensors = {
                name.removeprefix(f"{number}_Dense."): array
                for parameter in dense.parameters()
                for name, array in parameter.tensors()
            }
            save_checkpoint(target / f"{number}_Dense", config, tensors)
        names = ("skiplist_words", "skiplist_tasks", "keep_only_token_ids")
        mask = {name: getattr(settings, name) for name in names} | {"skiplist_words": self.skiplist_words}
        ends: dict[str, Any] = {f"{own}.multi_vector_mask.MultiVectorMask": mask}
        if self.head.normalize:
            ends[f"{base}.normalize.Normalize"] = {"module_input_name": VECTORS, "module_output_name": VECTORS}
        if settings.pooling is not None:
            ends[f"{own}.token_pooling.HierarchicalTokenPooling"] = asdict(settings.pooling)
        contents: dict[str, Any] = {}
        for kind, config in ends.items():
            path = f"{len(modules)}_{kind.rpartition('.')[2]}"
            modules[path], contents[f"{path}/config.json"] = kind, config
        contents[MODULES_NAME] = module_entries(modules)
        contents[SETTINGS_NAME] = {
            "model_type": "MultiVectorEncoder", "prompts": dict(self.prompts),
            "default_prompt_name": self.default_prompt_name, "similarity_fn_name": self.similarity_fn_name,
        }  # fmt: skip
        contents[TRANSFORMER_NAMES[0]] = {
            "transformer_task": "feature-extraction", "max_seq_length": self.max_seq_length,
            "do_lower_case": settings.do_lower_case, "query_length": self.query_length,
            "document_length": self.document_length,
            "query_expansion": None if self.query_expansion is None else asdict(self.query_expansion),
        }  # fmt: skip
        for path, content in contents.items():
            write_json(target / path, content)
