"""Tokenizers by family: data for the three shared builders.

The values follow transformers 5.23's tokenizer classes, whose names are the keys of `FAMILIES`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

NO_TYPES = ("input_ids", "attention_mask")
WITH_TYPES = ("input_ids", "token_type_ids", "attention_mask")


@dataclass(frozen=True)
class AddedTokenSettings:
    """A token matched in the text before it is split, with the fields of `tokenizers.AddedToken`."""

    content: str
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = False
    special: bool = True


@dataclass(frozen=True)
class PieceChanges:
    """The vocabulary made of a SentencePiece file's pieces: head + pieces[skipped:] + tail (as in fairseq).

    head and tail hold names of special tokens ("pad_token"), or pieces with their score. Pieces in the tail are also
    special tokens (T5's sentinels).
    """

    head: tuple[str | tuple[str, float], ...] = ()
    skipped: int = 0
    tail: tuple[str | tuple[str, float], ...] = ()


@dataclass(frozen=True)
class TokenizerFamily:
    """One family's tokenizer.

    `single` and `pair` have the special tokens around one text and around two: names of special tokens, $A and $B, each
    with its token type (0 by default). An empty `single`: the settings add_bos_token and add_eos_token decide.
    """

    model: str  # the builder that reads the vocabulary files: "word_piece" | "byte_bpe" | "unigram"
    vocabulary_files: tuple[str, ...]  # replace a missing tokenizer.json
    special_tokens: Mapping[str, str | AddedTokenSettings]  # those that the vocabulary lacks are added in this order
    single: str = "cls_token $A sep_token"
    pair: str = "cls_token $A sep_token $B:1 sep_token:1"
    input_names: tuple[str, ...] = NO_TYPES
    padding_side: str = "right"
    trims_offsets: bool = False  # offsets leave out the space that belongs to a byte-level token
    offsets_count_prefix: bool = False  # offsets are trimmed as if a space had been put before every text
    normalization: tuple[str, ...] = ()  # the steps of `builders.NORMALIZERS`, in order
    pieces: PieceChanges = field(default_factory=PieceChanges)
    splits_at_spaces: bool = True  # texts are split at white space before a SentencePiece model sees them
    defaults: Mapping[str, bool] = field(default_factory=dict)  # settings that are not the same for all families
    cleans_up_bpe: bool = False  # clean_up_tokenization_spaces counts; transformers ignores it for other byte-level BPE
    entities: bool = False  # the tokenizer takes entities beside the text


# In the order in which transformers adds those that a vocabulary lacks.
SPECIAL_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_BRACKETS = dict(
    zip(SPECIAL_TOKEN_NAMES, ("[CLS]", "[SEP]", "[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]"), strict=True)
)
_ANGLES = dict(zip(SPECIAL_TOKEN_NAMES, ("<s>", "</s>", "<unk>", "</s>", "<pad>", "<s>", "<mask>"), strict=True))

_BERT = TokenizerFamily(
    model="word_piece",
    vocabulary_files=("vocab.txt",),
    special_tokens={name: token for name, token in _BRACKETS.items() if name not in ("bos_token", "eos_token")},
    input_names=WITH_TYPES,
)
_ROBERTA = TokenizerFamily(
    model="byte_bpe",
    vocabulary_files=("vocab.json", "merges.txt"),
    special_tokens=_ANGLES,
    pair="cls_token $A sep_token sep_token $B sep_token",
    trims_offsets=True,
)
_LUKE_ENTITY_TOKENS = {
    "entity_1_token": "<ent>", "entity_2_token": "<ent2>", "entity_unk_token": "[UNK]", "entity_pad_token": "[PAD]",
    "entity_mask_token": "[MASK]", "entity_mask2_token": "[MASK2]",
}  # fmt: skip
_XLM_ROBERTA = TokenizerFamily(
    model="unigram",
    vocabulary_files=("sentencepiece.bpe.model",),
    special_tokens=_ANGLES,
    single="bos_token $A eos_token",
    pair="bos_token $A eos_token eos_token $B eos_token",
    normalization=("charsmap",),
    pieces=PieceChanges(("bos_token", "pad_token", "eos_token", "unk_token"), 3, ("mask_token",)),
)
_ALBERT = TokenizerFamily(
    model="unigram",
    vocabulary_files=("spiece.model",),
    special_tokens=_BRACKETS | {"unk_token": "<unk>", "pad_token": "<pad>"},
    normalization=("quotes", "accents", "lower_case", "charsmap"),
    defaults={"do_lower_case": True},
)

# For a tokenizer.json of an unknown family; the file alone decides.
GENERIC = TokenizerFamily(model="any", vocabulary_files=(), special_tokens={}, single="", pair="")

# By transformers' class name, without the ending "Fast".
FAMILIES: Mapping[str, TokenizerFamily] = {
    "BertTokenizer": _BERT,
    "ElectraTokenizer": _BERT,
    "MobileBertTokenizer": _BERT,
    "DistilBertTokenizer": replace(_BERT, input_names=NO_TYPES),
    "MPNetTokenizer": replace(
        _BERT,
        special_tokens=_ANGLES | {"unk_token": "[UNK]", "mask_token": AddedTokenSettings("<mask>", lstrip=True)},
        pair="cls_token $A sep_token sep_token $B sep_token",
        input_names=NO_TYPES,
        trims_offsets=True,
    ),
    "RobertaTokenizer": _ROBERTA,
    # The text's vocabulary has the entities' names, too, as in transformers 5.
    "LukeTokenizer": replace(
        _ROBERTA,
        special_tokens=_ANGLES | _LUKE_ENTITY_TOKENS,
        offsets_count_prefix=True,
        cleans_up_bpe=True,
        entities=True,
    ),
    "DebertaTokenizer": replace(
        _ROBERTA,
        special_tokens=_BRACKETS,
        input_names=("input_ids", "attention_mask", "token_type_ids"),
        trims_offsets=False,
    ),
    "GPT2Tokenizer": replace(
        _ROBERTA,
        special_tokens=dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>"),
        single="",
        pair="",
        trims_offsets=False,
    ),
    "AlbertTokenizer": _ALBERT,
    "XLNetTokenizer": replace(
        _ALBERT,
        special_tokens=_ANGLES
        | {"sep_token": "<sep>", "cls_token": "<cls>", "mask_token": AddedTokenSettings("<mask>", lstrip=True)},
        single="$A sep_token cls_token:2",
        pair="$A sep_token $B:1 sep_token:1 cls_token:2",
        padding_side="left",
        defaults={},
    ),
    "XLMRobertaTokenizer": _XLM_ROBERTA,
    "CamembertTokenizer": replace(
        _XLM_ROBERTA,
        special_tokens=_ANGLES | {"mask_token": AddedTokenSettings("<mask>", lstrip=True)},
        pieces=PieceChanges(
            (("<s>NOTUSED", 0.0), "pad_token", ("</s>NOTUSED", 0.0), "unk_token", ("<unk>NOTUSED", -100.0)),
            1,
            ("mask_token",),
        ),
    ),
    # transformers 5.23 gives mLUKE the file's own ids; its checkpoints have XLM-R's.
    "MLukeTokenizer": replace(
        _XLM_ROBERTA, special_tokens=_ANGLES | {"entity_1_token": "<ent>", "entity_2_token": "<ent2>"}, entities=True
    ),
    "T5Tokenizer": TokenizerFamily(
        model="unigram",
        vocabulary_files=("spiece.model",),
        special_tokens={name: _ANGLES[name] for name in ("eos_token", "unk_token", "pad_token")},
        single="$A eos_token",
        pair="$A eos_token $B eos_token",
        normalization=("charsmap",),
        pieces=PieceChanges(tail=tuple((f"<extra_id_{number}>", 0.0) for number in reversed(range(100)))),
    ),
    # The file's own character map is not used, as in transformers 5.23.
    "DebertaV2Tokenizer": TokenizerFamily(
        model="unigram",
        vocabulary_files=("spm.model",),
        special_tokens=_BRACKETS,
        input_names=("input_ids", "attention_mask", "token_type_ids"),
        normalization=("lower_case", "single_spaces", "composed", "right_strip"),
        splits_at_spaces=False,
    ),
}

# The class of a model whose files name no class, by config.json's model_type. "new" is missing: its English models have
# BERT's tokenizer, its multilingual ones XLM-R's.
CLASS_OF_MODEL_TYPE: Mapping[str, str] = {
    **dict.fromkeys(("bert", "bert_hash", "neobert", "nomic_bert"), "BertTokenizer"),
    **dict.fromkeys(("gte", "jina_embeddings_v3", "xlm-roberta", "xlm-roberta-flash"), "XLMRobertaTokenizer"),
    "albert": "AlbertTokenizer", "camembert": "CamembertTokenizer", "deberta": "DebertaTokenizer",
    "deberta-v2": "DebertaV2Tokenizer", "distilbert": "DistilBertTokenizer", "electra": "ElectraTokenizer",
    "gpt2": "GPT2Tokenizer", "luke": "LukeTokenizer", "mluke": "MLukeTokenizer", "mobilebert": "MobileBertTokenizer",
    "model2vec": "PreTrainedTokenizer",  # generic: its tokenizer.json has what it needs
    "mpnet": "MPNetTokenizer", "roberta": "RobertaTokenizer", "t5": "T5Tokenizer", "xlnet": "XLNetTokenizer",
}  # fmt: skip
