"""Texts that are longer than the encoder takes."""

import itertools
import tracemalloc
import warnings

import numpy as np
import pytest

from bertcore.tasks.long_texts import PIECE, Cutting, Text, windows_of
from bertcore.tasks.texts import TextsCutWarning

LONG = " ".join(["the cat sat on paris", "an mat is of france"] * 20)
TEXTS = ["the cat", LONG, "", "paris is the capital"]


def by_hand(encoder, text, stride, merge, longest=40):
    ids = encoder.tokenizer(text, add_special_tokens=False)["input_ids"]
    cls, sep = encoder.tokenizer.cls_token_id, encoder.tokenizer.sep_token_id
    step = longest - 2 - stride
    rows = [[cls, *ids[start : start + longest - 2], sep] for start in range(0, max(1, len(ids) - stride), step)]
    vectors = np.stack([encoder.pooled([np.array(row)])[0] for row in rows]).astype(np.float64)
    merged = vectors.max(axis=0) if merge == "max" else np.average(vectors, axis=0, weights=list(map(len, rows)))
    return encoder.finished(merged[None].astype(np.float32), None, None)[0]


@pytest.mark.parametrize("merge", ["mean", "max"])
@pytest.mark.parametrize("stride", [0, 5, None])
def test_windows_make_one_vector(encoder, stride, merge):
    found = encoder.encode(TEXTS, truncation="chunk", stride=stride, merge=merge)
    for text, row in zip(TEXTS, found, strict=True):
        expected = by_hand(encoder, text, 38 // 4 if stride is None else stride, merge)
        np.testing.assert_allclose(row, expected, rtol=1e-5, atol=1e-6)
    streamed = list(encoder.encode_stream(iter(TEXTS), truncation="chunk", stride=stride, merge=merge))
    np.testing.assert_array_equal(streamed, found)
    np.testing.assert_allclose(found[0], encoder.encode(TEXTS[0]), rtol=1e-5, atol=1e-6)


def test_texts_that_are_cut(encoder):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cut = encoder.encode(TEXTS, truncation=True)
        with pytest.raises(ValueError, match=r"inputs\[1\] has more than the 40 tokens that are read"):
            encoder.encode(TEXTS, truncation="error")
        encoder.encode(TEXTS[:1], truncation="error")
    encoder.has_warned = False
    with pytest.warns(TextsCutWarning, match="1 of 4 texts were cut"):
        np.testing.assert_array_equal(encoder.encode(TEXTS), cut)


def test_pieces_of_a_very_long_text_hold_all_of_its_tokens(encoder):
    words = ["the", "catmat", "paris", "is", "zqx", "Upper", ".", "unknownword"]
    rng = np.random.default_rng(0)
    text = " ".join(rng.choice(words, PIECE // 2))
    assert len(text) > 2 * PIECE
    cutting = Cutting("chunk", 40, 7)
    (found,) = windows_of(encoder.tokenizer, [Text(text)], cutting)
    ids = []
    for number, window in enumerate(found):
        new = np.array(window.ids)[window.content][window.shared :]
        if ids and window.shared:
            assert ids[-window.shared :] == np.array(window.ids)[window.content][: window.shared].tolist()
        ids += new.tolist()
        for column, (start, end) in zip(window.content, window.offsets[window.content], strict=True):
            if number % 500 == 0:
                token = encoder.tokenizer.convert_ids_to_tokens(window.ids[column])
                assert token.removeprefix("##") in (text[start:end].lower(), "[UNK]")
    assert ids == encoder.tokenizer(text, add_special_tokens=False)["input_ids"]


@pytest.mark.slow
def test_the_memory_of_a_long_text_is_bounded(encoder):
    peaks = []
    for pieces in (4, 16):
        text = "the cat sat on paris " * (pieces * PIECE // 21)
        tracemalloc.start()
        (found,) = windows_of(encoder.tokenizer, [Text(text)], Cutting("chunk", 40))
        assert sum(1 for _ in itertools.islice(found, 10**9)) > 400 * pieces
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]
