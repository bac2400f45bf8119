"""The operations that models are made of: each gradient against finite differences in float64, by one table."""

from dataclasses import replace

import numpy as np
import pytest

from bertcore import kernels, use_backend
from bertcore.families.deberta import blocks as deberta
from bertcore.families.deberta_v2 import block_diagonal
from bertcore.families.luke import blocks as luke
from bertcore.families.xlnet import blocks as xlnet
from bertcore.kernels import RelativePositions
from bertcore.kernels.program import Program
from bertcore.nn import functional
from bertcore.nn.forms import bfloat16
from bertcore.nn.operation import ModelOperation
from bertcore.passes import Pass, Trace
from bertcore.tape import Tape, value_of
from tests.kernels.finite_differences import assert_gradient

RNG = np.random.default_rng(5)
OFFSETS = np.array([0, 3, 3, 4, 9], np.int32)  # an empty sequence among them
FLAGS = RNG.integers(0, 2, (9, 2)).astype(float)
SEEN = np.arange(9) != 5
PACKED = {"cu_seqlens": OFFSETS}
HEADS = (9, 2, 4)  # tokens, heads, head_dim
DISTANCES = np.array([0, 1, 2, 3, 3])
WORDS, ENTITIES = np.array([0, 1, 3, 4, 5, 6]), np.array([2, 7, 8])
COS, SIN = kernels.rotary_tables(9, 4, dtype=np.float64)
MASK = np.array([[1, 1, 1, 1, 0], [1] * 5, [1] * 5, [1, 1, 1, 1, 0]], bool)[:, None, None]


def with_relative(run, query, key, value, position_key, position_query, for_position, bias, scores, **more):
    segments = np.array([0, 0, 1, 0, 0, 1, 1, 1, 2])
    relative = RelativePositions(
        DISTANCES, position_key, position_query, for_position, bias, segment_ids=segments, segment_scores=scores
    )
    return functional.attention(run, query, key, value, relative=relative, scale=0.4, **PACKED, **more)


def all_of_attention(attend):
    """Output and probabilities in one row, so that gradients flow through both."""

    def call(run, *arrays, **options):
        attentions = []
        run = replace(run, trace=Trace(attentions=attentions))
        output = attend(run, *arrays, **options)
        rows = (functional.reshape(run, each, shape=(-1,)) for each in (output, *attentions))
        return functional.concatenate(run, *rows)

    return call


def probabilities(run, *arrays, **options):
    attentions = []
    functional.attention(replace(run, trace=Trace(attentions=attentions)), *arrays, **options)
    return attentions[0]


def turned(run, joined, **options):
    return functional.rotary(run, functional.scale(run, joined, factor=1.0), **options)  # whose memory it takes


def with_tables(run, qkv, position_key, position_query, **more):
    relative = RelativePositions(DISTANCES, position_key, position_query)
    return functional.self_attention(run, qkv, num_heads=2, relative=relative, **PACKED, **more)


def first_and_last_columns(run, array):
    first, _, last = functional.split_columns(run, array, widths=(1, 2, 3))
    return functional.concatenate(run, last, first, axis=1)


FROZEN = RNG.normal(size=(5, 4))
CASES = {  # name: (operation, shapes of its arrays, options)
    "activation": (functional.activation, [(5, 3)], {"activation": "tanh"}),
    "add": (functional.add, [(5, 3), (5, 3)], {}),
    "add to rows": (functional.add, [(5, 3), (3,)], {}),
    "add a column": (functional.add, [(5, 3), (5, 1)], {}),
    "affine": (functional.affine, [(5, 3), (3,), (3,)], {}),
    "affine with residual": (functional.affine, [(5, 3), (3,), (3,), (5, 3)], {}),
    "spread_rows": (deberta.spread_rows, [(3, 4)], {"rows": np.array([4, 0, 2]), "count": 5}),
    "mean_value_for_padding": (
        deberta.mean_value_for_padding,
        [(9, 8), (9, 24)],
        {"num_heads": 2, "padding": deberta.padding_of_sequences(SEEN, OFFSETS)},
    ),
    "attention": (functional.attention, [HEADS] * 3, {"window": 1, "is_causal": True, **PACKED}),
    "attention and probabilities": (
        all_of_attention(functional.attention), [(9, 4, 2), (9, 2, 2), (9, 2, 2)], {"window": (3, 1), **PACKED}
    ),
    "attention and probabilities with relative terms": (
        all_of_attention(with_relative), [HEADS, HEADS, HEADS, (4, 2, 4), (4, 2, 4), HEADS, (4, 2), (9, 2, 2)], {}
    ),
    "attention's probabilities": (
        probabilities,
        [HEADS, (11, 2, 4), (11, 2, 4)],
        {"cu_seqlens_k": np.array([0, 1, 3, 3, 11]), "scale": 0.3, "attn_mask": np.arange(8) != 2, **PACKED},
    ),
    "attention of grouped queries": (functional.attention, [(9, 4, 2), (9, 2, 2), (9, 2, 2)], PACKED),
    "attention with relative terms": (
        with_relative, [HEADS, HEADS, HEADS, (4, 2, 4), (4, 2, 4), HEADS, (4, 2), (9, 2, 2)], {}
    ),
    "average_rows": (
        luke.average_rows, [(4, 5)], {"rows": np.array([[1, 1, 3], [2, -1, 0], [-1, -1, -1]])}
    ),
    "average_sequences": (functional.average_sequences, [(9, 2)], PACKED),
    "binary_cross_entropy": (functional.binary_cross_entropy, [(9, 2)], {"labels": FLAGS}),
    "block_diagonal": (block_diagonal, [(6, 6)], {"size": 3, "groups": 2}),
    "concatenate": (functional.concatenate, [(2, 3), (4, 3)], {}),
    "concatenate columns": (functional.concatenate, [(2, 3), (2, 1), (2, 2)], {"axis": 1}),
    "cross_entropy": (functional.cross_entropy, [(4, 5)], {"labels": np.array([4, -100, 0, 2])}),
    "decoded_cross_entropy": (
        functional.decoded_cross_entropy,
        [(7, 4), (5, 4), (5,)],
        {"labels": np.array([4, 1, 0, 2, 2, 3, 1]), "chunk": 3},
    ),
    "decoded_cross_entropy of frozen weights": (
        lambda run, x, **options: functional.decoded_cross_entropy(run, x, FROZEN, None, **options),
        [(7, 4)],
        {"labels": np.array([4, 1, 0, 2, 2, 3, 1]), "chunk": 3, "needs_weight": False},
    ),
    "grouped_linear of frozen weights": (
        lambda run, x: functional.grouped_linear(run, x, FROZEN[:4], offsets=(0, 5, 7), activation="gelu"), [(7, 4)], {}
    ),
    "cross_entropy, smoothed": (
        functional.cross_entropy, [(4, 5)], {"labels": np.array([4, -100, 0, 2]), "label_smoothing": 0.3}
    ),
    "cross_entropy, weighed": (
        functional.cross_entropy,
        [(4, 5)],
        {"labels": np.array([4, -100, 0, 2]), "class_weights": np.array([0.5, 2, 0, 1, 3])},
    ),
    "cross_entropy, both": (
        functional.cross_entropy,
        [(4, 5)],
        {"labels": np.array([4, 1, 0, -100]), "class_weights": np.array([0.5, 2, 0, 1, 3]), "label_smoothing": 1.0},
    ),
    "dropout": (functional.dropout, [(5, 3), (5, 3)], {"p": 0.4, "seed": 3}),
    "dropout_layer_norm": (
        functional.dropout_layer_norm, [(5, 3), (3,), (3,), (5, 3)], {"eps": 1e-3, "p": 0.4, "seed": 3}
    ),
    "entity_aware_attention": (
        luke.entity_aware_attention,
        [(9, 24), (6, 8), (3, 16)],
        {"num_heads": 2, "word_rows": WORDS, "entity_rows": ENTITIES, "attn_mask": MASK, **PACKED},
    ),
    "entity_aware_attention and probabilities": (
        all_of_attention(luke.entity_aware_attention),
        [(9, 24), (6, 8), (3, 16)],
        {"num_heads": 2, "word_rows": WORDS, "entity_rows": ENTITIES, **PACKED},
    ),
    "gated_activation": (functional.gated_activation, [(5, 6)], {"activation": "gelu", "gate": "second"}),
    "layer_norm without bias": (lambda run, x, w: functional.layer_norm(run, x, w, None, eps=1e-3), [(5, 3), (3,)], {}),
    "rms_norm": (functional.rms_norm, [(5, 3), (3,), (5, 3)], {"eps": 1e-3}),
    "rotary": (turned, [(9, 12)], {"heads": 2, "head_dim": 4, "cos": COS, "sin": SIN, **PACKED}),
    "layer_norm": (functional.layer_norm, [(5, 3), (3,), (3,), (5, 3)], {"eps": 1e-3}),
    "linear": (functional.linear, [(5, 3), (4, 3), (4,), (5, 4)], {"activation": "gelu"}),
    "linear without bias": (lambda run, x, w: functional.linear(run, x, w, None), [(5, 3), (4, 3)], {}),
    "log_softmax": (functional.log_softmax, [(3, 5)], {}),
    "lstm": (functional.lstm, [(9, 24), (2, 12, 3)], PACKED),
    "mean_squared_error": (functional.mean_squared_error, [(9, 2)], {"labels": FLAGS}),
    "merge_rows": (
        luke.merge_rows, [(6, 2), (3, 2)], {"first_rows": WORDS, "second_rows": ENTITIES}
    ),
    "mix_rows": (xlnet.mix_rows, [(6, 2)], {"matrices": RNG.normal(size=(2, 4, 3))}),
    "reshape": (functional.reshape, [(6, 2)], {"shape": (3, 4)}),
    "scale": (functional.scale, [(5, 3)], {"factor": -0.7}),
    "scale rows": (functional.scale, [(9, 3)], {"factor": SEEN[:, None]}),
    "segment_scores": (xlnet.segment_scores, [(5, 3, 2), (3, 2), (2, 3, 2)], {}),
    "self_attention of parts": (
        functional.self_attention, [(9, 8), (9, 4)], {"num_heads": 2, "is_causal": True, "scale": 0.3, **PACKED}
    ),
    "self_attention of grouped queries": (
        functional.self_attention, [(9, 16)], {"num_heads": 4, "num_key_value_heads": 2, **PACKED}
    ),
    "self_attention and probabilities": (
        all_of_attention(functional.self_attention), [(9, 24)], {"num_heads": 2, "is_causal": True, **PACKED}
    ),
    "self_attention and probabilities with tables": (
        all_of_attention(with_tables), [(9, 24), (4, 2, 4), (4, 2, 4)], {}
    ),
    "self_attention with tables": (with_tables, [(9, 24), (4, 2, 4), (4, 2, 4)], {}),
    "shift": (functional.shift, [(5, 3)], {"by": 0.7}),
    "slice_columns": (functional.slice_columns, [(5, 4)], {"first": 1, "last": 3}),
    "slice_rows": (functional.slice_rows, [(5, 4)], {"first": 2, "last": 5}),
    "split_columns": (first_and_last_columns, [(5, 6)], {}),
    "soft_cross_entropy": (functional.soft_cross_entropy, [(9, 2)], {"labels": FLAGS}),
    "split_rows": (
        lambda run, rows, **places: functional.concatenate(run, *luke.split_rows(run, rows, **places)),
        [(9, 2)],
        {"first_rows": WORDS, "second_rows": ENTITIES},
    ),
    "split_rows, some of them read": (
        lambda run, rows, **places: functional.scale(run, luke.split_rows(run, rows, **places)[1], factor=2.0),
        [(9, 2)],
        {"first_rows": WORDS, "second_rows": ENTITIES},
    ),
    "take_neighbours": (functional.take_neighbours, [(9, 2)], {"distances": (1, 0, -2), **PACKED}),
    "take_rows": (functional.take_rows, [(4, 3)], {"rows": np.array([3, 0, 3])}),
    "transpose": (functional.transpose, [(5, 3)], {}),
    "unit_rows": (functional.unit_rows, [(5, 3)], {}),
}  # fmt: skip


def test_the_table_has_every_operation():
    rooms = functional, deberta, luke, xlnet
    made = [(name, value) for room in rooms for name, value in vars(room).items() if not name.startswith("_")]
    operations = {name for name, value in made if isinstance(value, ModelOperation)}
    assert operations | {"attention", "self_attention"} <= {name.split()[0].rstrip(",") for name in CASES}


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_finite_differences(name):
    operation, shapes, options = CASES[name]
    arrays = [RNG.normal(size=shape) for shape in shapes]
    with use_backend("numpy"):
        expected_output = operation(Pass.begin(), *arrays, **options)
        weights = RNG.normal(size=np.shape(expected_output))
        with Tape() as tape:
            leaves = [tape.leaf(index, array) for index, array in enumerate(arrays)]
            output = operation(Pass.begin(), *leaves, **options)
        np.testing.assert_array_equal(value_of(output), expected_output)
        grads = tape.gradients(output, weights)
        for index, array in enumerate(arrays):

            def moved(changed, index=index):
                return operation(Pass.begin(), *arrays[:index], changed, *arrays[index + 1 :], **options)

            assert_gradient(moved, array, weights, grads[index])


def test_rows_of_padding_get_no_gradient():
    with Tape() as tape, use_backend("numpy"):
        table = tape.leaf("table", np.ones((3, 2)))
        output = functional.take_rows(Pass.begin(), table, rows=np.array([0, 1, 1, 2]), padding_row=1)
    np.testing.assert_array_equal(tape.gradients(output, np.ones((4, 2)))["table"], [[1, 1], [0, 0], [1, 1]])


@pytest.mark.parametrize("is_recorded", [False, True])
def test_attention_hands_out_what_it_is_asked_for(is_recorded):
    arrays = [RNG.normal(size=HEADS) for _ in range(3)]
    attentions, components = [], []
    with Tape() as tape, use_backend("numpy"):
        given = [tape.leaf(index, array) for index, array in enumerate(arrays)]
        run = replace(Pass.begin(), trace=Trace(attentions=attentions))
        functional.attention(run, *(given if is_recorded else arrays), **PACKED, components=components)
        _, probabilities, parts = kernels.attention(*arrays, **PACKED, return_probs=True, return_components=True)
    np.testing.assert_array_equal(list(map(value_of, attentions)), [probabilities])
    np.testing.assert_array_equal(components[0][0], parts[0])


def test_operations_without_a_step_read_what_a_program_computes():
    array = RNG.normal(size=(5, 3)).astype(np.float32)
    with use_backend("numba"):
        deferred = Program().enter(array)
        found = functional.add(replace(Pass.begin(), is_deferred=True), deferred, deferred)
        np.testing.assert_array_equal(found, array + array)


def test_means_and_neighbours_stay_within_their_sequences():
    hidden = np.arange(18.0).reshape(9, 2)
    mean = functional.average_sequences(Pass.begin(), hidden, cu_seqlens=OFFSETS)
    np.testing.assert_array_equal(mean, [hidden[:3].mean(0), hidden[3], hidden[4:].mean(0)])
    array = np.arange(1.0, 10)[:, None]
    found = functional.take_neighbours(Pass.begin(), array, cu_seqlens=OFFSETS, distances=(1, 0, -2))
    following, preceding = [2, 3, 0, 0, 6, 7, 8, 9, 0], [0, 0, 1, 0, 0, 0, 5, 6, 7]
    np.testing.assert_array_equal(found, np.stack([following, array[:, 0], preceding], axis=1))


def test_binary_cross_entropy_of_extreme_logits():
    logits, labels = np.array([1e4, -1e4, 1e4, -1e4]), np.array([1.0, 0.0, 0.0, 1.0])
    with np.errstate(all="raise", under="ignore"):
        assert functional.binary_cross_entropy(Pass.begin(), logits, labels=labels) == 5e3


@pytest.mark.parametrize("dtype", ["float16", bfloat16()])
def test_soft_cross_entropy_sums_low_precision_in_float32(dtype):
    logits = np.zeros((2, 70_000), dtype)  # 70,000 is infinite in float16, and beyond 256 bfloat16 counts no ones
    labels = np.zeros_like(logits)
    labels[:, 3] = 1
    loss = functional.soft_cross_entropy(Pass.begin(), logits, labels=labels)
    assert loss.dtype == np.float32
    assert float(loss) == pytest.approx(np.log(70_000), rel=1e-6)
