"""Inputs of SentenceEncoder.encode and encode_stream, and what comes out."""

import itertools
import re
import sys
import tracemalloc
import warnings

import numpy as np
import pytest

from bertcore import AutoModel, SentenceEncoder, get_backend, use_backend
from bertcore.tasks.sentence_encoder import TextsCutWarning
from bertcore.tasks.texts import BATCHES_PER_WINDOW, GROUP_TEXTS
from tests.processes import in_threads
from tests.refusals import refuses
from tests.tasks.sentence_encoder.comparison import TEXTS, assert_same
from tests.tiny_bert import WIDTH, random_texts


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


@pytest.mark.parametrize(("texts", "message"), [
    (None, "inputs is NoneType, expected a string or a list of strings"),
    (b"bytes", "inputs is bytes, expected .*; decode it first"),
    (3, "inputs is int"),
    ({"a": "b"}, "inputs is dict"),
    ({"a"}, "inputs is set"),
    (["a", None], r"inputs\[1\] is NoneType, expected str"),
    (["a", "b", 3.5], r"inputs\[2\] is float, expected str"),
    ([b"bytes"], r"inputs\[0\] is bytes, expected str: decode it first"),
    (np.array("the cat"), "inputs is an array without axes, expected a string or a list of strings"),
    (np.array([["the cat"]]), "inputs is ndarray of 2 axes, expected a string or a list of strings: take one column"),
    ([["a", "b"]], r"inputs\[0\] is list, expected str"),
])  # fmt: skip
def test_what_is_not_text(encoder, texts, message):
    for encode in (encoder.encode, encoder.encode_stream):
        refuses(TypeError, message, lambda encode=encode: list(encode(texts)))


def test_a_lone_surrogate_is_told(encoder):
    with pytest.raises(ValueError, match=r"inputs\[300\] is not valid Unicode: a lone surrogate at 1"):
        encoder.encode([*["é"] * 300, "a\ud800"])


@pytest.mark.parametrize(("options", "message"), [
    *(({"batch_tokens": wrong}, "batch_tokens is .*, expected a positive integer") for wrong in (0, -1, 2.5, True)),
    ({"batch_tokens": None}, "batch_tokens is None, expected a positive integer"),
    ({"normalize_embeddings": "no"}, "normalize_embeddings is 'no', expected True or False"),
    ({"normalize_embeddings": None}, "normalize_embeddings is None, expected True or False"),
    ({"batch_size": 0}, "batch_size is 0, expected a positive integer"),
    ({"device": "tpu"}, "device is 'tpu', expected 'cpu', 'cuda' or None"),
    ({"normalize_embedding": True}, "has no argument normalize_embedding; did you mean"),
    ({"prompt": 3}, "prompt is 3, expected a string or None"),
    ({"prompt_name": ["q"]}, r"prompt_name is \['q'\], expected a string or None"),
    ({"truncate_dim": 0}, "truncate_dim is 0, expected a positive integer"),
    ({"precision": "int4"}, "precision is 'int4'"),
    ({"truncation": "yes"}, "truncation is 'yes'"),
    ({"stride": 3}, "stride is 3"),
    ({"merge": "sum"}, "merge is 'sum'"),
    ({"width": 3}, "width"),
])  # fmt: skip
def test_bad_options(encoder, options, message):
    for encode in (encoder.encode, encoder.encode_stream):
        refuses((TypeError, ValueError), message, encode, ["a"], **options)


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
    refuses(TypeError, r"inputs\[5000\] is NoneType", list, stream)


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

    in_threads(work, range(len(results)))
    for result in results:
        assert_same(result, expected)


@pytest.mark.parametrize(("left", "right"), [((2, 5), (3, 4)), ((5,), (3, 4)), ((2, 5), (1, 3, 5)), ((), ())])
def test_similarity_of_other_shapes(encoder, left, right):
    message = re.escape(f"a has shape {left}, b {right}, expected (n, dim) and (m, dim)")
    refuses(ValueError, message, encoder.similarity, np.ones(left), np.ones(right))


def test_similarity(encoder):
    left, right = encoder.encode(TEXTS), encoder.encode(TEXTS[:2])
    found = encoder.similarity(left, right)
    expected = [[x @ y / np.sqrt((x @ x) * (y @ y)) for y in right] for x in left]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_allclose(encoder.similarity(left[0], right), found[:1], atol=1e-6)


def test_progress_on_request_and_not_by_itself(encoder, capsys):
    encoder.encode(TEXTS)
    list(encoder.encode_stream(TEXTS))
    assert capsys.readouterr().err == ""
    encoder.encode(TEXTS, show_progress_bar=True)
    assert f"{len(TEXTS)}/{len(TEXTS)}" in capsys.readouterr().err
    list(encoder.encode_stream(TEXTS, show_progress_bar=True))
    assert f"{len(TEXTS)} texts" in capsys.readouterr().err
    refuses(TypeError, "show_progress_bar is 0, expected True or False", encoder.encode, TEXTS, show_progress_bar=0)


def test_progress_on_a_terminal_only_for_long_work(encoder, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    encoder.encode(TEXTS)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("bertcore.tasks.texts.PATIENCE", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    encoder.encode(TEXTS)
    assert "texts" in capsys.readouterr().err
    encoder.encode(TEXTS, show_progress_bar=False)
    assert capsys.readouterr().err == ""


def cuts(call):
    """Return the warnings of `call` as texts."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    assert all(each.category is TextsCutWarning and each.filename == __file__ for each in caught)
    return [str(each.message) for each in caught]


def test_texts_that_are_cut_are_counted_once(folder):
    fits, long = "a " * 38, "a " * 39  # and two special tokens, in 40 positions
    encoder = SentenceEncoder(folder)
    assert cuts(lambda: encoder.encode([fits] * 5)) == []
    assert cuts(lambda: encoder.encode([fits, long, fits, long])) == [
        "2 of 4 texts were cut to 40 tokens; truncation 'chunk' reads all of them. This warning is given once"
    ]
    assert cuts(lambda: encoder.encode([long])) == []
    shorter = SentenceEncoder(folder, max_seq_length=7)
    (warning,) = cuts(lambda: list(shorter.encode_stream(iter([long] * 300), batch_tokens=8)))
    assert warning == (
        "300 of 300 texts were cut to 7 tokens; the model takes up to 40 (max_seq_length); truncation 'chunk' reads "
        "all of them. This warning is given once"
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dtypes(folder, dtype):
    embeddings = SentenceEncoder(folder, dtype=dtype).encode(TEXTS)
    assert embeddings.dtype == np.float32
    np.testing.assert_allclose(embeddings, SentenceEncoder(folder).encode(TEXTS), atol=1e-5)


def test_the_name_of_one_text(encoder):
    refuses(ValueError, "output_value is 'tokens'", encoder.encode, "a", output_value="tokens")
    refuses(ValueError, r"^inputs is not valid Unicode", encoder.encode, "\ud800")


def test_tokenize_returns_the_model_s_inputs(encoder):
    found = encoder.tokenize(["the cat", "a"], "paris ")
    assert list(found) == ["input_ids", "token_type_ids", "attention_mask"]
    for row, (ids, _) in zip(found["input_ids"], encoder.token_rows(["the cat", "a"], "paris "), strict=True):
        assert row[: len(ids)].tolist() == ids.tolist()
    assert found["attention_mask"].sum(axis=1).tolist() == [5, 4] and found["input_ids"].dtype == np.int64
    pair = encoder.preprocess([["the cat", "a"]], processing_kwargs={"text": {"max_length": 4}})
    assert pair["input_ids"].shape == (1, 4) and pair["token_type_ids"].max() == 1
    assert encoder.tokenize([])["input_ids"].shape[0] == 0
    refuses(TypeError, r"inputs\[0\] is NoneType, expected a string or a pair of strings", encoder.tokenize, [None])
    refuses(TypeError, "inputs is str, expected a list of strings", encoder.tokenize, "the cat")


def test_max_seq_length_can_be_set(folder):
    encoder = SentenceEncoder(folder)
    published, encoder.max_seq_length = encoder.max_seq_length, 4
    assert encoder.tokenize(["the cat sat on"])["input_ids"].shape == (1, 4)
    refuses(ValueError, "max_seq_length is 1, expected 2", setattr, encoder, "max_seq_length", 1)
    encoder.max_seq_length = None
    assert encoder.max_seq_length == published
