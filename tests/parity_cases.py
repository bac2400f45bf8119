"""Random BERT checkpoints and inputs for parity tests against transformers, over the awkward corners of the family.

Imports torch and transformers when called, not when imported, so that test modules can name the cases without them.
"""

import tempfile
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

# (hidden size, heads): one head, one-wide heads, sizes that are no multiples of 8, a large head.
WIDTHS = [(39, 3), (40, 5), (13, 1), (6, 6), (64, 4), (160, 1), (21, 7), (96, 12)]
# Lengths of the texts of a batch: one token, primes, equal, the longest the positions allow (MAX_POSITIONS), one text.
MAX_POSITIONS = 37
LENGTHS = [[1], [11, 1, 7], [37, 2, 3, 31], [8, 8], [5, 37], [1, 1, 1], [17], [2, 3, 5, 7, 11, 13]]
ACTIVATIONS = ["gelu", "relu", "gelu_new"]
EPSILONS = [1e-12, 1e-5, 1e-3]

SEEDS = range(len(WIDTHS))


class ParityCase(NamedTuple):
    """A model of transformers (BertForPreTraining, float32), the folder it is saved in, and inputs as int64 arrays."""

    model: Any
    folder: Path
    inputs: dict[str, np.ndarray]


@cache
def bert_case(seed: int) -> ParityCase:
    """The random case `seed`; the first len(SEEDS) cover every entry of the lists above.

    `inputs` has input_ids, attention_mask, token_type_ids and labels (-100 for no label and at padding), each
    (batch, length). The case is made once per process and its folder removed at exit.
    """
    import transformers

    from tests.random_bert import random_inputs, random_model

    rng = np.random.default_rng([20, seed])
    hidden_size, heads = WIDTHS[seed % len(WIDTHS)]
    config = transformers.BertConfig(
        vocab_size=int(rng.integers(30, 90)),
        hidden_size=hidden_size,
        num_attention_heads=heads,
        intermediate_size=int(rng.integers(1, 3 * hidden_size)),
        num_hidden_layers=int(rng.integers(1, 4)),
        max_position_embeddings=MAX_POSITIONS,
        type_vocab_size=1 + seed % 2,
        hidden_act=ACTIVATIONS[seed % len(ACTIVATIONS)],
        layer_norm_eps=EPSILONS[seed // 2 % len(EPSILONS)],
        tie_word_embeddings=seed % 4 != 3,
    )
    model = random_model(config, rng)
    inputs = random_inputs(config, LENGTHS[seed % len(LENGTHS)], rng)
    model.save_pretrained(_folder(seed))
    return ParityCase(model, _folder(seed), inputs)


@cache
def _root() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="bertcore-parity-")


def _folder(seed: int) -> Path:
    return Path(_root().name) / str(seed)
