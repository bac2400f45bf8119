"""The tokenizer of a checkpoint: text to token ids and back, with the names and results of transformers."""

from .batch import BatchEncoding, as_array
from .engine import Engine
from .ids import as_ids, is_id
from .options import Padding, Truncation, read_padding, read_truncation
from .settings import SPECIAL_TOKEN_NAMES, TokenizerSettings
from .texts import as_lists, check_unicode, text_name


class Tokenizer:
    """Text to token ids and back. Made by `AutoTokenizer.from_pretrained`.

    Special tokens are attributes: cls_token, sep_token, pad_token, unk_token, mask_token, bos_token, eos_token (None
    when there is none) and cls_token_id, ... for their ids.

    Attributes:
        model_max_length: the most tokens the model takes; a huge number when no file says it, as in transformers.
        model_input_names: which of input_ids, token_type_ids, attention_mask a call returns.
        padding_side, truncation_side: "right" or "left".

    Any number of threads may use one tokenizer, and it may be pickled.
    """

    cls_token: str | None
    cls_token_id: int | None
    mask_token: str | None
    mask_token_id: int | None
    pad_token: str | None
    pad_token_id: int | None
    sep_token: str | None
    sep_token_id: int | None
    unk_token: str | None
    unk_token_id: int | None
    bos_token: str | None
    bos_token_id: int | None
    eos_token: str | None
    eos_token_id: int | None

    def __init__(self, backend, special_tokens: dict[str, str], settings: TokenizerSettings):
        self._backend = backend
        self._engine = Engine(backend)
        self.special_tokens_map = dict(special_tokens)
        for name in SPECIAL_TOKEN_NAMES:
            token = special_tokens.get(name)
            setattr(self, name, token)
            setattr(self, f"{name}_id", None if token is None else backend.token_to_id(token))
        extra = [token.content for token in settings.extra_special_tokens]
        self.all_special_tokens = list(dict.fromkeys([*special_tokens.values(), *extra]))
        self.all_special_ids = [backend.token_to_id(token) for token in self.all_special_tokens]
        self.model_max_length = settings.model_max_length
        self.model_input_names = list(settings.model_input_names)
        self.padding_side = settings.padding_side
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
                overflow_to_sample_mapping tells which text each row is from.
            return_special_tokens_mask, return_offsets_mapping, return_length: add special_tokens_mask (1 at special
                tokens and padding), offset_mapping (first and last + 1 character of each token), length.

        Raises:
            TypeError: a text that is no string, named with its index.
            ValueError: other bad arguments; text_pair of another count than text; max_length below the number of
                special tokens; a text that is not valid Unicode (a lone surrogate); rows of different length for
                return_tensors.
        """
        batched = not isinstance(text, str)
        texts, pairs = as_lists(text, text_pair)
        cut = read_truncation(
            truncation, max_length, padding, pair=pairs is not None, stride=stride, side=self.truncation_side,
            special=self.num_special_tokens_to_add(pairs is not None) if add_special_tokens else 0,
            model_max_length=self.model_max_length,
        )  # fmt: skip
        fill = read_padding(
            padding, max_length, pad_to_multiple_of, side=self.padding_side if padding_side is None else padding_side,
            truncation=cut, model_max_length=self.model_max_length,
        )  # fmt: skip
        if return_tensors not in (None, "np"):
            raise ValueError(f"return_tensors is {return_tensors!r}; expected None or 'np'")
        encodings = self._encode(texts, pairs, cut, add_special_tokens, batched)
        if return_overflowing_tokens:
            samples = [row for row, encoding in enumerate(encodings) for _ in (encoding, *encoding.overflowing)]
            encodings = [piece for encoding in encodings for piece in (encoding, *encoding.overflowing)]
        self._pad(encodings, fill)
        wanted = {
            "input_ids": True,
            "token_type_ids": self._wanted("token_type_ids", return_token_type_ids),
            "attention_mask": self._wanted("attention_mask", return_attention_mask),
            "special_tokens_mask": return_special_tokens_mask,
            "offset_mapping": return_offsets_mapping,
            "length": return_length,
        }
        values = {name: list(map(READERS[name], encodings)) for name, asked in wanted.items() if asked}
        if return_overflowing_tokens:
            values["overflow_to_sample_mapping"] = samples
        if return_tensors == "np":
            values = {name: as_array(name, rows) for name, rows in values.items()}
        elif not batched and not return_overflowing_tokens:
            values = {name: rows if name == "length" else rows[0] for name, rows in values.items()}
        return BatchEncoding(values, encodings)

    def encode(self, text: str, text_pair: str | None = None, **options) -> list[int]:
        """The input_ids of a call with these arguments."""
        return self(text, text_pair, **options)["input_ids"]

    def tokenize(self, text: str, *, add_special_tokens: bool = False) -> list[str]:
        """The tokens of one text as strings."""
        return self(text, add_special_tokens=add_special_tokens).tokens()

    def decode(self, token_ids, skip_special_tokens: bool = False) -> str | list[str]:
        """The text of token ids: an integer, a sequence of them, or a sequence of sequences (which gives a list).

        Raises TypeError for what is no integers, ValueError for an id outside the vocabulary, naming it and its
        position.
        """
        ids = as_ids("token_ids", token_ids, nested=True)
        if ids and isinstance(ids[0], list):
            return [self.decode(row, skip_special_tokens) for row in ids]
        for place, number in enumerate(ids):  # the library drops ids it does not know, without a word
            self._token(number, f" at position {place}")
        return self._backend.decode(ids, skip_special_tokens=skip_special_tokens)

    def batch_decode(self, sequences, skip_special_tokens: bool = False) -> list[str]:
        """`decode` of each sequence."""
        return [self.decode(ids, skip_special_tokens) for ids in sequences]

    def convert_ids_to_tokens(self, ids, skip_special_tokens: bool = False) -> str | list[str]:
        """The token of an id, or a list of them.

        Raises TypeError for what is no integers, ValueError for an id outside the vocabulary.
        """
        if is_id(ids):
            return self._token(ids, "")
        ids = as_ids("ids", ids)
        skipped = set(self.all_special_ids) if skip_special_tokens else ()
        tokens = [(number, self._token(number, f" at position {place}")) for place, number in enumerate(ids)]
        return [token for number, token in tokens if number not in skipped]

    def convert_tokens_to_ids(self, tokens: str | list[str]) -> int | list[int | None] | None:
        """The id of a token, or a list of them; unk_token_id for what is not in the vocabulary."""
        if not isinstance(tokens, str):
            return [self.convert_tokens_to_ids(token) for token in tokens]
        found = self._backend.token_to_id(tokens)
        return self.unk_token_id if found is None else found

    def num_special_tokens_to_add(self, pair: bool = False) -> int:
        """How many special tokens go around a text, or around a pair of texts."""
        return self._backend.num_special_tokens_to_add(pair)

    def get_vocab(self) -> dict[str, int]:
        """Every token, added ones included, with its id."""
        return self._backend.get_vocab(with_added_tokens=True)

    @property
    def vocab_size(self) -> int:
        """The size of the vocabulary without added tokens; `len(tokenizer)` counts them."""
        return self._backend.get_vocab_size(with_added_tokens=False)

    def __len__(self) -> int:
        return self._backend.get_vocab_size(with_added_tokens=True)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        model = type(self._backend.model).__name__
        return f"Tokenizer({model}, vocab_size={len(self)}, model_max_length={self.model_max_length})"

    def _encode(self, texts, pairs, cut: Truncation | None, add_special_tokens: bool, batched: bool) -> list:
        """The library's encoding of each text or pair, with what was cut off hanging on it."""
        try:
            if cut and cut.strategy != "longest_first" and pairs is not None:
                self._check_room(texts, pairs, cut, add_special_tokens, batched)
            inputs = texts if pairs is None else list(zip(texts, pairs, strict=True))
            return self._engine.encode(inputs, cut, add_special_tokens)
        except TypeError:  # what the library calls text that cannot be written as UTF-8
            for argument, strings in (("text", texts), ("text_pair", pairs or [])):
                for index, text in enumerate(strings):
                    check_unicode(text, text_name(argument, index, batched))
            raise

    def _check_room(self, texts, pairs, cut: Truncation, add_special_tokens: bool, batched: bool) -> None:
        """Raises ValueError for a pair whose part that is not to be cut leaves no room (the library would abort)."""
        room = cut.max_length - (self.num_special_tokens_to_add(pair=True) if add_special_tokens else 0)
        first_is_cut = cut.strategy == "only_first"
        other, whole = (texts, pairs) if first_is_cut else (pairs, texts)
        for index, encoding in enumerate(self._engine.encode(whole, None, False)):
            left = room - len(encoding)
            if left <= cut.stride and len(self._engine.encode([other[index]], None, False)[0]) > left:
                name = text_name("text" if first_is_cut else "text_pair", index, batched)
                raise ValueError(
                    f"{name} would have to be cut to {max(left, 0)} tokens, with truncation={cut.strategy!r}, stride "
                    f"{cut.stride} and max_length {cut.max_length}: the other text of the pair has {len(encoding)}"
                )

    def _pad(self, encodings: list, fill: Padding) -> None:
        if fill.strategy is None:
            return
        if self.pad_token_id is None:
            raise ValueError("padding needs a pad token, and the tokenizer's files state none")
        length = fill.target([len(encoding) for encoding in encodings])
        for encoding in encodings:
            encoding.pad(
                length, direction=fill.side, pad_id=self.pad_token_id, pad_token=self.pad_token,
                pad_type_id=self.pad_token_type_id,
            )  # fmt: skip

    def _wanted(self, name: str, asked: bool | None) -> bool:
        return name in self.model_input_names if asked is None else asked

    def _token(self, number, where: str) -> str:
        token = self._backend.id_to_token(int(number)) if 0 <= number < 2**32 else None
        if token is None:
            raise ValueError(f"token id {number}{where} is not in the vocabulary (0 to {len(self) - 1})")
        return token


READERS = {
    "input_ids": lambda encoding: encoding.ids,
    "token_type_ids": lambda encoding: encoding.type_ids,
    "attention_mask": lambda encoding: encoding.attention_mask,
    "special_tokens_mask": lambda encoding: encoding.special_tokens_mask,
    "offset_mapping": lambda encoding: encoding.offsets,
    "length": len,
}
