"""Objects that users keep can be pickled and copied; the copies answer as the originals do."""

import copy
import pickle

import numpy as np
import pytest

from bertcore import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    CrossEncoder,
    SentenceEncoder,
    SparseEncoder,
    pipeline,
)
from bertcore.training import AdamW, TrainingArguments, get_scheduler
from tests.tasks.cross_encoder.tiny import save_tiny_classifier
from tests.tasks.sparse_encoder.tiny import save_tiny_splade
from tests.tiny_bert import CONFIG, save_tiny_bert, save_tiny_encoder, write_modules

IDS = [[5, 7, 11], [6, 8, 9]]
TEXTS = ["the cat", "paris is the capital"]


def encoder_with_dropout(folder):
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Dropout": "Dropout", "3_Normalize": "Normalize"}
    write_modules(save_tiny_encoder(folder), {path: f"sentence_transformers.models.{it}" for path, it in kinds.items()})
    return SentenceEncoder(folder)


def schedule(folder):
    model = AutoModel.from_config(CONFIG)
    return get_scheduler("cosine", AdamW(model), num_warmup_steps=3, num_training_steps=9, num_cycles=1.5)


def rates(schedule):
    found = []
    for position in range(9):
        schedule.move_to(position)
        found.append(schedule.optimizer.groups[0].lr)
    return found


# Kind of object -> (function that makes it in a folder, its answer).
KEPT = {
    "model": (lambda folder: AutoModel.from_config(CONFIG), lambda model: model(IDS).last_hidden_state),
    "int8": (lambda folder: AutoModel.from_config(CONFIG, dtype="int8"), lambda model: model(IDS).last_hidden_state),
    "output": (lambda folder: AutoModelForMaskedLM.from_config(CONFIG)(IDS, labels=IDS), lambda out: out.logits),
    "tokenizer": (
        lambda folder: AutoTokenizer.from_pretrained(save_tiny_bert(folder)),
        lambda tokenizer: tokenizer(TEXTS, padding=True, return_tensors="np")["input_ids"],
    ),
    "sentence encoder": (encoder_with_dropout, lambda encoder: encoder.encode(TEXTS)),
    "sparse encoder": (
        lambda folder: SparseEncoder(save_tiny_splade(folder)),
        lambda encoder: encoder.encode(TEXTS).toarray(),
    ),
    "pipeline": (
        lambda folder: pipeline("text-classification", save_tiny_classifier(folder, labels=3), top_k=None),
        lambda classify: [answer["score"] for answers in classify(TEXTS) for answer in answers],
    ),
    "schedule": (schedule, rates),
    "arguments": (TrainingArguments, lambda arguments: [arguments.learning_rate]),
} | {
    f"cross-encoder, {name}": (
        lambda folder, name=name: CrossEncoder(save_tiny_classifier(folder, labels=2), activation_fn=name),
        lambda encoder: encoder.predict([TEXTS]),
    )
    for name in ("identity", "relu", "sigmoid", "softmax", "tanh")
}


@pytest.mark.parametrize("kind", KEPT)
def test_copies_answer_alike(kind, tmp_path, on_numpy):
    make, answer = KEPT[kind]
    kept = make(tmp_path)
    expected = np.array(answer(kept))
    for copied in (pickle.loads(pickle.dumps(kept)), copy.deepcopy(kept), copy.copy(kept)):
        assert copied is not kept
        np.testing.assert_array_equal(answer(copied), expected)


def test_repr_of_a_model():
    model = AutoModelForSequenceClassification.from_config(CONFIG, num_labels=3)
    numbers = model.num_parameters()
    expected = f"AutoModelForSequenceClassification: bert, float32, 2 layers, hidden_size 39, {numbers:,} parameters"
    assert repr(model) == f"<{expected}>"
