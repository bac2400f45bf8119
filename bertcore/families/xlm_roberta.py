"""XLM-R (Conneau et al. 2019, arXiv:1911.02116): RoBERTa for 100 languages; its checkpoints have RoBERTa's names."""

from dataclasses import replace

from bertcore.families.roberta import ROBERTA, spec
from bertcore.models.registry import register

XLM_ROBERTA = register(replace(ROBERTA, model_type="xlm-roberta", architecture="XLMRoberta", spec_from_config=spec))
