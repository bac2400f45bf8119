"""Losses of encoders, with the names and arguments of `sentence_transformers.losses`.

    from bertcore import SentenceEncoder, SentenceTransformerTrainer, losses

    encoder = SentenceEncoder(folder)
    loss = losses.MultipleNegativesRankingLoss(encoder)
    SentenceTransformerTrainer(encoder, train_dataset=pairs, loss=loss).train()

They are the objectives of `bertcore.training.objectives`, whose modules `cross_encoder`, `sparse` and `multi_vector`
have the losses of other encoders.

Raises ImportError for a loss of sentence-transformers that is not here; the message names another one.
"""

from bertcore.training.objectives import *  # noqa: F403
from bertcore.training.objectives import __all__ as __all__

INSTEAD = {  # of losses that are not here
    "ContrastiveTensionLoss": "MultipleNegativesRankingLoss of texts paired with themselves",
    "ContrastiveTensionLossInBatchNegatives": "MultipleNegativesRankingLoss of texts paired with themselves",
    "DenoisingAutoEncoderLoss": "MaskedLM, which learns from plain texts, too",
    "EmbedDistillLoss": "MSELoss",
    "GlobalOrthogonalRegularizationLoss": "a CustomLoss",
    "Matryoshka2dLoss": "AdaptiveLayerLoss(model, MatryoshkaLoss(model, loss, matryoshka_dims))",
    "MegaBatchMarginLoss": "CachedMultipleNegativesRankingLoss",
}


def __getattr__(name: str) -> object:
    if name in INSTEAD:  # not AttributeError, whose message `from bertcore.losses import ...` drops
        raise ImportError(f"bertcore.losses has no {name}: use {INSTEAD[name]}")
    raise AttributeError(f"bertcore.losses has no {name}")
