"""The content of figures, beside the numbers that they are of, and `bertcore plot`."""

import json

import numpy as np
import pytest

from bertcore import AutoModel, AutoModelForMaskedLM, AutoTokenizer, SentenceEncoder
from bertcore.cli import main
from bertcore.tasks.calibration import reliability
from tests.tiny_bert import CONFIG, VOCABULARY, random_texts, save_tiny_bert, save_tiny_encoder, write_json

pytest.importorskip("matplotlib")

from bertcore.plots.attention import attention_components, attention_maps
from bertcore.plots.calibration import reliability_diagram
from bertcore.plots.curves import training_curves
from bertcore.plots.embeddings import embeddings_in_two_dimensions
from bertcore.plots.masking import masking
from bertcore.plots.models import models_side_by_side
from bertcore.plots.temperature import distillation_temperature
from tests.refusals import refuses

TEXT = "the cat sat on an upper mat."
MASKED = "paris is the [MASK] of france."
pytestmark = pytest.mark.usefixtures("on_numpy")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny_bert(tmp_path_factory.mktemp("bert"), head=True)


@pytest.fixture(scope="module")
def deberta(tmp_path_factory):
    folder = tmp_path_factory.mktemp("deberta")
    config = {**CONFIG, "model_type": "deberta-v2", "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
    AutoModel.from_config({**config, "position_buckets": 8}, seed=1).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "BertTokenizer"})
    return folder


def panels(figure):
    return {place.get_title(): place.images[0].get_array() for place in figure.axes if place.images}


def test_attention(folder):
    model, tokenizer = AutoModelForMaskedLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    found = panels(attention_maps(model, tokenizer, TEXT, 2))
    expected = model(tokenizer([TEXT])["input_ids"], output_attentions=True).attentions[1][0]
    assert list(found) == ["layer 2, head 1", "layer 2, head 2", "layer 2, head 3"]
    np.testing.assert_array_equal(list(found.values()), expected)
    image = attention_maps(model, tokenizer, TEXT, 2).axes[0].images[0]
    assert image.get_clim() == (0, pytest.approx(expected[:, :, 1:-1].max()))  # without [CLS] and [SEP]
    refuses(ValueError, "layer is 3, expected 1 to 2", attention_maps, model, tokenizer, TEXT, 3)
    with pytest.raises(ValueError, match="the model is of type 'bert', expected a DeBERTa"):
        attention_components(model, tokenizer, TEXT, 1)


def test_components(deberta):
    model, tokenizer = AutoModel.from_pretrained(deberta), AutoTokenizer.from_pretrained(deberta)
    found = panels(attention_components(model, tokenizer, TEXT, 1))
    terms = model(tokenizer([TEXT])["input_ids"], output_attention_components=True).attention_components[0]
    *parts, whole = found.values()
    for part, term in zip(parts, terms, strict=True):
        np.testing.assert_allclose(part, term[0].mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(whole, sum(parts), rtol=1e-5, atol=1e-6)


def test_bars_of_models_are_as_long_as_their_numbers():
    sizes = {"parameters": 3e6, "embeddings": 1e6, "mnli_m": None}
    figure = models_side_by_side(
        [{"name": name, **sizes, "flops_per_token": work * 1e6} for name, work in (("a", 2), ("b", 4))]
    )
    for place, widths in zip(figure.axes, ([2, 2, 1, 1], [2, 4]), strict=False):
        assert [bar.get_width() for bar in place.patches] == widths
        assert place.get_xscale() == "linear" and place.get_xlim()[0] == 0


def test_masking(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    figure = masking(tokenizer, TEXT * 3, epochs=5)
    static, dynamic = (np.asarray(place.collections[0].get_array()).reshape(5, -1) for place in figure.axes)
    assert (static == static[0]).all() and not (dynamic == dynamic[0]).all()
    asked = round(0.15 * (static.shape[1] - 2))
    assert ((static > 0).sum(axis=1) == asked).all() and ((dynamic > 0).sum(axis=1) == asked).all()


def test_temperature(folder):
    model, tokenizer = AutoModelForMaskedLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    figure = distillation_temperature(model, tokenizer, MASKED, temperatures=[1, 4], words=7)
    ids = tokenizer([MASKED])["input_ids"]
    logits = model(ids).logits[0, ids[0].index(tokenizer.mask_token_id), : len(tokenizer)].astype(np.float64)
    for place, temperature in zip(figure.axes, (1, 4), strict=True):
        chances = np.exp(logits / temperature) / np.exp(logits / temperature).sum()
        widths = [bar.get_width() for bar in place.patches]
        np.testing.assert_allclose(widths, np.sort(chances)[::-1][:7], rtol=1e-5)
    for text, wrong, message in (
        (TEXT, [1], r"the text has no \[MASK\]"),
        (MASKED, [0], r"temperatures is \[0\], expected numbers above 0"),
        (MASKED, [1, np.nan], r"temperatures is \[1, nan\], expected numbers above 0"),
    ):
        refuses(ValueError, message, distillation_temperature, model, tokenizer, text, temperatures=wrong)


@pytest.mark.filterwarnings("ignore::bertcore.models.model.NewlyInitialisedWarning")
def test_temperature_of_an_untrained_head(tmp_path):
    folder = save_tiny_bert(tmp_path)
    model, tokenizer = AutoModelForMaskedLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    with pytest.raises(ValueError, match=r"the model lacks cls\.predictions.*: expected a masked language model"):
        distillation_temperature(model, tokenizer, MASKED, temperatures=[1])


def test_long_texts_are_refused(folder):  # not cut in silence
    model, tokenizer = AutoModelForMaskedLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    longest = model.spec.longest_sequence
    assert longest < 128
    with pytest.raises(ValueError, match=f"text has {longest + 1} tokens, expected at most {longest}"):
        attention_maps(model, tokenizer, "cat " * (longest - 1), 1)
    refuses(ValueError, "text has 129 tokens, expected at most 128", masking, tokenizer, "cat " * 127, epochs=2)


def test_reliability():
    rng = np.random.default_rng(0)
    probabilities, labels = rng.dirichlet(np.ones(4), 500), rng.integers(0, 4, 500)
    found = reliability(probabilities, labels, bins=10)
    above, below = reliability_diagram(probabilities, labels, bins=10).axes
    np.testing.assert_allclose([bar.get_height() for bar in above.patches], np.nan_to_num(found.accuracy))
    np.testing.assert_allclose([bar.get_height() for bar in below.patches], found.counts)
    assert above.get_title() == f"expected calibration error {found.error:.3f}"


def test_curves(tmp_path):
    log = tmp_path / "log.jsonl"
    lines = [{"step": 1, "loss": 3.0, "learning_rate": 1e-3}, {"step": 2, "loss": None}, {"step": 2, "eval_loss": 2.5}]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    losses, rate = training_curves(log).axes
    assert {line.get_label(): line.get_xydata().tolist() for line in losses.lines} == {
        "training": [[1, 3]],
        "held out": [[2, 2.5]],
    }
    assert rate.lines[0].get_xydata().tolist() == [[1, 1e-3]]
    for name, wrong in (("loss", "3.0"), ("eval_loss", [1]), ("learning_rate", {}), ("step", "1"), ("loss", True)):
        log.write_text(json.dumps({"step": 1, "loss": 1.0}) + "\n" + json.dumps({"step": 2, "loss": 1} | {name: wrong}))
        refuses(ValueError, rf"log\.jsonl, line 2: {name} is .*, expected a number", training_curves, log)
    log.write_bytes(b"\x93NUMPY")
    refuses(ValueError, r"log\.jsonl is not UTF-8 at byte 1, expected a log\.jsonl", training_curves, log)
    log.write_text('{"eval_loss": 1}\n', encoding="utf-8")
    refuses(ValueError, "has no line with step and loss", training_curves, log)
    for wrong in ("step 1", "[1]"):
        log.write_text('{"step": 1, "loss": 1}\n' + wrong, encoding="utf-8")
        refuses(ValueError, r"log\.jsonl, line 2: .*, expected a JSON object", training_curves, log)


def test_embeddings():
    rows = np.random.default_rng(0).normal(size=(9, 1)) * np.eye(5)[0] * 10 + np.eye(9, 5)
    place = embeddings_in_two_dimensions([f"text {number}" for number in range(9)], rows).axes[0]
    points = np.asarray(place.collections[0].get_offsets())
    first = np.abs(np.corrcoef(points[:, 0], rows[:, 0])[0, 1])
    assert first > 0.99 and points.shape == (9, 2) and len(place.texts) == 9
    rows = np.random.default_rng(0).normal(size=(300, 5))
    assert 30 <= len(embeddings_in_two_dimensions(["a"] * 300, rows).axes[0].texts) <= 40
    refuses(ValueError, "texts has 2, expected at least 3", embeddings_in_two_dimensions, ["a", "b"], rows[:2])


@pytest.mark.parametrize(
    ("arguments", "suffix", "start"),
    [
        (["attention", "bert", "--text", TEXT, "--layer", "2"], "png", b"\x89PNG"),
        (["components", "deberta", "--text", TEXT], "svg", b"<?xml"),
        (["masking", "bert", "--text", TEXT, "--epochs", "2"], "svg", b"<?xml"),
        (["temperature", "bert", "--text", MASKED, "--temperatures", "1,3"], "png", b"\x89PNG"),
        (["calibration", "chances"], "svg", b"<?xml"),
        (["embeddings", "encoder", "texts"], "png", b"\x89PNG"),
    ],
)
def test_command(folder, deberta, tmp_path, arguments, suffix, start):
    (tmp_path / "texts").write_text("\n".join(random_texts(5)), encoding="utf-8")
    chances = [{"probabilities": [0.2, 0.8], "label": 1}, {"probabilities": [0.6, 0.4], "label": 1}]
    (tmp_path / "chances").write_text("\n".join(map(json.dumps, chances)), encoding="utf-8")
    places = {"bert": folder, "deberta": deberta, "texts": tmp_path / "texts", "chances": tmp_path / "chances"}
    if "encoder" in arguments:
        places["encoder"] = save_tiny_encoder(tmp_path / "encoder")
        assert SentenceEncoder(places["encoder"]).embedding_dimension == CONFIG["hidden_size"]
    out = tmp_path / f"out.{suffix}"
    given = [str(places.get(each, each)) for each in arguments]
    assert main(["plot", *given, "-o", str(out), "--backend", "numpy"]) == 0
    assert out.read_bytes().startswith(start)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (['{"probabilities": [0.5, "x"], "label": 1}'], "line 1: '{"),
        (['{"probabilities": 1, "label": 1}'], "line 1: '{"),
        (['{"probabilities": [0.5, 0.5], "label": "1"}'], "line 1: label is '1', expected {"),
        (['{"probabilities": [0.5, 0.5], "label": true}'], "line 1: label is True, expected {"),
        (['{"probabilities": [0.5, 0.5], "label": 0}', "[]"], "line 2: '[]', expected {"),
        (['{"probabilities": [0.5, 0.5], "label": 0}', '{"probabilities": [1], "label": 0}'], "different numbers of"),
        ([], "holds no texts"),
    ],
)
def test_wrong_lines_of_probabilities(tmp_path, capsys, lines, message):
    (tmp_path / "chances").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    assert main(["plot", "calibration", str(tmp_path / "chances"), "-o", str(tmp_path / "out.png")]) == 1
    printed = capsys.readouterr().err
    assert message in printed and str(tmp_path / "chances") in printed
