"""The repr of objects: one line, without addresses and without the numbers of arrays."""

import re

import pytest

from bertcore import AutoModel, CrossEncoder, SentenceEncoder, SparseEncoder, pipeline
from bertcore.models.outputs import ModelOutput
from tests.tasks.pipelines.folders import save_head
from tests.tiny_bert import save_tiny_bert, save_tiny_encoder

BERT = r"<\w+: bert, float32, 2 layers, hidden_size 39, [\d,]+ parameters>"


@pytest.mark.parametrize(("load", "expected"), [
    (SentenceEncoder, rf"<SentenceEncoder of {BERT}, max_seq_length 40>"),
    (SparseEncoder, rf"<SparseEncoder of {BERT}, max_seq_length 40>"),
    (lambda folder: pipeline("fill-mask", folder), f"<FillMaskPipeline of {BERT}>"),
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


def test_the_repr_of_a_cross_encoder(tmp_path):
    folder = save_head(tmp_path, "AutoModelForSequenceClassification", num_labels=1)
    assert re.fullmatch(f"<CrossEncoder of {BERT}, max_seq_length 40>", repr(CrossEncoder(folder)))


def test_outputs_have_shapes(tmp_path, on_numpy):
    out = AutoModel.from_pretrained(save_tiny_bert(tmp_path))([[1, 2, 3]], output_hidden_states=True)
    assert repr(out).startswith("<EncoderOutput: last_hidden_state: float32 (1, 3, 39), pooler_output: float32 (1, 39)")
    assert "hidden_states: 3 of float32 (1, 3, 39)" in repr(out)
    assert {kind.__repr__ for kind in ModelOutput.__subclasses__()} == {ModelOutput.__repr__}
