"""The tokenizer of a checkpoint: text to token ids and back, with the names and results of transformers."""

import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bertcore.arguments import naming_nearest
from bertcore.checkpoint.files import made_folder, replace_files

from .families import FAMILIES, GENERIC
from .inputs import (
    BatchEncoding,
    CallOptions,
    Padding,
    Texts,
    Truncation,
    as_array,
    as_arrays,
    as_columns,
    pad_columns,
    read_padding,
    read_texts,
    read_truncation,
)
from .settings import GENERIC_CLASSES, TOKENIZER_CONFIG_NAME, TOKENIZER_JSON, TokenizerSettings
from .vocabulary import Vocabulary

if TYPE_CHECKING:
    from tokenizers import Encoding

    from .backend import Built

# The columns of a result, read from the library's encodings.
READERS = {
    "input_ids": lambda encoding: encoding.ids,
    "token_type_ids": lambda encoding: encoding.type_ids,
    "attention_mask": lambda encoding: encoding.attention_mask,
    "special_tokens_mask": lambda encoding: encoding.special_tokens_mask,
    "offset_mapping": lambda encoding: encoding.offsets,
    "length": len,
}


class Tokenizer(Vocabulary):
    """Text to token ids and back. Made by `AutoTokenizer.from_pretrained`.

    Special tokens are attributes: cls_token, sep_token, pad_token, unk_token, mask_token, bos_token, eos_token (None
    if the tokenizer lacks it) and cls_token_id, ... for their ids.

    Attributes:
        model_max_length: the most tokens the model takes; a huge number if no file states it, as in transformers.
        model_input_names: which of input_ids, token_type_ids, attention_mask a call returns.
        padding_side, truncation_side: "right" or "left".

    Any number of threads may use one tokenizer, and it may be pickled.
    """

    def __init__(self, built: "Built", settings: TokenizerSettings):
        super().__init__(built, settings)
        self._settings = settings
        self._family = built.family
        self._widths = {"offset_mapping": 2}
        self._last_cut: tuple[Any, Truncation | None] = None, None  # of encode_beginnings: its checked arguments
        self.model_max_length = settings.model_max_length
        self.model_input_names = list(settings.model_input_names or built.family.input_names)
        self.padding_side = settings.padding_side or built.family.padding_side
        self.truncation_side = settings.truncation_side
        self.pad_token_type_id = settings.pad_token_type_id

    @naming_nearest()
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
        """Return the token ids of one text, or of each text in a list.

        Args:
            text: a string, or a list or tuple of strings (an empty one gives an empty result).
            text_pair: second texts, one for each: the same kind as `text`.
            is_split_into_words: a text is a list of words (and a batch a list of such lists); word_ids then counts
                these. Byte-level BPE sees no spaces between them without add_prefix_space=True, a setting of
                `AutoTokenizer.from_pretrained`.
            add_special_tokens: put [CLS], [SEP] and the like around the texts.
            padding: False; True or "longest" (to the longest row); "max_length" (to max_length).
            truncation: False; True or "longest_first" (take from the longer of a pair); "only_first"; "only_second".
                None: True if max_length is given without padding, else False, as in transformers.
            max_length: in tokens, special ones included; None means model_max_length.
            stride: the number of tokens that each overflowing piece repeats of the one before it.
            pad_to_multiple_of: round the padded length up.
            padding_side: "right" or "left"; None means the tokenizer's own.
            return_tensors: None for lists; "np" for int64 arrays (rows, tokens), of one row for a single string.
            return_token_type_ids: None means as in model_input_names.
            return_attention_mask: likewise.
            return_overflowing_tokens: the tokens that truncation cuts off follow as rows of their own, and
                overflow_to_sample_mapping has the number of each row's text.
            return_special_tokens_mask: add special_tokens_mask (1 at special tokens and padding).
            return_offsets_mapping: add offset_mapping (first and last + 1 character of each token).
            return_length: add length.

        Raises:
            TypeError: a text that is not a string, named with its index.
            ValueError: other bad arguments; unequal numbers of text_pair and text; max_length below the number of
                special tokens; a text that is not valid Unicode (a lone surrogate); rows of different length for
                return_tensors.
        """
        options = CallOptions(
            add_special_tokens, padding, truncation, max_length, stride, is_split_into_words, pad_to_multiple_of,
            padding_side, return_tensors, return_token_type_ids, return_attention_mask, return_overflowing_tokens,
            return_special_tokens_mask, return_offsets_mapping, return_length,
        )  # fmt: skip
        texts = read_texts(text, text_pair, is_split_into_words)
        cut, fill = self._limits(options, pair=texts.second is not None)
        encodings = self._encode(texts, cut, add_special_tokens)
        more = {}
        if return_overflowing_tokens:
            samples = [row for row, encoding in enumerate(encodings) for _ in (encoding, *encoding.overflowing)]
            encodings = [piece for encoding in encodings for piece in (encoding, *encoding.overflowing)]
            more = {"overflow_to_sample_mapping": samples}
        self._pad(encodings, fill)
        flat = not texts.batched and not return_overflowing_tokens
        return self._result(self._values(encodings, options.columns) | more, encodings, return_tensors, flat=flat)

    def encode(self, text: str, text_pair: str | None = None, **options: Any) -> list[int]:
        """Return the input_ids of a call with these arguments."""
        return self(text, text_pair, **options)["input_ids"]

    def whole_ids(self, texts: list[str]) -> list[list[int]]:
        """Return the input_ids of each text, uncut and without special tokens. Raises as a call does."""
        return [encoding.ids for encoding in self._encode(read_texts(texts, None), None, False, offsets=False)]

    def encode_beginnings(self, texts: list[str], max_length: int) -> list[tuple[list[int], bool]]:
        """Return the input_ids of each text, cut to `max_length` with its special tokens, and whether it was cut.

        Memory does not grow with the length of the texts (except for a truncation_side of "left").

        Raises TypeError and ValueError as a call with truncation=True does.
        """
        known = type(max_length), max_length, self.truncation_side  # 1.0 and True equal 1
        last, cut = self._last_cut
        if known != last:
            cut, _ = self._limits(CallOptions(truncation=True, max_length=max_length), pair=False)
            self._last_cut = known, cut
        try:
            return self._engine.beginnings(texts, cut)
        except TypeError:  # the library's, for non-text and for text that cannot be encoded as UTF-8
            read_texts(texts, None).check_unicode()
            raise

    def tokenize(self, text: str, *, add_special_tokens: bool = False) -> list[str]:
        """Return the tokens of one text as strings."""
        return self(text, add_special_tokens=add_special_tokens).tokens()

    def num_special_tokens_to_add(self, pair: bool = False) -> int:
        """Return the number of special tokens that go around a text, or around a pair of texts."""
        return self.backend_tokenizer.num_special_tokens_to_add(pair)

    def pad(
        self,
        encoded_inputs: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        padding: bool | str = True,
        max_length: int | None = None,
        pad_to_multiple_of: int | None = None,
        padding_side: str | None = None,
        return_attention_mask: bool | None = None,
        return_tensors: str | None = None,
    ) -> BatchEncoding:
        """Pad rows of token ids to one length.

        Args:
            encoded_inputs: the result of a call, or a list of results, one for each text. Other columns (labels) stay
                as they are.
            padding: as in a call; so are max_length, pad_to_multiple_of, padding_side, return_attention_mask and
                return_tensors.

        Raises TypeError for anything but rows of ids; ValueError as a call does.
        """
        options = CallOptions(
            False, padding, False, max_length, pad_to_multiple_of=pad_to_multiple_of, padding_side=padding_side,
            return_tensors=return_tensors,
        )  # fmt: skip
        columns, single = as_columns(encoded_inputs)
        if self._wanted("attention_mask", return_attention_mask) and "attention_mask" not in columns:
            columns["attention_mask"] = [[1] * len(row) for row in columns["input_ids"]]
        _, fill = self._limits(options, pair=False)
        values = {
            "input_ids": self.pad_token_id, "token_type_ids": self.pad_token_type_id, "attention_mask": 0,
            "special_tokens_mask": 1,
        }  # fmt: skip
        columns = pad_columns(columns, fill, values)
        if return_tensors == "np":
            return BatchEncoding(as_arrays(columns), [])
        return BatchEncoding({name: rows[0] for name, rows in columns.items()} if single else columns, [])

    def save_pretrained(self, folder: str | os.PathLike[str]) -> tuple[str, ...]:
        """Write tokenizer.json and tokenizer_config.json into `folder`, which is made if it does not exist.

        bertcore and transformers load both back to the same tokenizer. Returns the names of the files; raises OSError
        if one cannot be written, and then leaves older ones as they were.
        """
        folder, contents = made_folder(folder), self._file_contents()

        def writer(text: str):
            return lambda file: file.write_text(text, encoding="utf-8")

        replace_files(folder, {name: writer(text) for name, text in contents.items()})
        return tuple(str(folder / name) for name in contents)

    def _file_contents(self) -> dict[str, str]:
        """Return the files that `save_pretrained` writes, by name."""
        from .builders import options_of

        named, family, settings = self.special_tokens_map.values(), self._family, self._settings
        class_name = settings.tokenizer_class
        if family is GENERIC and class_name in ("", *GENERIC_CLASSES):
            class_name = "PreTrainedTokenizerFast"
        config = {  # beyond tokenizer.json: transformers reads some settings only from here
            **family.defaults,
            **settings.options,
            **settings.entities,
            **options_of(self.backend_tokenizer),
            **self.special_tokens_map,
            "clean_up_tokenization_spaces": self.clean_up_tokenization_spaces,
            "model_input_names": self.model_input_names,
            "model_max_length": self.model_max_length,
            "padding_side": self.padding_side,
            "truncation_side": self.truncation_side,
            "tokenizer_class": class_name or next(name for name, one in FAMILIES.items() if one is family),
        }
        if self.pad_token_type_id:
            config["pad_token_type_id"] = self.pad_token_type_id
        if extra := [token for token in self.all_special_tokens if token not in named]:
            config["extra_special_tokens"] = extra
        text = json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        return {TOKENIZER_JSON: self.backend_tokenizer.to_str(pretty=True), TOKENIZER_CONFIG_NAME: text}

    def _limits(self, options: CallOptions, *, pair: bool) -> tuple[Truncation | None, Padding]:
        """Return how a call cuts and pads its rows. Raises ValueError if padding lacks a pad token."""
        cut = read_truncation(
            options, pair=pair, side=self.truncation_side, model_max_length=self.model_max_length,
            special=self.num_special_tokens_to_add(pair) if options.add_special_tokens else 0,
        )  # fmt: skip
        fill = read_padding(options, side=self.padding_side, cut=cut, model_max_length=self.model_max_length)
        if fill.strategy and self.pad_token_id is None:
            raise ValueError("padding needs a pad token, but the tokenizer's files state none")
        return cut, fill

    def _encode(
        self, texts: Texts, cut: Truncation | None, add_special_tokens: bool, offsets: bool = True
    ) -> list["Encoding"]:
        """Encode each text or pair; an encoding's `overflowing` has the pieces that were cut off."""
        try:
            if cut and cut.strategy != "longest_first" and texts.second is not None:
                self._check_pairs(texts, cut, add_special_tokens)
            return self._engine.encode(texts.inputs(), cut, add_special_tokens, texts.split, offsets)
        except TypeError:  # the library's error for text that cannot be encoded as UTF-8
            texts.check_unicode()
            raise

    def _check_pairs(self, texts: Texts, cut: Truncation, add_special_tokens: bool) -> None:
        """Raise ValueError for a pair whose uncut text leaves no tokens for the other (the library would abort)."""

        def lengths(column):
            return [len(one) for one in self._engine.encode([(text,) for text in column], None, False, texts.split)]

        most = cut.max_length - (self.num_special_tokens_to_add(pair=True) if add_special_tokens else 0)
        first_is_cut = cut.strategy == "only_first"
        other, whole = (texts.first, texts.second) if first_is_cut else (texts.second, texts.first)
        for row, length in enumerate(lengths(whole)):
            left = most - length
            if left <= cut.stride and lengths(other[row : row + 1])[0] > left:
                name = texts.name("text" if first_is_cut else "text_pair", row)
                raise ValueError(
                    f"{name} would have to be cut to {max(left, 0)} tokens, with truncation={cut.strategy!r}, stride "
                    f"{cut.stride} and max_length {cut.max_length}: the other text of the pair has {length}"
                )

    def _pad(self, encodings: list["Encoding"], fill: Padding) -> None:
        if fill.strategy is None:
            return
        length = fill.target([len(encoding) for encoding in encodings])
        for encoding in encodings:
            encoding.pad(
                length, direction=fill.side, pad_id=self.pad_token_id, pad_token=self.pad_token,
                pad_type_id=self.pad_token_type_id,
            )  # fmt: skip

    def _wanted(self, name: str, asked: bool | None) -> bool:
        return name in self.model_input_names if asked is None else asked

    def _values(self, encodings: list["Encoding"], wanted: Mapping[str, bool | None]) -> dict[str, list]:
        """Return the columns of a batch: input_ids and the wanted ones; model_input_names decides about None."""
        names = ["input_ids", *(name for name, asked in wanted.items() if self._wanted(name, asked))]
        return {name: list(map(READERS[name], encodings)) for name in names}

    def _result(
        self, values: dict[str, list], encodings: list["Encoding"], tensors: str | None, *, flat: bool
    ) -> BatchEncoding:
        """Return the columns as arrays, as lists, or (flat) as the lists of the only row."""
        if tensors == "np":
            values = {name: as_array(name, rows, self._widths.get(name, 0)) for name, rows in values.items()}
        elif flat:
            values = {name: rows if name == "length" else rows[0] for name, rows in values.items()}
        return BatchEncoding(values, encodings)
