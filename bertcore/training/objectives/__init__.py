"""Objectives: what a model learns from, each in a class with its loss, its examples and its weight."""

from bertcore.training.objectives.language_modeling import CausalLM, MaskedLM
from bertcore.training.objectives.objective import Objective
from bertcore.training.objectives.supervised import Supervised

__all__ = ["CausalLM", "MaskedLM", "Objective", "Supervised"]
