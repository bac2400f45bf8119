"""CrossEncoder beside sentence-transformers' own, on random models."""

import numpy as np
import pytest

from bertcore import CrossEncoder, use_backend
from tests.lazy import lazy
from tests.tasks.cross_encoder.tiny import save_tiny_classifier
from tests.tiny_bert import random_texts, write_json, write_modules

sentence_transformers = lazy("sentence_transformers")

pytestmark = pytest.mark.parity

TEXTS = random_texts(23, longest=30, seed=3), random_texts(23, longest=30, seed=4)
PAIRS = list(zip(*TEXTS, strict=True))


@pytest.mark.parametrize(("labels", "config", "settings"), [
    (1, {}, {}),
    (1, {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, {}),
    (1, {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Tanh"}}, {}),
    (1, {}, {"activation_fn": "torch.nn.modules.activation.ReLU", "model_type": "CrossEncoder"}),
    (3, {}, {"prompts": {"q": "paris is "}, "default_prompt_name": "q", "model_type": "CrossEncoder"}),
])  # fmt: skip
def test_scores_and_ranks(tmp_path, labels, config, settings):
    folder = save_tiny_classifier(tmp_path, labels=labels, config=config)
    if settings:  # which sentence-transformers reads beside a list of modules alone
        write_json(folder / "config_sentence_transformers.json", settings)
        write_modules(folder, {"": "sentence_transformers.base.modules.transformer.Transformer"})
        write_json(folder / "sentence_bert_config.json", {"transformer_task": "sequence-classification"})
    peer = sentence_transformers.CrossEncoder(str(folder), device="cpu")
    with use_backend("numba"):
        ours = CrossEncoder(folder)
        found = ours.predict(PAIRS, None, None, 2)
        np.testing.assert_allclose(found, peer.predict(PAIRS, None, None, 2, False), atol=1e-5)
        assert np.ptp(found) > 0.01
        if labels > 1:
            soft = peer.predict(PAIRS, apply_softmax=True, show_progress_bar=False)
            np.testing.assert_allclose(ours.predict(PAIRS, apply_softmax=True), soft, atol=1e-5)
            return
        texts = list(dict.fromkeys(TEXTS[1]))
        expected = peer.rank("the cat", texts, 5, True, None, None, 2, False)
        found = ours.rank("the cat", texts, 5, True, None, None, 2)
        assert [entry["corpus_id"] for entry in found] == [entry["corpus_id"] for entry in expected]
        assert found == [entry | {"score": pytest.approx(entry["score"], abs=1e-5)} for entry in expected]
