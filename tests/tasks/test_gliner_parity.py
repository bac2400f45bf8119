"""GLiNER beside the package gliner, with random weights: scores, entities, files."""

import itertools
import json

import numpy as np
import pytest

from bertcore import GLiNER
from bertcore.tokenization.mentions import as_batch, split_words
from tests.lazy import lazy
from tests.tiny_gliner import LABELS, MARKS, TEXTS, threshold_of, tiny_gliner

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]
peer = lazy("gliner")

MODELS = list(itertools.product(("span", "token"), ("bert", "deberta", "modernbert")))


def same(found, expected):
    """The same entities in the same order, their scores within 1e-4."""
    assert [len(each) for each in found] == [len(each) for each in expected]
    for ours, theirs in zip(itertools.chain(*found), itertools.chain(*expected), strict=True):
        assert ours | {"score": 0} == theirs | {"score": 0}
        assert abs(ours["score"] - theirs["score"]) < 1e-4


@pytest.fixture(scope="module", params=MODELS, ids="-".join)
def both(request, tmp_path_factory):
    folder = tiny_gliner(tmp_path_factory.mktemp("gliner"), *request.param)
    return GLiNER.from_pretrained(folder), peer.GLiNER.from_pretrained(folder)


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("several", [True, False])
def test_entities_equal_those_of_gliner(both, flat, several):
    """Ragged batches, texts beyond max_len and empty ones, flat and nested, one label and several."""
    ours, theirs = both
    for share in (0.5, 0.9):
        options = {"flat_ner": flat, "multi_label": several, "threshold": threshold_of(ours, share)}
        found = ours.inference(TEXTS, LABELS, **options)
        same(found, theirs.inference(TEXTS, LABELS, **options))
        assert sum(map(len, found)) > 3
        assert ours.predict_entities(TEXTS[1], LABELS, **options) == found[1]


def test_labels_of_each_text_and_descriptions_equal_those_of_gliner(both):
    ours, theirs = both
    labels = [["city"], {"place": "big city", "human": "person"}] + [["person", "of", "city"]] * (len(TEXTS) - 2)
    options = {"threshold": threshold_of(ours, 0.7), "batch_size": 3}
    same(ours.inference(TEXTS, labels, **options), theirs.inference(TEXTS, labels, **options))
    same([ours.predict_entities(TEXTS[1], [], threshold=0.01)], [[]])


def test_words_that_are_not_read_have_zero_states_as_in_gliner(both):
    """Words without tokens, which shift entities there, and words behind the last token."""
    ours, theirs = both
    texts = ["\u200b the \x07 city\u200b of \u200b the person \u200b", "abcdefgh " * 9 + "city", "\u200b", "the city"]
    rows = [row.read for row, _ in ours.token_rows((text, dict(zip(LABELS, LABELS, strict=True))) for text in texts)]
    expected, forward = {}, theirs.model.forward
    theirs.model.forward = lambda *given, **named: expected.setdefault("output", forward(*given, **named))
    theirs.inference(texts, LABELS)
    del theirs.model.forward
    found, logits = ours.model(**as_batch(rows, 0)).logits, expected["output"].logits.detach().numpy()
    assert found.shape == logits.shape
    np.testing.assert_allclose(found, np.where(found, logits, 0), atol=1e-4)
    assert [len(row.words) - max(row.words_mask) for row in rows][2:] == [1, 0] and max(rows[1].words_mask) < 10


def test_gliner_loads_what_is_saved(both, tmp_path):
    ours, theirs = both
    ours.save_pretrained(tmp_path)
    again, options = peer.GLiNER.from_pretrained(tmp_path), {"threshold": threshold_of(ours, 0.5)}
    assert type(again) is type(theirs)
    same(ours.inference(TEXTS, LABELS, **options), again.inference(TEXTS, LABELS, **options))


@pytest.mark.parametrize("safe", [True, False])
def test_what_gliner_saves_loads(both, tmp_path, safe):
    ours, theirs = both
    theirs.save_pretrained(tmp_path, safe_serialization=safe)
    again, options = GLiNER.from_pretrained(tmp_path), {"threshold": threshold_of(ours, 0.5)}
    same(again.inference(TEXTS, LABELS, **options), ours.inference(TEXTS, LABELS, **options))


@pytest.mark.parametrize(
    "changed", [{"num_rnn_layers": 2}, {"num_rnn_layers": 0}, {"hidden_size": 48}, {"embed_ent_token": False},
                {"subtoken_pooling": "last"}, {"model_type": None}]
)  # fmt: skip
@pytest.mark.parametrize("kind", ["span", "token"])
def test_settings_mean_what_they_mean_in_gliner(kind, changed, tmp_path):
    ours = GLiNER.from_pretrained(tiny_gliner(tmp_path, kind, **changed))
    options = {"threshold": threshold_of(ours, 0.5)}
    theirs = peer.GLiNER.from_pretrained(tmp_path)
    same(ours.inference(TEXTS, LABELS, **options), theirs.inference(TEXTS, LABELS, **options))


def test_a_folder_without_tokenizer_and_encoder_config_names_its_encoder(tmp_path):
    """The first published models: the tokens are added on loading, and the table already has their rows."""
    folder, encoder = tiny_gliner(tmp_path / "model"), tmp_path / "encoder"
    expected = GLiNER.from_pretrained(folder)
    encoder.mkdir()
    config = json.loads((folder / "gliner_config.json").read_text())
    (encoder / "config.json").write_text(json.dumps(config.pop("encoder_config")))
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["added_tokens"] = [each for each in tokenizer["added_tokens"] if each["content"] not in MARKS]
    (encoder / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings.pop("extra_special_tokens")
    (encoder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    config |= {"model_name": str(encoder), "class_token_index": -1, "vocab_size": -1}
    (folder / "gliner_config.json").write_text(json.dumps(config))
    found, options = GLiNER.from_pretrained(folder), {"threshold": threshold_of(expected, 0.5)}
    same(found.inference(TEXTS, LABELS, **options), expected.inference(TEXTS, LABELS, **options))
    same(
        found.inference(TEXTS, LABELS, **options),
        peer.GLiNER.from_pretrained(folder).inference(TEXTS, LABELS, **options),
    )


def test_words_are_those_of_gliner():
    from gliner.data_processing.tokenizer import WhitespaceTokenSplitter

    rng = np.random.default_rng(0)
    letters = list("ab1_- \t\n.,é漢字'/\u200b\u0301😀")
    for _ in range(300):
        text = "".join(rng.choice(letters, size=rng.integers(0, 40)))
        assert list(split_words(text)) == [(first, last) for _, first, last in WhitespaceTokenSplitter()(text)]
