"""LUKE: words and entities, with every head, against transformers and by itself."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest

import bertcore
from bertcore import AutoModel, AutoTokenizer, use_backend, value_and_grad
from bertcore.checkpoint import save_checkpoint
from bertcore.families.luke import blocks as operations
from bertcore.models.model import NewlyInitialisedWarning
from bertcore.passes import Pass, Trace
from tests.models.family_checks import check_backends, check_loads, check_refused, check_spellings, drawn_anew
from tests.models.family_parity import check, random_batch
from tests.refusals import refuses
from tests.tokenization.family_folders import write_family

TASKS = (
    *(None, "MaskedLM", "PreTraining", "SequenceClassification", "TokenClassification", "QuestionAnswering"),
    "MultipleChoice",
)
ENTITY_TASKS = ("EntityClassification", "EntityPairClassification", "EntitySpanClassification")
POOLER = ("pooler.dense.weight", "pooler.dense.bias")  # transformers' heads have one that they do not use
TINY = {
    "model_type": "luke", "vocab_size": 40, "entity_vocab_size": 19, "hidden_size": 24, "entity_emb_size": 10,
    "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 32, "max_position_embeddings": 26,
    "initializer_range": 0.3,
}  # fmt: skip
# Configurations, the lengths of a batch's sequences and how many entities each has.
AWKWARD = {
    "one head of 39": ({"num_attention_heads": 1}, [5, 3, 11], [1, 4, 2]),
    "heads of 160": ({"hidden_size": 320, "num_attention_heads": 2, "num_hidden_layers": 1}, [7, 2], [3, 1]),
    "entities as wide as the layers": ({"entity_emb_size": 39}, [6, 9], [2, 2]),
    "queries unaware of entities": ({"use_entity_aware_attention": False}, [5, 1, 8], [2, 3, 0]),
    "length 1": ({}, [1, 1, 1], [1, 1, 1]),
    "prime lengths": ({}, [23, 17, 2, 13], [7, 0, 5, 11]),
    "more entities than words": ({}, [2, 3], [13, 8]),
    "lengths up to the longest": ({"max_position_embeddings": 13}, list(range(1, 12)), list(range(11))),
    "no entity in any sequence": ({}, [4, 6], [0, 0]),
    "decoders of their own": ({"tie_word_embeddings": False, "hidden_act": "gelu_new"}, [6, 9], [2, 4]),
    "padding that is word 0": ({"pad_token_id": 0, "bos_token_id": 1}, [9, 4], [3, 3]),
}


def small_config(**changes):
    import transformers

    sizes = {"vocab_size": 61, "hidden_size": 39, "num_attention_heads": 3, "intermediate_size": 53}
    sizes |= {"num_hidden_layers": 2, "max_position_embeddings": 26, "entity_vocab_size": 37, "entity_emb_size": 13}
    return transformers.LukeConfig(**sizes | changes)


def with_entities(batch, counts, rng, *, vocabulary=37, most=None):
    """The batch with so many entities in each sequence, of mentions of 1 to 4 of its tokens."""
    most = most or max(counts)
    real = np.arange(most) < np.array(counts)[:, None]
    positions = np.full((*real.shape, 4), -1)
    starts, ends = np.zeros(real.shape, int), np.zeros(real.shape, int)
    for row, column in np.argwhere(real):
        columns = np.flatnonzero(batch["attention_mask"][row])
        first = rng.integers(0, columns.size)
        mention = columns[first : first + rng.integers(1, 5)]
        positions[row, column, : mention.size] = mention
        starts[row, column], ends[row, column] = mention[0], mention[-1]
    entities = {
        "entity_ids": np.where(real, rng.integers(1, vocabulary, real.shape), 0),
        "entity_attention_mask": real.astype(np.int64),
        "entity_token_type_ids": np.where(real, rng.integers(0, 2, real.shape), 0),
        "entity_position_ids": positions,
    }
    return batch | entities, {"entity_start_positions": starts, "entity_end_positions": ends}


def check_on(config, task, lengths, counts, *, padding="right", targets=None, spans=False, most=None, **options):
    rng = np.random.default_rng(3)
    batch, ends = with_entities(random_batch(config, lengths, rng, padding=padding), counts, rng, most=most)
    if task == "MaskedLM":
        labels = {
            "labels": np.where(rng.random(batch["input_ids"].shape) < 0.5, batch["input_ids"], -100),
            "entity_labels": np.where(rng.random(batch["entity_ids"].shape) < 0.7, batch["entity_ids"], -100),
        }
        kinds = {"labels": "attention_mask", "entity_labels": "entity_attention_mask"}
        targets = targets or {name: np.where(batch[kinds[name]] == 1, array, -100) for name, array in labels.items()}
        targets["labels"][0, batch["attention_mask"][0].argmax()] = 5
        options["unwritten"] = (*POOLER, "lm_head.bias")
    check(config, task, batch | (ends if spans else {}), targets=targets, **options)


def luke(task):
    import transformers

    return getattr(transformers, f"LukeFor{task}")


@pytest.mark.parity
@pytest.mark.parametrize("task", TASKS)
def test_heads(task):
    check_on(small_config(num_labels=3), task, [11, 1, 7], [3, 1, 0], unwritten=POOLER)


@pytest.mark.parity
@pytest.mark.parametrize("task", TASKS)
def test_heads_without_entities(task):
    config = small_config(num_labels=3)
    unwritten = (*POOLER, "lm_head.bias")
    check(config, task, random_batch(config, [11, 1, 7], np.random.default_rng(1)), unwritten=unwritten)


@pytest.mark.parity
@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("task", ENTITY_TASKS)
def test_entity_heads(task, several):
    rng, spans = np.random.default_rng(5), task == "EntitySpanClassification"
    shape = (3, 4) if spans else (3,)
    labels = rng.integers(0, 5, shape)
    if spans:
        labels[np.arange(4) >= np.array([4, 2, 3])[:, None]] = -100
    if several:
        labels = rng.integers(0, 2, (*shape, 5)).astype(np.float32)
    config = small_config(num_labels=5)
    options = {"targets": {"labels": labels}, "spans": spans, "unwritten": POOLER}
    check_on(config, luke(task), [9, 2, 13], [4, 2, 3], **options)


@pytest.mark.parity
@pytest.mark.parametrize("name", AWKWARD)
def test_awkward_configurations(name):
    changes, lengths, counts = AWKWARD[name]
    targets = None
    if not any(counts):  # transformers' mean over no entity is NaN
        targets = {"labels": np.random.default_rng(0).integers(2, 60, (len(lengths), max(lengths)))}
        targets["labels"][np.arange(max(lengths)) >= np.array(lengths)[:, None]] = -100
    check_on(small_config(**changes), "MaskedLM", lengths, counts, targets=targets, most=max(max(counts), 2))


@pytest.mark.parity
@pytest.mark.parametrize("aware", [True, False])
@pytest.mark.parametrize("task", ["MaskedLM", "QuestionAnswering", "TokenClassification"])
def test_left_padding(task, aware):  # not the poolers: transformers' is of the first column
    config = small_config(use_entity_aware_attention=aware)
    check_on(config, task, [11, 1, 7], [3, 1, 2], padding="left", unwritten=POOLER)


def tiny_batch(counts=(3, 1, 2)):
    rng = np.random.default_rng(2)
    mask = (np.arange(7) < np.array([7, 4, 5])[:, None]).astype(int)
    batch = {"input_ids": np.where(mask, rng.integers(2, 40, mask.shape), 1), "attention_mask": mask}
    return with_entities(batch, counts, rng, vocabulary=19)


def naive(qkv, word_queries, entity_queries, is_word, heads, offsets):
    """Attention written out: every pair's score by the query for its key's kind."""
    tokens, width = qkv.shape[0], qkv.shape[1] // 3
    query, key, value = (part.reshape(tokens, heads, -1) for part in np.split(qkv, 3, axis=1))
    of_kind = np.stack([query, query])  # by the key's kind: words, entities
    of_kind[1, is_word] = word_queries.reshape(-1, heads, width // heads)
    for kind in (0, 1):
        of_kind[kind, ~is_word] = np.split(entity_queries, 2, axis=1)[kind].reshape(-1, heads, width // heads)
    output = np.zeros_like(query)
    for first, end in itertools.pairwise(offsets):
        for i in range(first, end):
            for head in range(heads):
                kinds = (~is_word[first:end]).astype(int)
                scores = (of_kind[kinds, i, head] * key[first:end, head]).sum(axis=1) / np.sqrt(width // heads)
                chances = np.exp(scores - scores.max())
                output[i, head] = chances / chances.sum() @ value[first:end, head]
    return output.reshape(tokens, width)


@pytest.fixture
def attention_case():
    rng, offsets = np.random.default_rng(0), np.array([0, 5, 5, 8, 9], np.int32)
    is_word = np.array([1, 1, 1, 0, 0, 1, 0, 0, 0], bool)
    rows = {"word_rows": np.flatnonzero(is_word), "entity_rows": np.flatnonzero(~is_word)}
    arrays = [rng.normal(size=shape) for shape in ((9, 18), (4, 6), (5, 12))]
    return arrays, is_word, {"num_heads": 2, "cu_seqlens": offsets, **rows}


def test_entity_aware_attention_is_attention_with_a_query_for_each_kind(attention_case, cpu_dtype):
    arrays, is_word, options = attention_case
    trace, given = Trace(attentions=[]), [array.astype(cpu_dtype) for array in arrays]
    found = operations.entity_aware_attention(replace(Pass.begin(), trace=trace), *given, **options)
    expected, tolerance = naive(*arrays, is_word, 2, options["cu_seqlens"]), {"float64": 1e-12, "float32": 1e-5}
    np.testing.assert_allclose(found, expected, atol=tolerance[cpu_dtype])
    assert trace.attentions[0].shape == (4, 2, 5, 5)


def test_mean_of_rows_leaves_out_what_is_not_there(cpu_backend):
    table = np.arange(8.0).reshape(4, 2)
    means = operations.average_rows(Pass(cpu_backend), table, rows=np.array([[1, -1, 3], [2, -1, -1], [-1, -1, -1]]))
    np.testing.assert_array_equal(means, [[4, 5], [4, 5], [0, 0]])


@pytest.mark.parametrize("aware", [True, False])
def test_backends_and_precisions_agree(aware):
    config = TINY | {"use_entity_aware_attention": aware}
    kind = bertcore.AutoModelForEntityPairClassification if aware else bertcore.AutoModelForMaskedLM
    batch, _ = tiny_batch(counts=(3, 2, 2))
    entities = {name: array for name, array in batch.items() if name.startswith("entity_")}
    entities["entity_position_ids"] = np.minimum(entities["entity_position_ids"], 3)
    check_backends(lambda **options: kind.from_config(config, **options), (7, 4, 5), **entities)


def test_entities_change_words_and_without_them_queries_for_them_do_not_matter(cpu_backend):
    model = drawn_anew(AutoModel.from_config(TINY))
    batch, _ = tiny_batch()
    words = {name: batch[name] for name in ("input_ids", "attention_mask")}
    alone, with_them = model(**words), model(**batch)
    assert alone.entity_last_hidden_state is None and list(alone) == ["last_hidden_state", "pooler_output"]
    assert np.abs(alone.last_hidden_state - with_them.last_hidden_state).max() > 1e-2
    arrays = dict(model.state_dict())
    for name in [name for name in arrays if "w2e_" in name or "e2" in name]:
        arrays[name] = arrays[name] + 1
    model.load_state_dict(arrays)
    np.testing.assert_array_equal(model(**words).last_hidden_state, alone.last_hidden_state)
    assert np.abs(model(**batch).last_hidden_state - with_them.last_hidden_state).max() > 1e-2


def test_padding_entities_change_nothing(cpu_backend):
    model = drawn_anew(AutoModel.from_config(TINY))
    batch, _ = tiny_batch()
    wider = dict(batch)
    for name in ("entity_ids", "entity_attention_mask", "entity_token_type_ids"):
        wider[name] = np.pad(batch[name], ((0, 0), (1, 2)))
    wider["entity_position_ids"] = np.pad(batch["entity_position_ids"], ((0, 0), (1, 2), (0, 3)), constant_values=-1)
    narrow, wide = model(**batch), model(**wider)
    np.testing.assert_array_equal(wide.last_hidden_state, narrow.last_hidden_state)
    np.testing.assert_array_equal(wide.entity_last_hidden_state[:, 1:-2], narrow.entity_last_hidden_state)
    assert not wide.entity_last_hidden_state[batch["entity_attention_mask"].shape[1] + 1 :].any()
    lists = {name: array.tolist() for name, array in batch.items()}
    np.testing.assert_array_equal(model(**lists).entity_last_hidden_state, narrow.entity_last_hidden_state)


def test_a_batch_may_have_no_entities_at_all(cpu_backend):
    model = drawn_anew(AutoModel.from_config(TINY))
    batch, _ = tiny_batch()
    words = {name: batch[name] for name in ("input_ids", "attention_mask")}
    none = {"entity_ids": [[]] * 3, "entity_position_ids": [[]] * 3}
    out = model(**words, **none, output_attentions=True)
    assert out.entity_last_hidden_state.shape == (3, 0, 24) and out.attentions[0].shape == (3, 2, 7, 7)
    np.testing.assert_allclose(out.last_hidden_state, model(**words).last_hidden_state, atol=2e-6)


def test_names_are_the_checkpoint_s():
    model = bertcore.AutoModelForMaskedLM.from_config(TINY)
    batch, _ = tiny_batch()
    labels = {"entity_labels": np.where(batch["entity_attention_mask"], batch["entity_ids"], -100)}
    with use_backend("numpy"):
        out, grads = value_and_grad(model)(**batch, **labels)
    assert grads.keys() == model.expected_tensors().keys()
    assert out.mlm_loss is None and out.mep_loss == out.loss
    without = [name for name, gradient in grads.items() if not gradient.any() and "key.bias" not in name]
    last = "luke.encoder.layer.1.attention.self."  # in which words' queries are for words alone
    of_words = ("lm_head.", f"{last}query", f"{last}w2e_query")
    assert set(without) == {name for name in grads if name.startswith(of_words)}


def test_looking_up_entity_0_teaches_it_nothing():
    model, (batch, _) = bertcore.AutoModelForEntityClassification.from_config(TINY), tiny_batch()
    batch["entity_ids"][0, 0] = 0
    with use_backend("numpy"):
        _, grads = value_and_grad(model)(**batch, labels=[0, 1, 1])
    gradient = grads["luke.entity_embeddings.entity_embeddings.weight"]
    assert not gradient[0].any() and gradient[batch["entity_ids"][1, 0]].any()


def test_published_spellings_load(tmp_path):
    model = drawn_anew(bertcore.AutoModelForMaskedLM.from_config(TINY))
    copies = {
        "lm_head.bias": "lm_head.decoder.bias",
        "entity_predictions.decoder.weight": "luke.entity_embeddings.entity_embeddings.weight",
    }
    check_spellings(model, tmp_path, copies=copies)
    pooler = {f"luke.pooler.dense.{part}": np.zeros(shape) for part, shape in {"weight": (24, 24), "bias": 24}.items()}
    check_loads(model, tmp_path, dict(model.state_dict()) | pooler)


def test_the_decoder_of_words_was_tied_once(tmp_path):
    """transformers 4 saved it as the word embeddings alone."""
    model = drawn_anew(bertcore.AutoModelForMaskedLM.from_config(TINY))
    tensors = dict(model.state_dict())
    tensors["lm_head.decoder.weight"] = tensors["luke.embeddings.word_embeddings.weight"]
    model.load_state_dict(tensors)
    check_loads(model, tmp_path, {name: array for name, array in tensors.items() if name != "lm_head.decoder.weight"})
    encoder = {name: array for name, array in tensors.items() if name.startswith("luke.")}
    save_checkpoint(tmp_path, TINY, encoder)
    with pytest.warns(NewlyInitialisedWarning, match="lm_head") as warned:
        again = bertcore.AutoModelForMaskedLM.from_pretrained(tmp_path)
    assert warned[0].filename == __file__
    assert {name for name in again.newly_initialised if name.startswith("lm_head.")} == {
        name for name in tensors if name.startswith("lm_head.")
    }


def test_text_to_labels_of_its_entities(tmp_path):
    """The tokenizer's entities are the model's: every key that it gives is an argument."""
    write_family(tmp_path, "LukeTokenizer")
    vocabulary = {"[PAD]": 0, "[UNK]": 1, "[MASK]": 2, "[MASK2]": 3, "value": 4}
    (tmp_path / "entity_vocab.json").write_text(json.dumps(vocabulary))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path, task="entity_span_classification")
    texts, spans = ["the value", "the value the value"], [[(0, 3), (4, 9)], [(4, 9)]]
    batch = tokenizer(texts, entity_spans=spans, padding=True, return_token_type_ids=True)
    sizes = {"vocab_size": len(tokenizer), "entity_vocab_size": 5}
    model = drawn_anew(bertcore.AutoModelForEntitySpanClassification.from_config(TINY | sizes, num_labels=3))
    with use_backend("numpy"):
        both = model(**batch, labels=[[0, 2], [1, -100]])
        alone = model(**tokenizer(texts[1:], entity_spans=spans[1:]))
    assert both.logits.shape == (2, 2, 3) and both.logits[0].any(axis=1).all() and not both.logits[1, 1].any()
    np.testing.assert_allclose(both.logits[1, :1], alone.logits[0], atol=1e-5)
    chances = np.exp(both.logits) / np.exp(both.logits).sum(axis=2, keepdims=True)
    np.testing.assert_allclose(both.loss, -np.log([chances[0, 0, 0], chances[0, 1, 2], chances[1, 0, 1]]).mean(), 1e-5)


def test_wrong_configs_are_named():
    wrong = {"entity_vocab_size": 0, "entity_emb_size": "wide", "use_entity_aware_attention": 1, "hidden_act": "no"}
    check_refused(bertcore.AutoModelForMaskedLM.from_config, TINY, wrong)


BATCH, ENDS = tiny_batch()
NO_ENTITIES = {name: None for name in BATCH if name.startswith("entity_")}
FAR, FOREIGN = BATCH["entity_position_ids"].copy(), BATCH["entity_ids"].copy()
FAR[1, 0, 1], FOREIGN[2, 1] = 26, 19
OUTSIDE = ENDS | {"entity_start_positions": np.full((3, 3), 6)}
ONE_ENTITY = {name: BATCH[name][:, :1] for name in NO_ENTITIES}
SAMPLED = {"entity_labels": np.where(BATCH["entity_attention_mask"], BATCH["entity_ids"], -100)}
WRONG = [  # changes of the batch, what the error says, the head
    ({"entity_position_ids": None}, "without entity_position_ids", ""),
    ({"entity_ids": None}, "entity_attention_mask is given without entity_ids", ""),
    ({"entity_attention_mask": [[1, 1, 2], [1, 0, 0], [1, 1, 0]]}, r"entity_attention_mask\[0, 2\] is 2", ""),
    ({"entity_token_type_ids": [[0, 0, 2]] * 3}, r"entity_token_type_ids\[0, 2\] is 2, expected 0 to 1", ""),
    ({"entity_position_ids": FAR}, r"entity_position_ids\[1, 0, 1\] is 26, expected 0 to 25", ""),
    ({"entity_position_ids": FAR[:, :2]}, r"_ids has shape \(3, 2, 4\), expected \(3, 3, 'tokens'\)", ""),
    ({"entity_ids": FOREIGN}, r"entity_ids\[2, 1\] is 19, expected 0 to 18: the model has 19 entities", ""),
    ({"entity_ids": FOREIGN[:2]}, "entity_ids has 2 sequences, expected 3 as input_ids has", ""),
    (NO_ENTITIES, "entity_ids is None, .* LukeForEntityPairClassification needs", "ForEntityPairClassification"),
    ({}, r"entity_attention_mask\[1, 1\] is 0, expected 1: .* first 2", "ForEntityPairClassification"),
    (ENDS | {"entity_end_positions": None}, "entity_end_positions is None", "ForEntitySpanClassification"),
    (OUTSIDE, r"start_positions\[1, 0\] is 6, expected the column of a real", "ForEntitySpanClassification"),
    (ENDS | {"labels": np.zeros((3, 3), int)}, r"padded position \(entity_att", "ForEntitySpanClassification"),
    (ENDS | {"labels": np.zeros((3, 3, 5))}, r"labels has shape \(3, 3, 5\), expected", "ForEntitySpanClassification"),
    (ONE_ENTITY, r"entity_ids has shape \(3, 1\), expected at least 2 entities", "ForEntityPairClassification"),
    ({"entity_sample": [3]}, "entity_sample is given without entity_labels", "ForMaskedLM"),
    (SAMPLED | {"entity_sample": [3, 3]}, "entity_sample is int64 of shape .* expected distinct", "ForMaskedLM"),
    (SAMPLED | {"entity_sample": [3, 19]}, "entity_sample has 3 to 19, expected 0 to 18", "ForMaskedLM"),
]


@pytest.mark.parametrize(("changes", "message", "head"), WRONG)
@pytest.mark.usefixtures("on_numpy")
def test_wrong_entities_are_named(changes, message, head):
    refuses(ValueError, message, getattr(bertcore, f"AutoModel{head}").from_config(TINY), **BATCH | changes)
