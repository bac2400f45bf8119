"""From texts to what a model makes of them: cut to its length or read in windows, in batches of tokens."""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.tasks.folder import with_prompt
from bertcore.tasks.long_texts import Cutting, MergedWindows, Text, Window, merged_vectors
from bertcore.tasks.texts import CutTexts, grouped, in_batches, lower_cased, uncut


class TextReader:
    """A model with its tokenizer, to which texts come.

    Attributes:
        model, tokenizer: the parts.
        max_seq_length: where texts are cut, in tokens.
        has_warned: whether it has told that texts were cut.
    """

    model: Any
    tokenizer: Any
    max_seq_length: int
    tokenize: Callable[..., Iterable[tuple[Any, bool]]]  # of some texts and a prompt: tokens, whether they were cut
    has_warned = False

    _text: Callable[[Any, str], Text]  # what is read in windows of a text and a prompt
    _name = "texts"  # what errors call them

    def _row(self, window: Window) -> Any:
        """The tokens of a window, as `tokenize` gives those of a text."""
        return np.array(window.ids, np.int32)

    def _size(self, text: Any) -> int:
        """The characters of a text."""
        return len(text)

    def _cut_texts(self) -> CutTexts:
        return CutTexts(self, self.max_seq_length, self.model.spec.longest_sequence, reads_windows=True)

    def _read(
        self,
        texts: Iterable[Any],
        compute: Callable[[list[Any]], Iterable[Any]],
        whole: MergedWindows,
        cutting: Cutting,
        batch_tokens: int,
        backend: str,
        advance: Callable[[int], object],
        prompt: str = "",
    ) -> Iterator[list[Any]]:
        """What `compute` makes of the tokens of a batch, for each text, in their order, in lists of neighbours.

        Memory is bounded by `batch_tokens`, however long texts are. `whole` makes a text's vector of those of its
        windows. `advance` is told how many texts were just done.
        """

        def of_batch(rows: list[Any]) -> Iterable[Any]:
            # Batch by batch: a block that stayed open across a yield would leak into the caller's code.
            with kernels.use_backend(backend):
                return compute(rows)

        if cutting.reads_all:
            given = (self._text(text, prompt) for text in texts)

            def of_windows(windows: list[Window]) -> Iterable[Any]:
                return of_batch([self._row(window) for window in windows])

            for found in merged_vectors(given, self.tokenizer, cutting, whole, of_windows, batch_tokens):
                advance(len(found))
                yield found
            return
        cut, groups = self._cut_texts(), grouped(texts, self._size)
        rows = chain.from_iterable(self.tokenize(group, prompt) for group in groups)
        kept = cut.counted(uncut(rows, self.max_seq_length, self._name) if cutting.truncation == "error" else rows)
        yield from in_batches(kept, batch_tokens, of_batch, advance)
        if cutting.truncation == "warn":
            cut.warn()


class Encoder(TextReader):
    """A reader of texts with prompts before them, as sentence-transformers publishes one; its `settings` say which."""

    settings: Any
    encode: Callable[..., Any]

    def encode_query(self, texts: Any, **options: Any) -> Any:
        """`encode` with the model's prompt for queries ("query"), or none if it has none; `prompt` and `prompt_name`
        replace it."""
        return self.encode(texts, **with_prompt(options, self.query_prompt))

    def encode_document(self, texts: Any, **options: Any) -> Any:
        """`encode` with the model's prompt for documents ("document", "passage" or "corpus"), or none if it has none;
        `prompt` and `prompt_name` replace it."""
        return self.encode(texts, **with_prompt(options, self.document_prompt))

    def prompt(self, prompt: str | None = None, prompt_name: str | None = None) -> str:
        """What `encode` puts before a text, given these arguments; raises as it does."""
        return self.settings.prompts.resolve(prompt, prompt_name)

    @property
    def query_prompt(self) -> str:
        """What `encode_query` puts before a text."""
        return self.settings.prompts.for_queries

    @property
    def document_prompt(self) -> str:
        """What `encode_document` puts before a text."""
        return self.settings.prompts.for_documents

    def prepared(self, text: str, prompt: str) -> str:
        """The text as the tokenizer gets it: with the prompt before it, in lower case if the model wants that."""
        return lower_cased(prompt + text) if self.settings.do_lower_case else prompt + text

    def _text(self, text: Any, prompt: str) -> Text:
        return Text(self.prepared(text, prompt))

    def tokenize(self, texts: list[str], prompt: str = "") -> list[tuple[np.ndarray, bool]]:
        """The token ids of each text, with the prompt before it and cut to `max_seq_length`, and whether it was cut."""
        found = self.tokenizer.encode_beginnings([self.prepared(text, prompt) for text in texts], self.max_seq_length)
        return [(np.array(ids, np.int32), was_cut) for ids, was_cut in found]
