"""XLM-R (Conneau et al. 2019, arXiv:1911.02116): RoBERTa for 100 languages; its checkpoints have RoBERTa's names."""

from dataclasses import replace

from bertcore.models.registry import register
from bertcore.models.roberta import ROBERTA, spec

XLM_ROBERTA = register(replace(ROBERTA, model_type="xlm-roberta", architecture="XLMRoberta", spec_from_config=spec))
