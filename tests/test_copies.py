"""Copies and representations of public objects."""

import copy
import pickle
import re

import numpy as np
import pytest

from bertcore import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoTokenizer,
    CrossEncoder,
    SentenceEncoder,
    SparseEncoder,
    pipeline,
)
from bertcore.models.outputs import ModelOutput
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
    "pipeline, best class": (
        lambda folder: pipeline("text-classification", save_tiny_classifier(folder, labels=3)),
        lambda classify: [answer["score"] for answer in classify(TEXTS)],
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


BERT = r"<\w+: bert, float32, 2 layers, hidden_size 39, [\d,]+ parameters>"


@pytest.mark.parametrize(("load", "expected"), [
    (SentenceEncoder, rf"<SentenceEncoder of {BERT}, max_seq_length 40>"),
    (SparseEncoder, rf"<SparseEncoder of {BERT}, max_seq_length 40>"),
    (lambda folder: pipeline("fill-mask", folder), f"<FillMaskPipeline of {BERT}>"),
    (
        lambda folder: CrossEncoder(save_tiny_classifier(folder / "scores", labels=1)),
        f"<CrossEncoder of {BERT}, max_seq_length 40>",
    ),
    (
        lambda folder: next(iter(AutoModel.from_pretrained(folder, add_pooling_layer=False).parameters())),
        r"<Parameter .*: float32 \(75, 39\)>",
    ),
    (
        lambda folder: AutoModel.from_pretrained(folder, add_pooling_layer=False).get_input_embeddings(),
        r"<Embedding: embeddings.word_embeddings.weight \(75, 39\)>",
    ),
])  # fmt: skip
def test_reprs(tmp_path, load, expected):
    folder = save_tiny_encoder(tmp_path) if load is SentenceEncoder else save_tiny_bert(tmp_path, head=True)
    assert re.fullmatch(expected, repr(load(folder)))


def test_outputs_have_shapes(tmp_path, on_numpy):
    out = AutoModel.from_pretrained(save_tiny_bert(tmp_path))([[1, 2, 3]], output_hidden_states=True)
    assert repr(out).startswith("<EncoderOutput: last_hidden_state: float32 (1, 3, 39), pooler_output: float32 (1, 39)")
    assert "hidden_states: 3 of float32 (1, 3, 39)" in repr(out)
    assert {kind.__repr__ for kind in ModelOutput.__subclasses__()} == {ModelOutput.__repr__}
