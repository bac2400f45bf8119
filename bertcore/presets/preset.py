"""A preset: a published model's config, the facts of its paper, and its authors' results on GLUE.

Figures that circulate as "GLUE" are mostly the accuracy on one of its tasks, MNLI: here each has a column of its own. A
model whose authors give no such figure has none.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self


class Quoted(NamedTuple):
    """A figure that others measured, in percent, and its source."""

    value: float
    source: str


class OnGlue(NamedTuple):
    """Results of a model fine-tuned for one task at a time (https://gluebenchmark.com).

    Attributes:
        mnli_m: accuracy on matched MNLI; of the development set unless the source says otherwise.
        glue_dev: the mean of the development sets' scores in the eight tasks of GLUE (all but WNLI).
    """

    mnli_m: Quoted | None = None
    glue_dev: Quoted | None = None


_BERT = "arXiv:1810.04805, table 1: test set"
_ROBERTA = "github.com/facebookresearch/fairseq, examples/roberta/README.md"
_ALBERT = "github.com/google-research/albert, README.md: version 2"
_ELECTRA = "github.com/google-research/electra, README.md"
_DEBERTA = "github.com/microsoft/DeBERTa, README.md"
_XLNET = "github.com/zihangdai/xlnet, README.md of June 2019"
_DISTILBERT = "github.com/huggingface/transformers, examples/research_projects/distillation/README.md"
_MINILM = "github.com/microsoft/unilm, minilm/README.md"
_TINYBERT = "arXiv:1909.10351, table 1: test set, distilled for the task with augmented data"
_MOBILEBERT = "arXiv:2004.02984, table 4: test set"
_MODERNBERT = "arXiv:2412.13663, table 5"
_XLM_ROBERTA = "arXiv:1911.02116, table 4"


def _eight_tasks(mnli_m: float, glue_dev: float, source: str) -> OnGlue:
    return OnGlue(Quoted(mnli_m, source), Quoted(glue_dev, f"{source}: mean of its eight tasks"))


PUBLISHED: Mapping[str, OnGlue] = {
    "bert-base-uncased": OnGlue(Quoted(84.6, _BERT)),
    "bert-large-uncased": OnGlue(Quoted(86.7, _BERT)),
    "roberta-base": _eight_tasks(87.6, 86.4, _ROBERTA),
    "roberta-large": _eight_tasks(90.2, 88.9, _ROBERTA),
    "albert-base-v2": OnGlue(Quoted(84.6, _ALBERT)),
    "albert-large-v2": OnGlue(Quoted(86.5, _ALBERT)),
    "albert-xlarge-v2": OnGlue(Quoted(87.9, _ALBERT)),
    "albert-xxlarge-v2": OnGlue(Quoted(90.6, _ALBERT)),
    "electra-small-discriminator": _eight_tasks(81.3, 81.1, _ELECTRA),
    "electra-base-discriminator": _eight_tasks(88.8, 87.5, _ELECTRA),
    "electra-large-discriminator": _eight_tasks(90.9, 89.5, _ELECTRA),
    "deberta-base": OnGlue(Quoted(88.8, _DEBERTA)),
    "deberta-large": _eight_tasks(91.3, 89.6, _DEBERTA),
    "deberta-v2-xlarge": OnGlue(Quoted(91.7, _DEBERTA)),
    "deberta-v3-small": OnGlue(Quoted(88.3, _DEBERTA)),
    "deberta-v3-base": OnGlue(Quoted(90.6, _DEBERTA)),
    "deberta-v3-large": _eight_tasks(91.8, 91.4, _DEBERTA),
    "xlnet-large-cased": _eight_tasks(89.8, 87.4, _XLNET),
    "distilbert-base-uncased": _eight_tasks(82.1, 79.6, _DISTILBERT),
    "minilm-l6-h384": OnGlue(Quoted(83.3, _MINILM)),
    "minilm-l12-h384": OnGlue(Quoted(85.7, _MINILM)),
    "tinybert-4l-312": OnGlue(Quoted(82.5, _TINYBERT)),
    "tinybert-6l-768": OnGlue(Quoted(84.6, _TINYBERT)),
    "mobilebert-uncased": OnGlue(Quoted(83.3, _MOBILEBERT)),
    "modernbert-base": _eight_tasks(89.1, 88.4, _MODERNBERT),
    "modernbert-large": _eight_tasks(90.8, 90.5, _MODERNBERT),
    "xlm-roberta-large": OnGlue(Quoted(88.9, _XLM_ROBERTA)),
}


CATEGORIES = (
    *("general", "small", "multilingual", "domain", "spans and entities"),
    *("embeddings", "generation", "pretraining"),
)


@dataclass(frozen=True)
class Preset:
    """A published model: its config and the facts of its paper.

    Attributes:
        name: as `Model.from_config` takes it.
        hub_id: its id on the Hugging Face hub; empty if it is not there.
        config: the config of the model, as in its config.json.
        year: of the paper's first version.
        paper: arXiv:NUMBER, or a title.
        objective: the pretraining objective.
        pretraining_heads: the heads of that objective, as `Family.heads` names them; other names are of missing heads.
        tokenizer: the kind of vocabulary.
        own: its key innovation: the differences from BERT.
        category: one of CATEGORIES.
        use: what it is mostly used for.
        languages: of its pretraining: a name, or how many.
    """

    name: str
    hub_id: str
    config: Mapping[str, Any]
    year: int
    paper: str
    objective: str
    pretraining_heads: tuple[str, ...]
    tokenizer: str
    own: str
    category: str
    use: str
    languages: str = "English"

    @property
    def on_glue(self) -> OnGlue:
        """The results that the authors report."""
        return PUBLISHED.get(self.name, OnGlue())

    def but(self, name: str, hub_id: str, changes: Mapping[str, Any], **facts) -> Self:
        """Return a preset of the same shape, with `changes` of the config and other `facts`."""
        return replace(self, name=name, hub_id=hub_id, config={**self.config, **changes}, **facts)


def sizes(layers: int, hidden: int, heads: int, intermediate: int | None = None) -> dict[str, Any]:
    """Return depth and widths under BERT's keys; the feed-forward is four times as wide as the rest by default."""
    keys = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
    return dict(zip(keys, (layers, hidden, heads, intermediate or 4 * hidden), strict=True))


BASE, LARGE = sizes(12, 768, 12), sizes(24, 1024, 16)
