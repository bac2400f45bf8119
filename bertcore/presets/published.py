"""What the models' own authors report of them on GLUE (https://gluebenchmark.com), each figure with its source.

Figures that circulate as "GLUE" are mostly the accuracy on one of its tasks, MNLI: here each has a column of its own. A
model whose authors give no such figure has none.
"""

from collections.abc import Mapping
from typing import NamedTuple


class Quoted(NamedTuple):
    """A figure that is not ours, in percent, and where it stands."""

    value: float
    source: str


class OnGlue(NamedTuple):
    """A model fine-tuned for one task at a time.

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
    "deberta-large": OnGlue(Quoted(91.3, _DEBERTA)),
    "deberta-v2-xlarge": OnGlue(Quoted(91.7, _DEBERTA)),
    "deberta-v3-small": OnGlue(Quoted(88.3, _DEBERTA)),
    "deberta-v3-base": OnGlue(Quoted(90.6, _DEBERTA)),
    "deberta-v3-large": _eight_tasks(91.8, 91.4, _DEBERTA),
    "xlnet-large-cased": _eight_tasks(89.8, 87.4, _XLNET),
}
