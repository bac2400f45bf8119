"""The models of a server, by kind, and its limits."""

import asyncio
import copy
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.checkpoint import CheckpointError, read_config
from bertcore.checkpoint.files import HEAD_NAME
from bertcore.serving.batcher import (
    SCORE,
    Batcher,
    Job,
    Lanes,
    answer_bytes,
    answers,
    attentions,
    read_jobs,
    read_marked,
)
from bertcore.serving.requests import (
    Kinds,
    RequestError,
    ServerSettings,
    hold,
    no_model,
    too_large,
    too_long,
    unknown_token,
    unsupported,
)
from bertcore.tasks.folder import read_modules
from bertcore.tasks.gliner import is_gliner
from bertcore.tasks.gliner2 import GLiNER2
from bertcore.tasks.loading import ENCODERS, kind_of
from bertcore.tasks.pipelines import pipeline
from bertcore.tasks.pipelines.classification import ZeroShotNerPipeline
from bertcore.tasks.pipelines.pretrained import FillMaskPipeline
from bertcore.tasks.pipelines.spans import TokenClassificationPipeline
from bertcore.tasks.static import StaticModelPipeline
from bertcore.tasks.texts import MOST_TOKENS, by_halves, grouped, lower_cased

# Characters tokenized on the event loop: a thread would add 0.4 ms to a short request (2.0 ms with `encode`).
SHORT = 2000
LONG = 1 << 13  # characters that are tokenized even if the model reads fewer; each takes 170 bytes
LONGEST = 1 << 18  # characters of a text that are tokenized to find as many tokens as the model reads
LONGEST_LABELLED = 4096  # tokens of labels and text of a GLiNER model
WIDEST = 32  # characters for each token that the model reads, in longer texts
# On a CPU larger batches are not faster, and requests wait for them.
LARGEST_ON_CPU = 1024
# Requests of at most 1 / SHARE of a batch's tokens are computed in a second thread, beside longer ones: waiting for the
# current batch would take many times as long as they do.
SHARE = 4
# Most bytes in a JSON answer for a float32, for a word and its weight or a label and its score, and for a token.
NUMBER, WORD, TOKEN = 17, 330, 600
WHAT = {
    "dense": "embeds texts",
    "late": "embeds the tokens of texts",
    "sparse": "embeds texts into sparse vectors",
    "classifier": "classifies texts",
    "static": "classifies single texts",
    "tagger": "classifies tokens",
    "gliner": "finds entities of given labels",
    "extractor": "extracts what a schema describes",
    "masked": "predicts masked words",
    "marked": "classifies marked entities",
}
PIPELINES: dict[str, Any] = {
    "tagger": TokenClassificationPipeline.from_pretrained,
    "gliner": ZeroShotNerPipeline.from_pretrained,
    "masked": FillMaskPipeline.from_pretrained,
    "marked": lambda folder, dtype: pipeline(_marked_task(folder), folder, dtype=dtype),
}
METHODS = {  # results of models and the methods that compute them; other kinds are pipelines
    "dense": {"pooled": "pooled", "tokens": "hidden_states"}, "late": {"vectors": "vectors"},
    "sparse": {"words": "words"}, "classifier": {"logits": "scored"},
}  # fmt: skip
ARCHITECTURES = {
    "ForTokenClassification": "tagger",
    "ForMaskedLM": "masked",
    "ForEntityClassification": "marked",
    "ForEntityPairClassification": "marked",
}


class ServedModel:
    """A loaded model with its queues.

    Attributes:
        kind: a key of `WHAT`.
        kinds: the kinds that requests may use it as: its own; a masked language model also embeds, and
            a GLiNER2 model also takes schemas; static embeddings with a head classify, too.
        engine: the SentenceEncoder, MultiVectorEncoder, SparseEncoder, CrossEncoder or Pipeline.
        head: the StaticModelPipeline of static embeddings with a head, otherwise None.
        pipeline: the Pipeline of a tagger, GLiNER, a masked language model or marked entities, otherwise None.
        layers: the specs of its layers.
    """

    def __init__(self, folder: Path, name: str, *, dtype: str | None = None):
        self.name, self.kind = name, "gliner" if is_gliner(folder) else kind_of(folder)
        if self.kind == "dense" and read_modules(folder) is None:
            architecture = str((read_config(folder).get("architectures") or [""])[0])
            self.kind = next((ARCHITECTURES[end] for end in ARCHITECTURES if architecture.endswith(end)), "dense")
        try:
            self.pipeline: Any = PIPELINES[self.kind](folder, dtype=dtype) if self.kind in PIPELINES else None
        except ValueError:
            if self.kind != "masked":
                raise
            self.kind, self.pipeline = "dense", None  # without the head or a mask token it only embeds
        self.kinds: tuple[str, ...] = ("masked", "dense") if self.kind == "masked" else (self.kind,)
        self.head = None
        if self.kind == "dense" and (folder / HEAD_NAME).is_file():
            self.head, self.kinds = StaticModelPipeline.from_pretrained(folder), ("static", "dense")
        if self.kind == "gliner" and isinstance(self.pipeline.gliner, GLiNER2):
            self.kinds = ("gliner", "extractor")
        is_pipeline = self.pipeline is not None and self.kind != "masked"
        encoder = None if is_pipeline else ENCODERS[self.kinds[-1]]
        self.engine: Any = self.head.model if self.head else encoder(folder, dtype=dtype) if encoder else self.pipeline
        if self.kind == "masked":
            self.engine.model = self.pipeline.model  # one encoder in memory
        self.tokenizer = self.pipeline.plain_tokenizer if self.kind == "marked" else self._part.tokenizer
        # A table of vectors has no layers; GLiNER and models of marked entities do not return attention.
        has_attention = self.kind not in ("gliner", "marked")
        self.layers = getattr(self.engine.model.spec, "layers", ()) if has_attention else ()
        positions = self.engine.model.spec.longest_sequence or MOST_TOKENS
        if self.kind == "gliner":  # a config may have no limit, but a request's row must
            reader = self.engine.gliner
            self.max_seq_length = reader.max_seq_length = min(reader.max_seq_length, LONGEST_LABELLED)
        elif is_pipeline:
            self.max_seq_length = min(self.tokenizer.model_max_length, positions)
        else:
            self.max_seq_length = self.engine.max_seq_length
        routes = getattr(self._part, "readers", None) or {"": self._part}
        self.readers = {(side, name): copy.copy(routes[name]) for side in ("left", "right") for name in routes}
        for (side, _), reader in self.readers.items():
            reader.tokenizer = copy.copy(reader.tokenizer)
            reader.tokenizer.truncation_side = side
        # The most bytes that a token adds to a text.
        self.longest_token = 1 + max(len(token.encode()) for token in self.tokenizer.get_vocab())
        self.loaded_at = int(time.time())
        self._longest = self._most_read = max(LONGEST, WIDEST * self.max_seq_length)
        self._backend = kernels.get_backend()
        self._on_gpu = kernels.resolve_backend(None, on_gpu=False) == "cupy"
        self._batchers: dict[tuple[str, str | None], tuple[Batcher, Batcher]] = {}  # of short and of long requests

    def start(self, lanes: Lanes, settings: ServerSettings, observe: Callable[[int, int], None]) -> None:
        """Make the queues, whose batches run in `lanes`."""
        computed: dict[tuple[str, str | None], Any] = {("attention", None): partial(attentions, self)}
        if self.kind not in METHODS:
            computed["answers", None] = partial(answers, self)
        readers = getattr(self._part, "readers", None) or {}  # of a Router's routes
        for what, method in METHODS.get(self.kinds[-1], {}).items():
            for route, reader in ({None: self._part} | readers).items():
                computed[what, route] = getattr(reader, method)
        most = settings.max_batch_tokens if self._on_gpu else min(settings.max_batch_tokens, LARGEST_ON_CPU)
        short, long = lanes.long_executor if self._on_gpu else lanes.short_executor, lanes.long_executor
        self._short = most // SHARE
        self._most_bytes = settings.max_response_bytes
        self._most_read = max(self._longest, settings.max_client_batch_size * WIDEST * self.max_seq_length)
        options: dict[str, Any] = {"batch_tokens": most, "queue_tokens": settings.max_queue_tokens, "observe": observe}
        for key, compute in ((key, self.on_backend(method)) for key, method in computed.items()):
            both = Batcher(lanes.short(compute), short, **options), Batcher(lanes.long(compute), long, **options)
            self._batchers[key] = both

    @property
    def _part(self) -> Any:
        """The part that tokenizes and computes: the engine, or a CrossEncoder's scores."""
        return self.engine.scores if self.kind == "classifier" else self.engine

    def on_backend(self, compute: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
        def call(rows: list[Any]) -> Any:
            with kernels.use_backend(self._backend):
                return by_halves(compute, rows)

        return call

    async def tokens(self, texts: Sequence[Any], **options: Any) -> list[Any]:
        return await self._aside(self.read, texts, options)

    async def jobs(self, texts: Sequence[str], **options: Any) -> list[Job]:
        return await self._aside(partial(read_jobs, self), texts, options)

    async def _aside(self, read: Callable[..., list[Any]], texts: Sequence[Any], options: dict[str, Any]) -> list[Any]:
        """Tokenize; long texts in a thread, so that they do not block other requests."""
        if sum(map(_size, texts)) + len(texts) * sum(map(len, options.get("labels", ()))) <= SHORT:
            return read(texts, **options)
        return await asyncio.to_thread(read, texts, **options)

    def read(
        self,
        texts: Sequence[Any],
        *,
        truncate: bool,
        side: str = "right",
        prompt: str = "",
        task: str | None = None,
        route: str | None = None,
        names: Callable[[int], str] = "inputs[{}]".format,
        advice: str = "; truncate cuts it",
    ) -> list[Any]:
        """Return the tokens of texts; a classifier's texts are tuples of one or two.

        A text may be a list of token ids, with special tokens; with a prompt it is decoded first. `names` names each
        text in errors; `task` is a late-interaction encoder's side, `route` a Router's route.

        Raises RequestError: 413 for a text that is too long, unless `truncate`, and as `check_read` does; 422 for an
            unknown token id.
        """
        is_late = self.kind == "late"
        routes = getattr(self._part, "routes", None)
        reader = self.readers[side, ("" if routes is None else routes.first) if route is None else route]
        most, size = self.engine.length_of(task) if is_late else self.max_seq_length, len(reader.tokenizer)
        most = most if route is None else min(most, reader.max_seq_length)
        ids = {index: text for index, text in enumerate(texts) if isinstance(text, list)}
        for index, largest in ((index, max(row)) for index, row in ids.items()):
            if largest >= size:
                raise unknown_token(f"{names(index)} has the token id {largest}, the model has {size} tokens")
        if prompt:
            self.check_read(sum(map(len, ids.values())), "token ids")
            texts = [self.tokenizer.decode(text, True) if isinstance(text, list) else text for text in texts]
            ids = {}
        for index, text in enumerate(texts := list(texts)):
            if isinstance(text, tuple):
                texts[index] = tuple(self.shortened(part, side, names(index)) for part in text)
            elif isinstance(text, str):
                texts[index] = self.shortened(text, side, names(index))
        options = [] if self.kind == "classifier" else [prompt, task] if is_late else [prompt]
        read = [text for text in texts if not isinstance(text, list)]
        self.check_read(sum(map(_size, read)), "characters")
        found = chain.from_iterable(reader.token_rows(some, *options) for some in grouped(read, _size))
        rows: list[Any] = []
        for index in range(len(texts)):
            row, was_cut = self._cut(ids[index], side, most) if index in ids else next(found)
            row = self.engine.token_row(row, task) if is_late and index in ids else row
            if was_cut and not truncate:
                raise too_long(f"{names(index)} has more than {most} tokens, the limit{advice}")
            rows.append(row)
        return rows

    def shortened(self, text: str, side: str, name: str) -> str:
        """Cut a long text on `side`, leaving more tokens than are read: tokenizing 4 MB would take 700 MB."""
        size = LONG
        while size < len(text):
            part = text[-size:] if side == "left" else text[:size]
            if len(self.tokenizer(part, add_special_tokens=False)["input_ids"]) > 2 * self.max_seq_length:
                return part
            if size >= self._longest:
                raise too_long(f"{name} has {len(text)} characters, but few tokens in the first {size}, the limit")
            size *= 2
        return text

    def check_read(self, count: int, what: str) -> None:
        """Raise RequestError (413) if a request has more characters or token ids than are read at once."""
        if count > self._most_read:
            raise too_large(f"there are {count} {what} to read, the limit is {self._most_read}: send shorter texts")

    def _cut(self, ids: list[int], side: str, most: int) -> tuple[np.ndarray, bool]:
        return np.array(ids[-most:] if side == "left" else ids[:most], np.int32), len(ids) > most

    def prepared(self, texts: list[str], prompt: str) -> list[str]:
        """Return the tokenizer's input for each text."""
        if self.kind == "classifier":
            return [lower_cased(text) for text in texts] if self.engine.scores.do_lower_case else texts
        return texts if self.engine is self.pipeline else [self.engine.prepared(text, prompt) for text in texts]

    async def compute(self, what: str, rows: list[Any], route: str | None = None) -> list[Any]:
        """Return the result `what` (see `start`) for rows of tokens, or for jobs; `route` is a Router's.

        Raises RequestError: 413 if the answer is too long, 429 if memory or the queue is full.
        """
        tokens = sum(map(len, rows))
        if what == "tokens":
            self.check_answer(NUMBER * tokens * self.engine.model.spec.hidden_size)
        elif what in ("vectors", "pooled"):
            self.check_answer(NUMBER * (tokens if what == "vectors" else len(rows)) * self.engine.embedding_dimension)
        elif what == "logits":
            self.check_answer(len(rows) * sum(SCORE + len(label) for label in self.labels))
        elif what == "attention":
            self.check_answer(sum(NUMBER * len(job) ** 2 + TOKEN * len(job) for job in rows))
        elif what == "answers":
            self.check_answer(sum(answer_bytes(self, job) for job in rows))
        found = await self._batchers[what, route][tokens > self._short].submit(rows)
        for wrong in (each for each in found if isinstance(each, RequestError)):
            raise wrong
        if what == "words":
            self.check_answer(sum(WORD * len(words.indices) for words in found))
        return found

    def similarity(self, query: np.ndarray, documents: list[np.ndarray]) -> np.ndarray:
        """Return a late-interaction encoder's scores of documents' vectors for a query's vectors."""
        with kernels.use_backend(self._backend):
            return self.engine.similarity([query], documents)[0]

    def check_answer(self, count: int) -> None:
        """Reserve memory for an answer. Raises RequestError: 413 if it is too long, 429 if memory is full."""
        if count > self._most_bytes:
            limit = f"the limit is {self._most_bytes}: send shorter texts"
            raise too_large(f"the answer takes up to {count} bytes, {limit}")
        hold(count)

    @property
    def waiting_tokens(self) -> int:
        return sum(batcher.waiting_tokens for both in self._batchers.values() for batcher in both)

    @property
    def labels(self) -> list[str]:
        if self.head:
            return self.head.labels
        return list(self.engine.id2label.values()) if self.engine is self.pipeline else self.engine.labels

    def warm_up(self) -> None:
        """Compute a text, so that no request waits for kernels to compile."""
        for (what, route), (batcher, _) in self._batchers.items():
            if what == "answers" and self.kind == "marked":
                spans = [[0, 4], [5, 7]][: self.pipeline.count]
                batcher._compute(read_marked(self, [{"text": "warm up", "spans": spans}], names="inputs".format))
            elif what == "answers":
                options: Any = {"masked": {"top_k": 1}, "gliner": {"labels": ("warm",)}}.get(self.kind, {})
                batcher._compute(read_jobs(self, [f"warm {self.tokenizer.mask_token} up"], truncate=True, **options))
            elif what != "attention":  # rarely requested
                text = ("warm", "up") if self.kind == "classifier" else "warm up"
                batcher._compute(self.read([text], truncate=True, route=route))


class Models:
    """The models of a server. Raises CheckpointError if two have the same name."""

    def __init__(self, models: Sequence[ServedModel]):
        self.all = list(models)
        names = [model.name for model in self.all]
        for name in names:
            if names.count(name) > 1:
                raise CheckpointError(f"two models are called {name!r}, expected folders with different names")

    def of_kind(self, kind: Kinds, name: str | None = None) -> ServedModel:
        """Return the model of these kinds (None for any) and this name, or the first. RequestError: 424 or 404."""
        found = {model.name: model for model in self.all if is_of(kind, model)}
        what = "" if kind is None else " or ".join(WHAT[each] for each in ([kind] if isinstance(kind, str) else kind))
        if not found:
            raise unsupported(f"no model here {what}")
        if name is None:
            return next(iter(found.values()))
        if name not in found:
            what = f" that {what}" if kind else ""
            raise no_model(f"no model here{what} is called {name!r}: there is {', '.join(found)}")
        return found[name]


def _marked_task(folder: Path) -> str:
    is_pair = str(read_config(folder)["architectures"][0]).endswith("PairClassification")
    return "relation-extraction" if is_pair else "entity-classification"


def _size(text: str | tuple[str, ...] | list[int]) -> int:
    """Return the number of characters of a text or a pair, or of ids in a list."""
    return sum(map(len, text)) if isinstance(text, tuple) else len(text)


def is_of(kinds: Kinds, model: ServedModel) -> bool:
    """Return whether a model has one of a request's kinds."""
    return kinds is None or not set(model.kinds).isdisjoint([kinds] if isinstance(kinds, str) else kinds)


def finite(values: np.ndarray) -> np.ndarray:
    """Return `values`. Raises RequestError (424) for inf and NaN, which JSON cannot represent."""
    if not np.isfinite(values).all():
        raise unsupported("the result has inf or NaN, which JSON cannot represent")
    return values
