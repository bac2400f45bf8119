"""SentenceEncoder: settings, pooling, batching, and embeddings equal to what the published models give."""

import itertools
import sys
import threading
import tracemalloc
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertcore import AutoModel, SentenceEncoder, get_backend, use_backend
from bertcore.checkpoint import CheckpointError, open_checkpoint, save_checkpoint
from bertcore.sentence_encoder.batching import BATCHES_PER_WINDOW, GROUP_TEXTS, batches, grouped, windows
from bertcore.sentence_encoder.pooling import normalized, pool
from tests.demo import demo_folder  # noqa: F401 (a fixture)
from tests.tiny_bert import CONFIG, WIDTH, random_texts, save_tiny_bert, save_tiny_encoder, write_json, write_modules

TEXTS = ["the cat sat on a mat.", "", "paris", "zzz qqq the", "a " * 30, "paris is the capital of france."]


@pytest.fixture(autouse=True)
def on_numpy():
    """The reference, unless a test chooses: what is tested here stands above the backends."""
    with use_backend("numpy"):
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="module")
def encoder(folder):
    return SentenceEncoder(folder)


def hidden_states(encoder, text):
    """(tokens, hidden) of one text on its own, by way of the model's padded door."""
    ids = encoder.tokenizer([text], truncation=True, max_length=encoder.max_seq_length)["input_ids"]
    return encoder.model(ids).last_hidden_state[0].astype(np.float64)


def assert_same(found, expected):
    """Equal but for the order in which another batch's matrix products may sum."""
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, atol=1e-6 * np.abs(expected).max(), rtol=0)


POOLED = {
    "cls": lambda hidden: hidden[0],
    "max": lambda hidden: hidden.max(axis=0),
    "mean": lambda hidden: hidden.mean(axis=0),
    "mean_sqrt_len": lambda hidden: hidden.sum(axis=0) / np.sqrt(len(hidden)),
}


# Settings


@pytest.mark.parametrize(
    ("pooling", "modes"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, ["cls"]),
        ({"pooling_mode_max_tokens": True}, ["max"]),
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
    ],
)
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
    raw, unit = encoder.encode(TEXTS, normalize=False), encoder.encode(TEXTS)
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


@pytest.mark.parametrize("length", [0, 41, -3])
def test_max_seq_length_argument_is_checked(folder, length):
    with pytest.raises(ValueError, match=f"max_seq_length is {length}, expected 1 to 40"):
        SentenceEncoder(folder, max_seq_length=length)


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


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        (
            ["Transformer", "Pooling", "Dense"],
            "sentence_transformers.models.Dense, which is not supported; supported are",
        ),
        (["Transformer", "CNN", "Pooling"], "models.CNN, which is not supported"),
        (["Transformer"], "modules Transformer; expected Transformer, Pooling"),
        (["Pooling", "Transformer"], "modules Pooling, Transformer; expected"),
        (["Transformer", "Normalize", "Pooling"], "modules Transformer, Normalize, Pooling; expected"),
        ([], "modules none; expected"),
    ],
)
def test_unsupported_modules(tmp_path, modules, message):
    folder = save_tiny_encoder(tmp_path)
    write_modules(folder, {f"{i}_{kind}": f"sentence_transformers.models.{kind}" for i, kind in enumerate(modules)})
    with pytest.raises(CheckpointError, match=message):
        SentenceEncoder(folder)


@pytest.mark.parametrize("value", [[{"type": "x"}], [3], {"a": 1}, 7, "text"])
def test_modules_file_of_another_shape(tmp_path, value):
    folder = save_tiny_encoder(tmp_path)
    write_json(folder / "modules.json", value)
    with pytest.raises(CheckpointError, match=r"modules\.json"):
        SentenceEncoder(folder)


def test_modules_file_that_is_not_json(tmp_path):
    folder = save_tiny_encoder(tmp_path)
    (folder / "modules.json").write_text("[{", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"modules\.json is not a list of modules"):
        SentenceEncoder(folder)


@pytest.mark.parametrize("path", ["../other", "/etc", "a/../../b", "..\\b", "C:\\b"])
def test_modules_may_not_point_outside(tmp_path, path):
    folder = save_tiny_encoder(tmp_path / "model")
    write_modules(
        folder, {"": "sentence_transformers.models.Transformer", path: "sentence_transformers.models.Pooling"}
    )
    with pytest.raises(CheckpointError, match="expected a folder inside"):
        SentenceEncoder(folder)


@pytest.mark.parametrize(
    ("pooling", "message"),
    [
        (
            {"pooling_mode_weightedmean_tokens": True},
            "'weightedmean' is not supported; supported are cls, max, mean, mean_sqr",
        ),
        ({"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": True}, "'lasttoken' is not supported"),
        ({"pooling_mode": "median"}, "'median' is not supported"),
        ({"pooling_mode": "mean", "include_prompt": False}, "include_prompt is False, supported is true"),
    ],
)
def test_unsupported_pooling(tmp_path, pooling, message):
    with pytest.raises(CheckpointError, match=message):
        SentenceEncoder(save_tiny_encoder(tmp_path, pooling))


def test_missing_pooling_config(tmp_path):
    folder = save_tiny_encoder(tmp_path)
    (folder / "1_Pooling" / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"config\.json cannot be read"):
        SentenceEncoder(folder)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_seq_length": 0}, "max_seq_length is 0, expected a positive integer"),
        ({"max_seq_length": "many"}, "max_seq_length is 'many'"),
        ({"max_seq_length": True}, "max_seq_length is True"),
        ({"transformer_task": "text-generation"}, "transformer_task is 'text-generation'"),
    ],
)
def test_wrong_transformer_settings(tmp_path, settings, message):
    folder = save_tiny_encoder(tmp_path)
    write_json(folder / "sentence_bert_config.json", settings)
    with pytest.raises(CheckpointError, match=message):
        SentenceEncoder(folder)


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
    with pytest.raises(ValueError, match="this model has none"):
        encoder.encode("x", prompt_name="query")
    with pytest.raises(ValueError, match="both given"):
        prompted.encode("x", prompt="a", prompt_name="query")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"prompts": {"a": 1}}, "prompts is"),
        ({"default_prompt_name": "q", "prompts": {"a": "b"}}, "is 'q', known are a"),
    ],
)
def test_wrong_prompts(tmp_path, config, message):
    folder = save_tiny_encoder(tmp_path)
    write_json(folder / "config_sentence_transformers.json", config)
    with pytest.raises(CheckpointError, match=message):
        SentenceEncoder(folder)


def test_folder_that_is_not_there(tmp_path):
    with pytest.raises(CheckpointError, match="does not exist"):
        SentenceEncoder(tmp_path / "nowhere")


# What goes in and what comes out


def test_shapes_and_dtype(encoder):
    assert encoder.encode("the cat").shape == (WIDTH,)
    assert encoder.encode("").shape == (WIDTH,)
    assert encoder.encode(["the cat"]).shape == (1, WIDTH)
    assert encoder.encode([]).shape == (0, WIDTH)
    assert encoder.encode(TEXTS).shape == (len(TEXTS), WIDTH)
    for embeddings in (encoder.encode("a"), encoder.encode([]), encoder.encode(TEXTS)):
        assert embeddings.dtype == np.float32 and embeddings.flags.c_contiguous
        assert np.isfinite(embeddings).all()


@pytest.mark.parametrize("kind", [tuple, iter, np.array, lambda texts: (text for text in texts)])
def test_any_iterable_of_texts(encoder, kind):
    assert_same(encoder.encode(kind(TEXTS)), encoder.encode(TEXTS))


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (None, "texts is NoneType, expected a string or a list of strings"),
        (b"bytes", "texts is bytes, expected .*; decode it first"),
        (3, "texts is int"),
        ({"a": "b"}, "texts is dict"),
        ({"a"}, "texts is set"),
        (["a", None], r"texts\[1\] is NoneType, expected str"),
        (["a", "b", 3.5], r"texts\[2\] is float, expected str"),
        ([b"bytes"], r"texts\[0\] is bytes, expected str: decode it first"),
        ([["a", "b"]], r"texts\[0\] is list, expected str"),
    ],
)
def test_what_is_not_text(encoder, texts, message):
    with pytest.raises(TypeError, match=message):
        encoder.encode(texts)
    with pytest.raises(TypeError, match=message):
        list(encoder.encode_stream(texts))


@pytest.mark.parametrize("batch_tokens", [0, -1, 2.5, True, None])
def test_batch_tokens_is_checked(encoder, batch_tokens):
    with pytest.raises(ValueError, match=r"batch_tokens is .*, expected a positive integer"):
        encoder.encode("a", batch_tokens=batch_tokens)


@pytest.mark.parametrize("batch_tokens", [1, 13, 50, 10**6])
def test_order_is_the_callers(encoder, batch_tokens):
    texts = random_texts(61)
    together = encoder.encode(texts, batch_tokens=batch_tokens)
    alone = np.stack([encoder.encode(text) for text in texts])
    assert np.abs(alone[0] - alone[1]).max() > 1e-2  # the texts do differ
    assert_same(together, alone)


def test_stream_equals_encode(encoder):
    texts = random_texts(300)
    rows = list(encoder.encode_stream(iter(texts), batch_tokens=16))
    assert all(row.shape == (WIDTH,) and row.dtype == np.float32 for row in rows)
    assert_same(np.stack(rows), encoder.encode(texts))


def test_stream_of_nothing(encoder):
    assert list(encoder.encode_stream([])) == []


def test_stream_reads_only_a_window_ahead(encoder):
    texts = iter(["the cat"] * 5000)
    stream = encoder.encode_stream(texts, batch_tokens=32)
    for _ in range(3):
        next(stream)
    assert 5000 - len(list(texts)) <= BATCHES_PER_WINDOW * 32 // 4 + GROUP_TEXTS


def test_stream_tells_a_wrong_text_when_it_comes(encoder):
    stream = encoder.encode_stream(itertools.chain(["a"] * 5000, [None]), batch_tokens=32)
    assert next(stream).shape == (WIDTH,)
    with pytest.raises(TypeError, match=r"texts\[5000\] is NoneType"):
        list(stream)


def test_stream_keeps_the_backend_of_its_call(encoder, monkeypatch):
    seen, encode_packed = [], AutoModel.encode_packed
    monkeypatch.setattr(AutoModel, "encode_packed", lambda *args: (seen.append(get_backend()), encode_packed(*args))[1])
    with use_backend("auto"):
        with use_backend("numpy"):
            stream = encoder.encode_stream(["a"] * 300, batch_tokens=4)
        next(stream)
        assert get_backend() == "auto"
        list(stream)
        assert get_backend() == "auto"
    assert set(seen) == {"numpy"}


def test_batches_stay_within_the_budget(encoder, monkeypatch):
    seen, encode_packed = [], AutoModel.encode_packed

    def spy(model, sequences):
        seen.append([len(sequence) for sequence in sequences])
        return encode_packed(model, sequences)

    monkeypatch.setattr(AutoModel, "encode_packed", spy)
    texts = random_texts(200, longest=30)
    encoder.encode(texts, batch_tokens=320)
    assert sum(map(len, seen)) == len(texts)
    assert max(map(sum, seen)) <= 320
    assert len(seen) < 1.15 * sum(map(sum, seen)) / 320 + 1  # and they are well filled
    flat = [length for batch in seen for length in batch]
    assert flat == sorted(flat, reverse=True)


def test_memory_does_not_grow_with_the_number_of_texts(encoder):
    def peak(count):
        tracemalloc.start()
        for _ in encoder.encode_stream(itertools.islice(itertools.cycle(random_texts(97)), count), batch_tokens=64):
            pass
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return peak

    peak(200)
    assert peak(1600) < 1.3 * peak(400)


def test_several_threads(encoder):
    texts = random_texts(50)
    expected, results = encoder.encode(texts), [None] * 4

    def work(slot):
        with use_backend("numpy"):
            results[slot] = encoder.encode(texts, batch_tokens=100)

    threads = [threading.Thread(target=work, args=(slot,)) for slot in range(len(results))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        assert_same(result, expected)


def test_similarity(encoder):
    left, right = encoder.encode(TEXTS), encoder.encode(TEXTS[:2])
    found = encoder.similarity(left, right)
    expected = [[x @ y / np.sqrt((x @ x) * (y @ y)) for y in right] for x in left]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_progress_on_request_and_not_by_itself(encoder, capsys):
    encoder.encode(TEXTS)
    list(encoder.encode_stream(TEXTS))
    assert capsys.readouterr().err == ""
    encoder.encode(TEXTS, show_progress=True)
    assert f"{len(TEXTS)}/{len(TEXTS)}" in capsys.readouterr().err
    list(encoder.encode_stream(TEXTS, show_progress=True))
    assert f"{len(TEXTS)} texts" in capsys.readouterr().err


def test_progress_on_a_terminal_only_for_long_work(encoder, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    encoder.encode(TEXTS)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("bertcore.sentence_encoder.progress.PATIENCE", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    encoder.encode(TEXTS)
    assert "texts" in capsys.readouterr().err
    encoder.encode(TEXTS, show_progress=False)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dtypes(folder, dtype):
    embeddings = SentenceEncoder(folder, dtype=dtype).encode(TEXTS)
    assert embeddings.dtype == np.float32
    np.testing.assert_allclose(embeddings, SentenceEncoder(folder).encode(TEXTS), atol=1e-5)


# The parts


@given(st.lists(st.integers(0, 50)), st.integers(1, 60))
def test_batches_partition_the_texts(lengths, budget):
    found = [batch.tolist() for batch in batches(lengths, budget)]
    assert sorted(itertools.chain(*found)) == list(range(len(lengths)))
    for batch in found:
        assert batch
        assert len(batch) == 1 or sum(lengths[index] for index in batch) <= budget


@given(st.lists(st.integers(0, 50)), st.integers(1, 5))
def test_windows_keep_the_order_and_are_bounded(lengths, budget):
    sequences = [np.zeros(length, np.int32) for length in lengths]
    found = list(windows(sequences, budget))
    assert [id(s) for s in itertools.chain(*found)] == [id(s) for s in sequences]
    for window in found:
        assert sum(max(1, len(s)) for s in window[:-1]) < BATCHES_PER_WINDOW * budget


@given(st.lists(st.text(max_size=20)))
def test_groups_keep_the_order(texts):
    assert list(itertools.chain(*grouped(texts))) == texts


def test_groups_are_bounded():
    sizes = [len(group) for group in grouped("x" for _ in range(1000))]
    assert max(sizes) == GROUP_TEXTS and sum(sizes) == 1000
    assert [len(group) for group in grouped(["x" * 10**6, "y", "z" * 10**6, "w"])] == [1, 1, 1, 1]


def test_a_text_without_tokens_pools_to_zeros():
    hidden = np.arange(1, 13, dtype=np.float32).reshape(4, 3)
    found = pool(hidden, np.array([0, 0, 3, 3, 4, 4], np.int32), ("max", "mean"))
    expected = [[0] * 6, [7, 8, 9, 4, 5, 6], [0] * 6, [10, 11, 12, 10, 11, 12], [0] * 6]
    np.testing.assert_array_equal(found, expected)


def test_half_precision_is_pooled_in_float32():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for dtype in (np.float16, ml_dtypes.bfloat16):
        hidden = np.random.default_rng(0).normal(size=(300, 5)).astype(dtype)
        found = pool(hidden, np.array([0, 300]), ("mean",))
        assert found.dtype == np.float32
        np.testing.assert_allclose(found[0], hidden.astype(np.float64).mean(axis=0), atol=1e-6)


def test_normalized_leaves_zeros():
    np.testing.assert_allclose(normalized(np.array([[3.0, 4.0], [0.0, 0.0]])), [[0.6, 0.8], [0, 0]])


# The real model

SENTENCES = [
    "The cat sits outside.",
    "A man is playing guitar.",
    "",
    "I love pasta!",
    "The new movie is awesome; 東京 déjà vu — naïve café?",
    "a long text " * 100,  # cut at 256 tokens
    "How do I reset my password?",
    "x",
]


@pytest.fixture(scope="module")
def demo_encoder(demo_folder):  # noqa: F811
    return SentenceEncoder(demo_folder)


def test_demo_model_settings(demo_encoder):
    settings = demo_encoder.settings
    assert (settings.pooling, settings.normalize, demo_encoder.max_seq_length) == (("mean",), True, 256)


def test_demo_model_knows_what_is_alike(demo_encoder):
    rows = demo_encoder.encode(["A kitten rests on a rug.", "The cat sits on the mat.", "Shares fell on Monday."])
    found = demo_encoder.similarity(rows, rows)
    assert found[0, 1] > 0.4 > 0.1 > found[0, 2]


def test_same_text_alone_and_in_a_batch(demo_encoder, cpu_backend):
    texts = [*SENTENCES, *(f"{number} more" for number in range(48)), *SENTENCES[:5], *SENTENCES[6:8], "end"]
    assert len(texts) == 64
    together = demo_encoder.encode(texts)
    for index, text in enumerate(SENTENCES):
        np.testing.assert_allclose(demo_encoder.encode(text), together[index], atol=1e-6)
    np.testing.assert_allclose(together[56:61], together[:5], atol=1e-6)


@pytest.fixture(scope="module")
def their_embeddings(demo_folder):  # noqa: F811
    """transformers in float64, mean pooling and normalisation, each text on its own."""
    import torch
    from transformers import AutoModel as TheirModel
    from transformers import AutoTokenizer as TheirTokenizer

    tokenizer, model = TheirTokenizer.from_pretrained(demo_folder), TheirModel.from_pretrained(demo_folder).double()
    batches = [tokenizer([text], truncation=True, max_length=256, return_tensors="pt") for text in SENTENCES]
    with torch.no_grad():
        means = torch.cat([model(**batch).last_hidden_state.mean(1) for batch in batches])
    return torch.nn.functional.normalize(means).numpy()


@pytest.mark.parity
def test_embeddings_equal_transformers(demo_encoder, their_embeddings, cpu_backend):
    np.testing.assert_allclose(demo_encoder.encode(SENTENCES), their_embeddings, atol=1e-5, rtol=0)


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float16", 5e-3), ("bfloat16", 4e-2)])
def test_embeddings_on_a_gpu(demo_folder, demo_encoder, dtype, tolerance):  # noqa: F811
    expected = demo_encoder.encode(SENTENCES)
    with use_backend("cupy"):
        found = SentenceEncoder(demo_folder, dtype=dtype).encode(SENTENCES)
    assert isinstance(found, np.ndarray) and found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=tolerance, rtol=0)
