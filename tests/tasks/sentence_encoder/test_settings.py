"""Settings in the folder of a sentence encoder, done or refused."""

import re
import shutil
import warnings

import numpy as np
import pytest

from bertcore import SentenceEncoder
from bertcore.checkpoint import CheckpointError, open_checkpoint, save_checkpoint
from tests.refusals import refuses
from tests.tasks.sentence_encoder.comparison import TEXTS, assert_same
from tests.tiny_bert import CONFIG, WIDTH, save_tiny_bert, save_tiny_encoder, write_json, write_modules

POOLED = {
    "cls": lambda hidden: hidden[0],
    "max": lambda hidden: hidden.max(axis=0),
    "mean": lambda hidden: hidden.mean(axis=0),
    "mean_sqrt_len": lambda hidden: hidden.sum(axis=0) / np.sqrt(len(hidden)),
    "weightedmean": lambda hidden: np.average(hidden, axis=0, weights=np.arange(1, len(hidden) + 1)),
    "last": lambda hidden: hidden[-1],
}


def hidden_states(encoder, text):
    """(tokens, hidden) of one text on its own, by way of the model's padded door."""
    ids = encoder.tokenizer([text], truncation=True, max_length=encoder.max_seq_length)["input_ids"]
    return encoder.model(ids).last_hidden_state[0].astype(np.float64)


@pytest.mark.parametrize(("pooling", "modes"), [
    ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, ["cls"]),
    ({"pooling_mode_max_tokens": True}, ["max"]),
    ({"pooling_mode_lasttoken": True, "pooling_mode_weightedmean_tokens": True}, ["weightedmean", "last"]),
    ({"pooling_mode_mean_tokens": True}, ["mean"]),
    ({"pooling_mode_mean_sqrt_len_tokens": True}, ["mean_sqrt_len"]),
    ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, ["cls", "mean"]),
    (
        {
            "pooling_mode_mean_sqrt_len_tokens": True,
            "pooling_mode_mean_tokens": True,
            "pooling_mode_max_tokens": True,
            "pooling_mode_cls_token": True,
        },
        ["cls", "max", "mean", "mean_sqrt_len"],
    ),
    ({"pooling_mode_mean_tokens": False}, ["mean"]),
    ({"pooling_mode": "cls"}, ["cls"]),
    ({"pooling_mode": ["mean", "cls"], "include_prompt": True}, ["mean", "cls"]),
])  # fmt: skip
def test_pooling_config(tmp_path, pooling, modes):
    encoder = SentenceEncoder(save_tiny_encoder(tmp_path, pooling))
    embeddings = encoder.encode(TEXTS)
    assert encoder.embedding_dimension == WIDTH * len(modes)
    for text, embedding in zip(TEXTS, embeddings, strict=True):
        hidden = hidden_states(encoder, text)
        expected = np.concatenate([POOLED[mode](hidden) for mode in modes])
        np.testing.assert_allclose(embedding, expected, atol=2e-6 * np.abs(expected).max())


@pytest.mark.parametrize("wrapper", ["sentence_transformers.models.", "sentence_transformers.base.modules.x."])
def test_normalize_module_gives_unit_length(tmp_path, wrapper):
    folder = save_tiny_encoder(tmp_path, normalize=True)
    write_modules(
        folder, {"": f"{wrapper}Transformer", "1_Pooling": f"{wrapper}Pooling", "2_Normalize": f"{wrapper}Normalize"}
    )
    encoder = SentenceEncoder(folder)
    unit = encoder.encode(TEXTS)
    raw = np.stack([hidden_states(encoder, text).mean(axis=0) for text in TEXTS])
    np.testing.assert_array_equal(encoder.encode(TEXTS, normalize_embeddings=False), unit)
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(unit, raw / np.linalg.norm(raw, axis=1, keepdims=True), atol=1e-6)
    assert not np.allclose(np.linalg.norm(raw, axis=1), 1, atol=1e-2)


def test_plain_folder_is_mean_without_normalisation(tmp_path):
    encoder = SentenceEncoder(save_tiny_bert(tmp_path))
    expected = hidden_states(encoder, TEXTS[0]).mean(axis=0)
    np.testing.assert_allclose(encoder.encode(TEXTS[0]), expected, atol=2e-6 * np.abs(expected).max())


def test_model_in_its_own_folder(tmp_path):
    """Early sentence-transformers put the model into 0_BERT, with its settings beside it."""
    save_tiny_encoder(tmp_path)
    model_folder = save_tiny_bert(tmp_path / "0_BERT")
    (tmp_path / "config.json").unlink()
    write_json(model_folder / "sentence_roberta_config.json", {"max_seq_length": 5, "do_lower_case": False})
    modules = {
        "0_BERT": "sentence_transformers.models.Transformer",
        "1_Pooling": "sentence_transformers.models.Pooling",
    }
    write_modules(tmp_path, modules)
    assert SentenceEncoder(tmp_path).max_seq_length == 5


def test_max_seq_length_cuts_texts(tmp_path):
    folder = save_tiny_encoder(tmp_path)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 5})
    encoder = SentenceEncoder(folder)
    cut, whole = encoder.encode(["the cat sat on a mat", "the cat sat"])
    assert_same(cut, whole)  # [CLS] the cat sat [SEP]
    longer = SentenceEncoder(folder, max_seq_length=7)
    assert np.abs(longer.encode("the cat sat on a mat") - cut).max() > 1e-3


@pytest.mark.parametrize(("stated", "expected"), [(512, 40), (40, 40), (None, 40), (7, 7)])
def test_max_seq_length_never_exceeds_the_positions(tmp_path, stated, expected):
    folder = save_tiny_encoder(tmp_path)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": stated})
    encoder = SentenceEncoder(folder)
    assert encoder.max_seq_length == expected
    assert encoder.encode("a " * 100).shape == (WIDTH,)


@pytest.mark.parametrize("length", [0, 1, 41, -3, 2.5, True])
def test_max_seq_length_argument_is_checked(folder, length):
    message = rf"max_seq_length is {length}, expected 2 \(the special tokens of a text\) to 40, the model's positions"
    refuses(ValueError if type(length) is int else TypeError, message, SentenceEncoder, folder, max_seq_length=length)
    with pytest.raises(ValueError, match="similarity_fn_name is 'near', expected one of 'cosine'"):
        SentenceEncoder(folder, similarity_fn_name="near")


def test_the_shortest_max_seq_length_keeps_the_special_tokens(folder):
    encoder = SentenceEncoder(folder, max_seq_length=2)
    assert_same(encoder.encode("the cat"), encoder.encode(""))


def test_a_published_max_seq_length_without_room_for_special_tokens(tmp_path):
    folder = save_tiny_encoder(tmp_path)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 1})
    refuses(CheckpointError, r"max_seq_length is 1, expected 2 \(the special tokens", SentenceEncoder, folder)
    assert SentenceEncoder(folder, max_seq_length=3).max_seq_length == 3


def test_do_lower_case(tmp_path):
    folder = save_tiny_encoder(tmp_path, lower_case=False)
    before = SentenceEncoder(folder).encode(["Upper", "upper"])
    write_json(folder / "sentence_bert_config.json", {"do_lower_case": True})
    after = SentenceEncoder(folder).encode(["Upper", "upper"])
    assert np.abs(before[0] - before[1]).max() > 1e-3
    assert_same(after[0], after[1])
    assert_same(after[1], before[1])


def test_checkpoint_without_pooler_loads_quietly(tmp_path, encoder):
    folder = save_tiny_encoder(tmp_path)
    tensors = {name: array.copy() for name, array in open_checkpoint(folder).items() if not name.startswith("pooler")}
    save_checkpoint(folder, CONFIG, tensors)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        without = SentenceEncoder(folder)
    assert_same(without.encode(TEXTS), encoder.encode(TEXTS))


def listing(*kinds):
    """modules.json of these kinds of modules."""
    kinds = enumerate(f"sentence_transformers.models.{kind}" for kind in kinds)
    return [{"path": f"{number}_", "type": kind} for number, kind in kinds]


def pooled_in(path):
    return [{"path": "", "type": "x.Transformer"}, {"path": path, "type": "x.Pooling"}]


ANOTHER_SHAPE = "expected an object with the texts type and path"
MODES = "expected one or several of cls"
# What is said in which file -> what is wrong with it; None for a file that is not there.
REFUSED = {
    "modules.json": [
        (listing("Transformer", "Pooling", "Dense"), "1_/config.json cannot be read"),
        (listing("Transformer", "CNN", "Pooling"), "models.CNN, which is not supported"),
        (listing("Transformer"), "modules Transformer, expected Transformer, Pooling"),
        (listing("Pooling", "Transformer"), "modules Pooling, Transformer, expected"),
        (listing("Transformer", "Normalize", "Pooling"), "modules Transformer, Normalize, Pooling, expected"),
        ([], "modules none, expected"),
        *[(wrong, ANOTHER_SHAPE) for wrong in ([{"type": "x"}], [3], [{"type": 5, "path": ""}])],
        *[(wrong, "expected a list of modules") for wrong in ({"a": 1}, 7, "text")],
        *[(wrong, "modules.json is not valid JSON") for wrong in (b"[{", b"[" * 100_000)],
        (pooled_in("a" * 5000), "expected a folder inside"),
        *[(pooled_in(path), "expected a folder inside") for path in ("../x", "/etc", "a/../../b", "..\\b", "C:\\b")],
    ],
    "1_Pooling/config.json": [
        (None, "config.json cannot be read"),
        ({"pooling_mode": "median"}, f"pooling_mode is 'median', {MODES}"),
        ({"pooling_mode": []}, f"pooling_mode is [], {MODES}"),
        ({"pooling_mode": 5}, "pooling_mode is 5, expected a list of strings"),
        ({"pooling_mode": [[]]}, "config.json: pooling_mode is [[]], expected a list of strings"),
        ({"pooling_mode_mean_tokens": "false"}, "config.json: pooling_mode_mean_tokens is 'false', expected true or"),
        ({"word_embedding_dimension": 7}, f"word_embedding_dimension is 7, expected {WIDTH}, the hidden_size"),
        ({"embedding_dimension": 7}, f"embedding_dimension is 7, expected {WIDTH}, the hidden_size"),
        ({"word_embedding_dimension": "x"}, "word_embedding_dimension is 'x', expected a positive integer"),
        ({"pooling_mode": "mean", "include_prompt": "no"}, "include_prompt is 'no', expected true or false"),
    ],
    "sentence_bert_config.json": [
        ({"max_seq_length": 0}, "max_seq_length is 0, expected a positive integer"),
        ({"max_seq_length": "many"}, "max_seq_length is 'many'"),
        ({"max_seq_length": True}, "max_seq_length is True"),
        ({"do_lower_case": "false"}, "bert_config.json: do_lower_case is 'false', expected true or false"),
        ({"transformer_task": "text-generation"}, "transformer_task is 'text-generation'"),
    ],
    "config_sentence_transformers.json": [
        ({"prompts": {"a": 1}}, "prompts is"),
        ({"prompts": []}, "prompts is [], expected an object of texts by name"),
        ({"default_prompt_name": [1]}, "default_prompt_name is [1], expected one of none, or null"),
        ({"default_prompt_name": "q", "prompts": {"a": "b"}}, "is 'q', expected one of a, or null"),
        ({"similarity_fn_name": "maxsim"}, "similarity_fn_name is 'maxsim', expected one of cosine, dot, euclidean"),
        ({"truncate_dim": -1}, "truncate_dim is -1, expected a positive integer"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content", "message"), [(name, *case) for name, cases in REFUSED.items() for case in cases]
)
def test_what_is_refused(tmp_path, folder, name, content, message):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    if content is None:
        (tmp_path / name).unlink()
    elif isinstance(content, bytes):
        (tmp_path / name).write_bytes(content)
    else:
        write_json(tmp_path / name, content)
    refuses(CheckpointError, re.escape(message), SentenceEncoder, tmp_path)


def test_prompts(tmp_path, encoder):
    folder = save_tiny_encoder(tmp_path)
    prompts = {"query": "paris is ", "document": ""}
    write_json(folder / "config_sentence_transformers.json", {"prompts": prompts, "default_prompt_name": "query"})
    prompted = SentenceEncoder(folder)
    by_hand = encoder.encode("paris is the cat")
    assert_same(prompted.encode("the cat"), by_hand)
    assert_same(prompted.encode("the cat", prompt_name="query"), by_hand)
    assert_same(prompted.encode("the cat", prompt_name="document"), encoder.encode("the cat"))
    assert_same(prompted.encode("the cat", prompt=""), encoder.encode("the cat"))
    assert_same(encoder.encode("the cat", prompt="paris is "), by_hand)
    with pytest.raises(ValueError, match="prompt_name is 'passage', this model has query, document"):
        prompted.encode("x", prompt_name="passage")
    refuses(ValueError, "this model has query, document", encoder.encode, "x", prompt_name="q")
    assert encoder.prompts == {"query": "", "document": ""}
    refuses(ValueError, "both given", prompted.encode, "x", prompt="a", prompt_name="query")


def test_folder_that_is_not_there(tmp_path):
    refuses(CheckpointError, "does not exist", SentenceEncoder, tmp_path / "nowhere")
