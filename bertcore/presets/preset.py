"""A preset: a published model's config, the facts of its paper, and its authors' results on GLUE.

Figures quoted as "GLUE" are mostly the accuracy on one of its tasks, MNLI: here each has a field of its own. A model
whose authors give no such figure has none.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self


class PublishedResult(NamedTuple):
    """A figure that others measured, in percent, and its source."""

    value: float
    source: str


class GlueResults(NamedTuple):
    """Results of a model fine-tuned for one task at a time (https://gluebenchmark.com)."""

    # accuracy on matched MNLI, of the development set unless the source says otherwise
    mnli_m: PublishedResult | None = None
    glue_dev: PublishedResult | None = None  # the development sets' mean in the eight tasks of GLUE (all but WNLI)


# For each source, MNLI-m and, where it gives all eight tasks, their mean.
_QUOTED: Mapping[str, Mapping[str, tuple[float, ...]]] = {
    "arXiv:1810.04805, table 1: test set": {"bert-base-uncased": (84.6,), "bert-large-uncased": (86.7,)},
    "github.com/facebookresearch/fairseq, examples/roberta/README.md": {
        "roberta-base": (87.6, 86.4), "roberta-large": (90.2, 88.9),
    },
    "github.com/google-research/albert, README.md: version 2": {
        "albert-base-v2": (84.6,), "albert-large-v2": (86.5,),
        "albert-xlarge-v2": (87.9,), "albert-xxlarge-v2": (90.6,),
    },
    "github.com/google-research/electra, README.md": {
        "electra-small-discriminator": (81.3, 81.1), "electra-base-discriminator": (88.8, 87.5),
        "electra-large-discriminator": (90.9, 89.5),
    },
    "github.com/microsoft/DeBERTa, README.md": {
        "deberta-base": (88.8,), "deberta-large": (91.3, 89.6), "deberta-v2-xlarge": (91.7,),
        "deberta-v3-small": (88.3,), "deberta-v3-base": (90.6,), "deberta-v3-large": (91.8, 91.4),
    },
    "github.com/zihangdai/xlnet, README.md of June 2019": {"xlnet-large-cased": (89.8, 87.4)},
    "github.com/huggingface/transformers, examples/research_projects/distillation/README.md": {
        "distilbert-base-uncased": (82.1, 79.6),
    },
    "github.com/microsoft/unilm, minilm/README.md": {"minilm-l6-h384": (83.3,), "minilm-l12-h384": (85.7,)},
    "arXiv:1909.10351, table 1: test set, distilled for the task with augmented data": {
        "tinybert-4l-312": (82.5,), "tinybert-6l-768": (84.6,),
    },
    "arXiv:2004.02984, table 4: test set": {"mobilebert-uncased": (83.3,)},
    "arXiv:2412.13663, table 5": {"modernbert-base": (89.1, 88.4), "modernbert-large": (90.8, 90.5)},
    "arXiv:1911.02116, table 4": {"xlm-roberta-large": (88.9,)},
}  # fmt: skip
PUBLISHED: Mapping[str, GlueResults] = {
    name: GlueResults(*map(PublishedResult, figures, (source, f"{source}: mean of its eight tasks")))
    for source, models in _QUOTED.items()
    for name, figures in models.items()
}
CATEGORIES = (
    *("general", "small", "multilingual", "domain", "spans and entities"),
    *("embeddings", "generation", "pretraining"),
)


@dataclass(frozen=True)
class Preset:
    """A published model: its config and the facts of its paper."""

    name: str  # as `Model.from_config` takes it
    hub_id: str  # its id on the Hugging Face hub; empty if it is not there
    config: Mapping[str, Any]  # the config of the model, as in its config.json
    year: int  # of the paper's first version
    paper: str  # arXiv:NUMBER, or a title
    objective: str  # the pretraining objective
    # the heads of that objective, as `Family.heads` names them; other names have no head here
    pretraining_heads: tuple[str, ...]
    tokenizer: str  # the kind of vocabulary
    own: str  # its key innovation: the differences from BERT
    category: str  # one of CATEGORIES
    use: str  # its most common use
    languages: str = "English"  # of its pretraining: a name, or how many

    @property
    def on_glue(self) -> GlueResults:
        """The results that the authors report."""
        return PUBLISHED.get(self.name, GlueResults())

    def vary(self, name: str, hub_id: str, changes: Mapping[str, Any], **facts) -> Self:
        """Return a preset of the same shape, with `changes` of the config and other `facts`."""
        return replace(self, name=name, hub_id=hub_id, config={**self.config, **changes}, **facts)


def sizes(layers: int, hidden: int, heads: int, intermediate: int | None = None) -> dict[str, Any]:
    """Return depth and widths under BERT's keys; the feed-forward is four times as wide as the rest by default."""
    keys = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
    return dict(zip(keys, (layers, hidden, heads, intermediate or 4 * hidden), strict=True))


BASE, LARGE = sizes(12, 768, 12), sizes(24, 1024, 16)
