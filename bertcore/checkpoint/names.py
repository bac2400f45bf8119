"""How files spell the names of parameters, as data.

The names a user sees are the ones transformers gives the parameters of the same model class today
("bert.encoder.layer.0.attention.self.query.weight"). Files differ from them in a few regular ways, gathered in a
NameRules value per family. The rules are written in one direction only, from a model's name to every spelling a file
may use (`NameRules.spellings`); reading applies them backwards, so the two directions cannot disagree.
"""

from collections.abc import Iterable
from dataclasses import dataclass

# TensorFlow's names for the layer norm's parameters, kept by checkpoints converted before 2020.
LAYER_NORM_ENDINGS = ((".LayerNorm.weight", ".LayerNorm.gamma"), (".LayerNorm.bias", ".LayerNorm.beta"))

# Index buffers that earlier versions of transformers stored with the weights.
INDEX_BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")


@dataclass(frozen=True)
class NameRules:
    """The spellings of one family's checkpoints. All names but `prefix` itself are bare: without `prefix`.

    prefix: what a model with a head puts before the names of its encoder ("bert."); a file of the encoder alone lacks
        it.
    heads: beginnings of the names that belong to a head, or to the pooler; a model may leave whole heads of a file
        unused.
    tied: pairs (copy, original) of parameters that are one array when config.json ties them; a file may hold either or
        both.
    untied: pairs (name, original) of parameters that are arrays of their own, but were one array in files of earlier
        versions, which may hold the original alone (LUKE's decoder of words before transformers 5).
    anchor: the end of a name every checkpoint of the family has; what precedes it in a file is the file's own prefix,
        as wrappers such as DataParallel leave it ("module.bert.").
    endings: pairs (ending of a name, how old files spell that ending).
    buffers: ends of names (whole parts of them) of tensors that are no parameters and are skipped.
    """

    prefix: str
    heads: tuple[str, ...] = ()
    tied: tuple[tuple[str, str], ...] = ()
    untied: tuple[tuple[str, str], ...] = ()
    anchor: str = "embeddings.word_embeddings.weight"
    endings: tuple[tuple[str, str], ...] = LAYER_NORM_ENDINGS
    buffers: tuple[str, ...] = INDEX_BUFFERS

    def bare(self, name: str) -> str:
        """`name` without the family's prefix."""
        return name.removeprefix(self.prefix)

    def spellings(self, name: str) -> list[str]:
        """Every spelling a file may use for the parameter a model calls `name`; the first is the bare name."""
        bare = self.bare(name)
        old = [bare.removesuffix(ending) + old for ending, old in self.endings if bare.endswith(ending)]
        return [prefix + spelling for spelling in (bare, *old) for prefix in ("", self.prefix)]

    def wrappers(self, names: Iterable[str]) -> list[str]:
        """What a file with these tensor names puts before every name: [""] as a rule, ["module."] for some.

        Several entries mean several encoders in one file, none that the anchor is missing.
        """
        before = {name.removesuffix(self.anchor) for name in names if name.endswith(self.anchor)}
        return sorted({prefix.removesuffix(self.prefix) for prefix in before})

    def is_buffer(self, name: str) -> bool:
        """Whether the tensor `name` is no parameter."""
        return any(f".{name}".endswith(f".{buffer}") for buffer in self.buffers)

    def head_of(self, name: str) -> str | None:
        """The head (an entry of `heads`) that the parameter `name` belongs to; None for one of the encoder itself."""
        return next((head for head in self.heads if self.bare(name).startswith(head)), None)
