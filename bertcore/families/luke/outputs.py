"""What LUKE's models return beside what those of all families do."""

from dataclasses import dataclass
from typing import Any

from bertcore.models.outputs import ModelOutput


@dataclass(eq=False, kw_only=True)
class EntityMaskedLMOutput(ModelOutput):
    """Attributes:
    mlm_loss, mep_loss: of the words and of the entities, scalars.
    logits: (sequences, length, vocabulary); pads are zero.
    entity_logits: (sequences, entities, vocabulary of entities), if there are entities.
    """

    mlm_loss: Any = None
    mep_loss: Any = None
    logits: Any = None
    entity_logits: Any = None
