"""Teaches all-MiniLM-L6-v2 which long description belongs to which short one, by in-batch negatives.

    python examples/improve_embeddings.py [--seconds 300] [--out packages]

Held out are 2,000 pairs, of source packages that no training pair is of: for each short description the right long one
is to be found among the 2,000. Measured before and after: the share of first places, and the mean reciprocal rank.
"""

from __future__ import annotations

import argparse

import numpy as np
from corpora import package_descriptions

from bertcore import AutoModel, AutoTokenizer
from bertcore.demo_model import demo_model_folder
from bertcore.sentence_encoder import SentenceEncoder
from bertcore.training import Trainer, TrainingArguments
from bertcore.training.objectives import MultipleNegativesRanking

HELD_OUT = 2000
