"""CamemBERT (Martin et al. 2019, arXiv:1911.03894): RoBERTa for French; its checkpoints have RoBERTa's names."""

from dataclasses import replace

from bertcore.families.roberta import ROBERTA, spec
from bertcore.models.registry import register

CAMEMBERT = register(replace(ROBERTA, model_type="camembert", architecture="Camembert", spec_from_config=spec))
