"""What a preset is."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from bertcore.presets.published import PUBLISHED, OnGlue


@dataclass(frozen=True)
class Preset:
    """A published model: its config and what its paper says.

    Attributes:
        name: as `Model.from_config` takes it.
        hub_id: its id on the Hugging Face hub; empty for what is not there.
        config: what its config.json says of the model.
        year: of the paper's first version.
        paper: arXiv:NUMBER, or a title.
        objective: what it was pretrained with.
        pretraining_heads: of that objective, as `Family.heads` names them; other names are of heads that are not here.
        tokenizer: the kind of vocabulary.
        own: what it has that BERT has not.
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

    @property
    def on_glue(self) -> OnGlue:
        """What its authors report."""
        return PUBLISHED.get(self.name, OnGlue())

    def but(self, name: str, hub_id: str, changes: Mapping[str, Any], **facts) -> Self:
        """Another member of the same shape: `changes` of the config, `facts` that differ."""
        return replace(self, name=name, hub_id=hub_id, config={**self.config, **changes}, **facts)


def sizes(layers: int, hidden: int, heads: int, intermediate: int | None = None) -> dict[str, Any]:
    """Depth and widths under BERT's keys; the feed-forward is four times as wide as the rest unless it is given."""
    keys = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
    return dict(zip(keys, (layers, hidden, heads, intermediate or 4 * hidden), strict=True))


BASE, LARGE = sizes(12, 768, 12), sizes(24, 1024, 16)
