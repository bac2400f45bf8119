"""The tokenizer of a checkpoint: text to token ids and back, with the names and results of transformers."""

from typing import TYPE_CHECKING

from bertcore.kernels import checks

from .batch import BatchEncoding, as_array
from .beginnings import beginnings
from .options import Padding, Truncation, check_tensors, read_padding, read_truncation
from .padding import as_arrays, as_columns, fill_up
from .saving import file_contents, write_contents
from .settings import TokenizerSettings
from .texts import Texts, read_texts
from .vocabulary import Vocabulary

if TYPE_CHECKING:
    from .backend import Built


class Tokenizer(Vocabulary):
    """Text to token ids and back. Made by `AutoTokenizer.from_pretrained`.

    Special tokens are attributes: cls_token, sep_token, pad_token, unk_token, mask_token, bos_token, eos_token (None
    when there is none) and cls_token_id, ... for their ids.

    Attributes:
        model_max_length: the most tokens the model takes; a huge number when no file says it, as in transformers.
        model_input_names: which of input_ids, token_type_ids, attention_mask a call returns.
        padding_side, truncation_side: "right" or "left".

    Any number of threads may use one tokenizer, and it may be pickled.
    """

    def __init__(self, built: "Built", settings: TokenizerSettings):
        super().__init__(built, settings)
        self._settings = settings
        self._family = built.family
        self._widths = {"offset_mapping": 2}
        self.model_max_length = settings.model_max_length
        self.model_input_names = list(settings.model_input_names or built.family.input_names)
        self.padding_side = settings.padding_side or built.family.padding_side
        self.truncation_side = settings.truncation_side
        self.pad_token_type_id = settings.pad_token_type_id

    def __call__(
        self,
        text: str | list[str],
        text_pair: str | list[str] | None = None,
        *,
        add_special_tokens: bool = True,
        padding: bool | str = False,
        truncation: bool | str | None = None,
        max_length: int | None = None,
        stride: int = 0,
        is_split_into_words: bool = False,
        pad_to_multiple_of: int | None = None,
        padding_side: str | None = None,
        return_tensors: str | None = None,
        return_token_type_ids: bool | None = None,
        return_attention_mask: bool | None = None,
        return_overflowing_tokens: bool = False,
        return_special_tokens_mask: bool = False,
        return_offsets_mapping: bool = False,
        return_length: bool = False,
    ) -> BatchEncoding:
        """Token ids of one text, or of each text in a list.

        Args:
            text: a string, or a list or tuple of strings (an empty one gives an empty result).
            text_pair: second texts, one for each: the same kind as `text`.
            is_split_into_words: a text is a list of words (and a batch a list of such lists); word_ids then counts
                these. Byte-level BPE sees no spaces between them without add_prefix_space=True, a setting of
                `AutoTokenizer.from_pretrained`.
            add_special_tokens: put [CLS], [SEP] and the like around the texts.
            padding: False; True or "longest" (to the longest row); "max_length" (to max_length).
            truncation: False; True or "longest_first" (take from the longer of a pair); "only_first"; "only_second".
                None: True when max_length is given without padding, else False, as in transformers.
            max_length: in tokens, special ones included; None means model_max_length.
            stride: how many tokens each overflowing piece repeats of the one before it.
            pad_to_multiple_of: round the padded length up.
            padding_side: "right" or "left"; None means the tokenizer's own.
            return_tensors: None for lists; "np" for int64 arrays (rows, tokens), of one row for a single string.
            return_token_type_ids, return_attention_mask: None means as in model_input_names.
            return_overflowing_tokens: what truncation cuts off follows as rows of its own, and
                overflow_to_sample_mapping says which text each row is from.
            return_special_tokens_mask, return_offsets_mapping, return_length: add special_tokens_mask (1 at special
                tokens and padding), offset_mapping (first and last + 1 character of each token), length.

        Raises:
            TypeError: a text that is no string, named with its index.
            ValueError: other bad arguments; text_pair of another count than text; max_length below the number of
                special tokens; a text that is not valid Unicode (a lone surrogate); rows of different length for
                return_tensors.
        """
        check_tensors(return_tensors)
        texts = read_texts(text, text_pair, checks.boolean("is_split_into_words", is_split_into_words))
        cut, fill = self._limits(
            texts.second is not None, add_special_tokens, padding, truncation, max_length, stride, pad_to_multiple_of,
            padding_side,
        )  # fmt: skip
        encodings = self._encode(texts, cut, add_special_tokens)
        more = {}
        if return_overflowing_tokens:
            samples = [row for row, encoding in enumerate(encodings) for _ in (encoding, *encoding.overflowing)]
            encodings = [piece for encoding in encodings for piece in (encoding, *encoding.overflowing)]
            more = {"overflow_to_sample_mapping": samples}
        self._pad(encodings, fill)
        wanted = {
            "token_type_ids": return_token_type_ids, "attention_mask": return_attention_mask,
            "special_tokens_mask": return_special_tokens_mask, "offset_mapping": return_offsets_mapping,
            "length": return_length,
        }  # fmt: skip
        flat = not texts.batched and not return_overflowing_tokens
        return self._result(self._values(encodings, wanted) | more, encodings, return_tensors, flat=flat)

    def encode(self, text: str, text_pair: str | None = None, **options) -> list[int]:
        """The input_ids of a call with these arguments."""
        return self(text, text_pair, **options)["input_ids"]

    def encode_beginnings(self, texts: list[str], max_length: int) -> list[tuple[list[int], bool]]:
        """The input_ids of each text, cut to `max_length` with its special tokens, and whether it was cut.

        Memory follows what is left of the texts, not their length (but for a truncation_side of "left").

        Raises TypeError and ValueError as a call with truncation=True does.
        """
        checked = read_texts(texts, None, False)
        cut, _ = self._limits(False, True, False, True, max_length, 0, None, None)
        try:
            return beginnings(self._engine, checked.first, cut)
        except TypeError:  # what the library calls text that cannot be written as UTF-8
            checked.check_unicode()
            raise

    def tokenize(self, text: str, *, add_special_tokens: bool = False) -> list[str]:
        """The tokens of one text as strings."""
        return self(text, add_special_tokens=add_special_tokens).tokens()

    def num_special_tokens_to_add(self, pair: bool = False) -> int:
        """How many special tokens go around a text, or around a pair of texts."""
        return self._backend.num_special_tokens_to_add(pair)

    def pad(
        self,
        encoded_inputs,
        padding: bool | str = True,
        max_length: int | None = None,
        pad_to_multiple_of: int | None = None,
        padding_side: str | None = None,
        return_attention_mask: bool | None = None,
        return_tensors: str | None = None,
    ) -> BatchEncoding:
        """Rows of token ids filled up to one length.

        Args:
            encoded_inputs: what a call returned, or a list of that, one for each text. Other columns (labels) stay as
                they are.
            padding, max_length, pad_to_multiple_of, padding_side, return_attention_mask, return_tensors: as in a call.

        Raises TypeError for what is no rows of ids; ValueError as a call does.
        """
        check_tensors(return_tensors)
        columns, single = as_columns(encoded_inputs)
        if self._wanted("attention_mask", return_attention_mask) and "attention_mask" not in columns:
            columns["attention_mask"] = [[1] * len(row) for row in columns["input_ids"]]
        _, fill = self._limits(False, False, padding, False, max_length, 0, pad_to_multiple_of, padding_side)
        self._check_pad_token(fill)
        values = {
            "input_ids": self.pad_token_id, "token_type_ids": self.pad_token_type_id, "attention_mask": 0,
            "special_tokens_mask": 1,
        }  # fmt: skip
        columns = fill_up(columns, fill, values)
        if return_tensors == "np":
            return BatchEncoding(as_arrays(columns), [])
        return BatchEncoding({name: rows[0] for name, rows in columns.items()} if single else columns, [])

    def save_pretrained(self, folder) -> tuple[str, ...]:
        """Writes tokenizer.json and tokenizer_config.json into `folder`, which is made when it is not there.

        bertcore and transformers load both back to the same tokenizer. Returns the names of the files; raises OSError
        when one cannot be written, and then leaves older ones as they were.
        """
        return write_contents(folder, self._file_contents())

    def _file_contents(self) -> dict[str, str]:
        """The files that `save_pretrained` writes, by name."""
        names = ("model_input_names", "model_max_length", "padding_side", "truncation_side")
        stated = {name: getattr(self, name) for name in names}
        if self.pad_token_type_id:
            stated["pad_token_type_id"] = self.pad_token_type_id
        return file_contents(self, stated, self._family, self._settings)

    def _limits(
        self, pair: bool, add_special_tokens: bool, padding, truncation, max_length, stride, multiple, side
    ) -> tuple[Truncation | None, Padding]:
        """How a call cuts and fills up its rows, of its arguments."""
        checks.boolean("add_special_tokens", add_special_tokens)
        cut = read_truncation(
            truncation, max_length, padding, pair=pair, stride=stride, side=self.truncation_side,
            special=self.num_special_tokens_to_add(pair) if add_special_tokens else 0,
            model_max_length=self.model_max_length,
        )  # fmt: skip
        side = self.padding_side if side is None else side
        fill = read_padding(
            padding, max_length, multiple, side=side, truncation=cut, model_max_length=self.model_max_length
        )
        return cut, fill

    def _encode(self, texts: Texts, cut: Truncation | None, add_special_tokens: bool) -> list:
        """The library's encoding of each text or pair, with what was cut off hanging on it."""
        try:
            if cut and cut.strategy != "longest_first" and texts.second is not None:
                self._check_room(texts, cut, add_special_tokens)
            return self._engine.encode(texts.inputs(), cut, add_special_tokens, texts.split)
        except TypeError:  # what the library calls text that cannot be written as UTF-8
            texts.check_unicode()
            raise

    def _check_room(self, texts: Texts, cut: Truncation, add_special_tokens: bool) -> None:
        """Raises ValueError for a pair whose part that is not to be cut leaves no room (the library would abort)."""

        def lengths(column):
            return [len(one) for one in self._engine.encode([(text,) for text in column], None, False, texts.split)]

        room = cut.max_length - (self.num_special_tokens_to_add(pair=True) if add_special_tokens else 0)
        first_is_cut = cut.strategy == "only_first"
        other, whole = (texts.first, texts.second) if first_is_cut else (texts.second, texts.first)
        for row, length in enumerate(lengths(whole)):
            left = room - length
            if left <= cut.stride and lengths(other[row : row + 1])[0] > left:
                name = texts.name("text" if first_is_cut else "text_pair", row)
                raise ValueError(
                    f"{name} would have to be cut to {max(left, 0)} tokens, with truncation={cut.strategy!r}, stride "
                    f"{cut.stride} and max_length {cut.max_length}: the other text of the pair has {length}"
                )

    def _pad(self, encodings: list, fill: Padding) -> None:
        if fill.strategy is None:
            return
        self._check_pad_token(fill)
        length = fill.target([len(encoding) for encoding in encodings])
        for encoding in encodings:
            encoding.pad(
                length, direction=fill.side, pad_id=self.pad_token_id, pad_token=self.pad_token,
                pad_type_id=self.pad_token_type_id,
            )  # fmt: skip

    def _check_pad_token(self, fill: Padding) -> None:
        if fill.strategy and self.pad_token_id is None:
            raise ValueError("padding needs a pad token, and the tokenizer's files state none")

    def _wanted(self, name: str, asked: bool | None) -> bool:
        return name in self.model_input_names if asked is None else asked

    def _values(self, encodings: list, wanted: dict[str, bool | None]) -> dict[str, list]:
        """The columns of a batch: input_ids and those that are wanted, or that model_input_names has for None."""
        names = ["input_ids", *(name for name, asked in wanted.items() if self._wanted(name, asked))]
        return {name: list(map(READERS[name], encodings)) for name in names}

    def _result(self, values: dict[str, list], encodings: list, tensors: str | None, *, flat: bool) -> BatchEncoding:
        """The columns in the form that was asked for: arrays, lists, or (flat) the lists of the only row."""
        if tensors == "np":
            values = {name: as_array(name, rows, self._widths.get(name, 0)) for name, rows in values.items()}
        elif flat:
            values = {name: rows if name == "length" else rows[0] for name, rows in values.items()}
        return BatchEncoding(values, encodings)


READERS = {
    "input_ids": lambda encoding: encoding.ids,
    "token_type_ids": lambda encoding: encoding.type_ids,
    "attention_mask": lambda encoding: encoding.attention_mask,
    "special_tokens_mask": lambda encoding: encoding.special_tokens_mask,
    "offset_mapping": lambda encoding: encoding.offsets,
    "length": len,
}
