"""The vocabulary half of a tokenizer: token ids to tokens and text, with the names and results of transformers."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from bertcore.arguments import check_strings, warn_caller
from bertcore.kernels import checks

from .engine import Engine
from .families import SPECIAL_TOKEN_NAMES
from .inputs import as_ids, each_of, is_id
from .settings import TokenizerSettings

if TYPE_CHECKING:
    from .backend import Built

# Replacements of clean_up_tokenization_spaces, in this order; transformers' list.
CLEAN_UP = (
    (" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"), (" n't", "n't"), (" 'm", "'m"), (" 's", "'s"),
    (" 've", "'ve"), (" 're", "'re"),
)  # fmt: skip


class Vocabulary:
    """Token ids, tokens and text; the part of `Tokenizer` that encodes no text."""

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
    model_max_length: int
    is_fast = True

    def __init__(self, built: "Built", settings: TokenizerSettings):
        backend, special = built.backend, built.special_tokens
        self.backend_tokenizer = backend
        self._take_special(special, built.extra_special_tokens)
        self.clean_up_tokenization_spaces = bool(settings.options.get("clean_up_tokenization_spaces"))
        self._may_clean_up = built.family.cleans_up_bpe or type(backend.model).__name__ != "BPE"

    def _take_special(self, special: Mapping[str, str], extra: Iterable[str]) -> None:
        """Take the special tokens by name and those without one; the backend has them."""
        self._engine = Engine(self.backend_tokenizer)
        self.special_tokens_map = dict(special)
        for name in (*SPECIAL_TOKEN_NAMES, *special):
            token = special.get(name)
            setattr(self, name, token)
            setattr(self, f"{name}_id", None if token is None else self.backend_tokenizer.token_to_id(token))
        self.all_special_tokens = list(dict.fromkeys([*special.values(), *extra]))
        self.all_special_ids = [self.backend_tokenizer.token_to_id(token) for token in self.all_special_tokens]

    def add_tokens(self, new_tokens: str | list[str], special_tokens: bool = False) -> int:
        """Add tokens that the vocabulary lacks, with new ids at its end, and return their number.

        Args:
            new_tokens: strings, or `tokenizers.AddedToken`s; found in a text before it is split into other tokens.
            special_tokens: whether they are special, which `decode` can skip.

        A model needs `resize_token_embeddings(len(tokenizer))` before it takes their ids. No other thread may use the
        tokenizer meanwhile. Raises TypeError for other tokens, ValueError for an empty one.
        """
        is_one = isinstance(new_tokens, str) or not isinstance(new_tokens, Iterable)
        tokens = [new_tokens] if is_one else list(new_tokens)
        texts = [getattr(token, "content", token) for token in tokens]
        for place, text in enumerate(texts):
            if not isinstance(text, str):
                raise TypeError(f"new_tokens[{place}] is {text!r}, expected a string or an AddedToken")
            if not text:
                raise ValueError(f"new_tokens[{place}] is empty, expected at least one character")
        checks.boolean("special_tokens", special_tokens)
        before = len(self)
        (self.backend_tokenizer.add_special_tokens if special_tokens else self.backend_tokenizer.add_tokens)(tokens)
        self._take_special(self.special_tokens_map, [*self.all_special_tokens, *(texts if special_tokens else ())])
        return len(self) - before

    def add_special_tokens(self, special_tokens_dict: Mapping[str, str | list[str]]) -> int:
        """Set special tokens by name, add those that the vocabulary lacks, and return the number of these.

        `special_tokens_dict` has names such as "pad_token" with a token each, and "extra_special_tokens" (formerly
        "additional_special_tokens") with a list. Otherwise as `add_tokens`; ValueError for an unknown name.
        """
        if not isinstance(special_tokens_dict, Mapping):
            kind = type(special_tokens_dict).__name__
            raise TypeError(f"special_tokens_dict is {kind}, expected a mapping of names and tokens")
        named, extra = dict(self.special_tokens_map), []
        for name, given in special_tokens_dict.items():
            if name in ("extra_special_tokens", "additional_special_tokens"):
                extra += [given] if isinstance(given, str) else each_of(name, given, "strings")
            else:
                checks.choice("a name in special_tokens_dict", name, (*SPECIAL_TOKEN_NAMES, *named))
                named[name] = getattr(given, "content", given)
                extra.append(given)
        count = self.add_tokens(extra, special_tokens=True)
        self._take_special(named, self.all_special_tokens)
        return count

    def decode(
        self, token_ids: Any, skip_special_tokens: bool = False, clean_up_tokenization_spaces: bool | None = None
    ) -> str | list[str]:
        """Return the text of token ids: an integer, a sequence of them, or a sequence of sequences (a list of texts).

        clean_up_tokenization_spaces removes spaces before punctuation ("a ." -> "a."); None means as the files say. It
        is for WordPiece and SentencePiece: byte-level BPE stores every space, so there it does nothing.

        Raises TypeError for anything but integers, ValueError for an id outside the vocabulary, naming it and its
        position.
        """
        ids = as_ids("token_ids", token_ids, nested=True)
        checks.boolean("skip_special_tokens", skip_special_tokens)
        if ids and isinstance(ids[0], list):
            return [self.decode(row, skip_special_tokens, clean_up_tokenization_spaces) for row in ids]
        for number in dict.fromkeys(ids):  # the library silently drops unknown ids
            self._token(number, f" at position {ids.index(number)}")
        text = self._engine.decode(ids, skip_special_tokens)
        if clean_up_tokenization_spaces and not self._may_clean_up:
            warn_caller("clean_up_tokenization_spaces does nothing for byte-level BPE")
        asked = clean_up_tokenization_spaces
        if self._may_clean_up and (self.clean_up_tokenization_spaces if asked is None else asked):
            for found, replacement in CLEAN_UP:
                text = text.replace(found, replacement)
        return text

    def batch_decode(
        self, sequences: Iterable, skip_special_tokens: bool = False, clean_up_tokenization_spaces: bool | None = None
    ) -> list[str]:
        """Return `decode` of each sequence."""
        rows = each_of("sequences", sequences, "sequences of integers")
        return [self.decode(ids, skip_special_tokens, clean_up_tokenization_spaces) for ids in rows]

    def convert_ids_to_tokens(self, ids: Any, skip_special_tokens: bool = False) -> str | list[str]:
        """Return the token of an id, or a list of them.

        Raises TypeError for anything but integers, ValueError for an id outside the vocabulary.
        """
        if is_id(ids):
            return self._token(ids, "")
        ids = as_ids("ids", ids)
        skipped = set(self.all_special_ids) if skip_special_tokens else ()
        tokens = [(number, self._token(number, f" at position {place}")) for place, number in enumerate(ids)]
        return [token for number, token in tokens if number not in skipped]

    def convert_tokens_to_ids(self, tokens: str | list[str]) -> int | list[int | None] | None:
        """Return the id of a token, or a list of them; unk_token_id for unknown tokens."""
        if not isinstance(tokens, str):
            return [self.convert_tokens_to_ids(token) for token in each_of("tokens", tokens, "strings")]
        found = self.backend_tokenizer.token_to_id(tokens)
        return self.unk_token_id if found is None else found

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        """Return the text that tokens stand for."""
        tokens, decoder = check_strings("tokens", tokens), self.backend_tokenizer.decoder
        return " ".join(tokens) if decoder is None else decoder.decode(tokens)

    def get_special_tokens_mask(self, token_ids: Any) -> list[int]:
        """Return 1 for each id of a special token, else 0; the ids include the special tokens."""
        special = set(self.all_special_ids)
        return [int(number in special) for number in as_ids("token_ids", token_ids)]

    def get_added_vocab(self) -> dict[str, int]:
        """Return the added tokens with their ids."""
        added = sorted(self.backend_tokenizer.get_added_tokens_decoder().items())
        return {token.content: number for number, token in added}

    def get_vocab(self) -> dict[str, int]:
        """Return every token, added ones included, with its id."""
        return self.backend_tokenizer.get_vocab(with_added_tokens=True)

    @property
    def vocab_size(self) -> int:
        """The size of the vocabulary without added tokens; `len(tokenizer)` counts them."""
        return self.backend_tokenizer.get_vocab_size(with_added_tokens=False)

    def __len__(self) -> int:
        return self.backend_tokenizer.get_vocab_size(with_added_tokens=True)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        model = type(self.backend_tokenizer.model).__name__
        return f"Tokenizer({model}, vocab_size={len(self)}, model_max_length={self.model_max_length})"

    def _token(self, number: int, where: str) -> str:
        token = self.backend_tokenizer.id_to_token(int(number)) if 0 <= number < 2**32 else None
        if token is None:
            raise ValueError(f"token id {number}{where} is not in the vocabulary (0 to {len(self) - 1})")
        return token
