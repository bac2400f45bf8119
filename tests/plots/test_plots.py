"""The content of figures, beside the numbers that they are of, and `bertcore plot`."""

import json

import numpy as np
import pytest

from bertcore import AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer, SentenceEncoder
from bertcore.cli import main
from bertcore.tasks.calibration import reliability
from tests.tiny_bert import CONFIG, VOCABULARY, random_texts, save_tiny_bert, save_tiny_encoder, write_json

pytest.importorskip("matplotlib")

from matplotlib.figure import Figure

from bertcore.drawing import save_figure
from bertcore.plots.attention import attention_components, attention_maps, masking
from bertcore.plots.embeddings import embeddings_in_two_dimensions
from bertcore.plots.models import MEASURED, models_side_by_side
from bertcore.plots.probabilities import distillation_temperature, reliability_diagram
from bertcore.training.curves import training_curves
from tests.plots.layout import check_layout
from tests.refusals import refuses

TEXT = "the cat sat on an upper mat."
MASKED = "paris is the [MASK] of france."
pytestmark = [
    pytest.mark.usefixtures("on_numpy"),
    pytest.mark.filterwarnings("ignore::bertcore.models.model.NewlyInitialisedWarning"),
]


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


def tokenized(folder, kind=AutoModel):
    return kind.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


def test_attention(folder):
    model, tokenizer = tokenized(folder)
    attentions = model(tokenizer([TEXT])["input_ids"], output_attentions=True).attentions
    for given, expected in (
        ({"layer": 2}, {f"layer 2, head {head}": attentions[1][0, head - 1] for head in (1, 2, 3)}),
        ({"head": 3}, {f"layer {layer}, head 3": attentions[layer - 1][0, 2] for layer in (1, 2)}),
        ({"layer": 1, "head": 2}, {"layer 1, head 2": attentions[0][0, 1]}),
        ({"layer": 1, "head": 2, "special_tokens": False}, {"layer 1, head 2": attentions[0][0, 1, 1:-1, 1:-1]}),
    ):
        figure = attention_maps(model, tokenizer, TEXT, **given)
        found = panels(figure)
        assert list(found) == list(expected)
        for panel, values in zip(found.values(), expected.values(), strict=True):
            np.testing.assert_array_equal(panel, values)
        if given.get("special_tokens", True):  # the scale ends at the keys that are words
            most = max(values[:, 1:-1].max() for values in expected.values())
            assert figure.axes[0].images[0].get_clim() == (0, pytest.approx(most))
        assert ("[CLS]" in check_layout(figure)) == given.get("special_tokens", True)
    figure = attention_maps(model, tokenizer, TEXT)
    maps = [place.images[0].get_array() for place in figure.axes if place.images]
    np.testing.assert_array_equal(maps, np.concatenate([each[0] for each in attentions]))
    check_layout(figure)


def test_components(deberta):
    model, tokenizer = tokenized(deberta)
    terms = model(tokenizer([TEXT])["input_ids"], output_attention_components=True).attention_components[1]
    scores = [term[0] for term in terms]
    scores.append(sum(scores))
    for head in (None, 2):
        figure = attention_components(model, tokenizer, TEXT, 2, head=head)
        for (title, panel), each in zip(panels(figure).items(), scores, strict=True):
            sizes = np.abs(each) if head is None else np.abs(each[head - 1])
            np.testing.assert_allclose(panel, sizes.mean(axis=0) if head is None else each[head - 1], 1e-5, 1e-6)
            assert title.endswith(f"mean absolute value {sizes.mean():.3g}")
        shown = figure.axes[0].images[0].get_clim()
        words = max(np.abs(panel[1:-1, 1:-1]).max() for panel in panels(figure).values())
        assert shown == pytest.approx((0 if head is None else -words, words))
        check_layout(figure)


@pytest.fixture(scope="module")
def long_models():
    """A BERT and a DeBERTa of 600 positions, and a tokenizer."""
    shared = {**CONFIG, "max_position_embeddings": 600}
    relative = {"model_type": "deberta-v2", "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
    return [AutoModel.from_config(config, seed=1) for config in (shared, shared | relative | {"position_buckets": 8})]


@pytest.mark.parametrize("count", [1, 39, 160, 510])
def test_labels_of_any_number_of_tokens_fit(long_models, folder, count):
    tokenizer, text = AutoTokenizer.from_pretrained(folder), " ".join(["capital", "paris", "on"] * 170).split()[:count]
    bert, deberta = long_models
    labels = check_layout(attention_maps(bert, tokenizer, " ".join(text), 1, special_tokens=False))
    assert len([label for label in labels if label in text]) >= min(count, 39)
    if count == 510:
        return
    check_layout(attention_components(deberta, tokenizer, " ".join(text)))
    check_layout(masking(tokenizer, " ".join(text), epochs=40))


def test_refused_attention(folder, deberta):
    bert, tokenizer = tokenized(folder)
    relative = AutoModel.from_pretrained(deberta)
    for draw, model, text, given, error, message in (
        (attention_maps, bert, TEXT, {"layer": 3}, ValueError, "layer is 3, expected 1 to 2"),
        (attention_maps, bert, TEXT, {"layer": 0}, ValueError, "layer is 0, expected a positive integer"),
        (attention_maps, bert, TEXT, {"layer": 1.0}, TypeError, "layer is 1.0, expected a positive integer"),
        (attention_maps, bert, TEXT, {"head": 4}, ValueError, "head is 4, expected 1 to 3"),
        (attention_maps, bert, "", {"special_tokens": False}, ValueError, "text has only special tokens"),
        (attention_maps, bert, [TEXT], {}, TypeError, "text is list, expected a string"),
        (attention_maps, bert, TEXT, {"special_tokens": 1}, TypeError, "special_tokens is 1, expected True or False"),
        (attention_components, relative, TEXT, {"head": 4}, ValueError, "head is 4, expected 1 to 3"),
        (attention_components, relative, TEXT, {"layer": 3}, ValueError, "layer is 3, expected 1 to 2"),
        (attention_components, bert, TEXT, {}, ValueError, "model is of type 'bert', expected a DeBERTa"),
    ):
        refuses(error, message, draw, model, tokenizer, text, **given)


MODEL = {"parameters": 3e6, "embeddings": 1e6, "flops_per_token": 2e6, "mnli_m": None}


def test_bars_of_models_are_as_long_as_their_numbers():
    rows = [{"name": "a", **MODEL}, {"name": "b", **MODEL, "flops_per_token": 4e6, "mnli_m": 84.6}]
    figure = models_side_by_side(rows)
    for place, widths in zip(figure.axes, ([2, 2, 1, 1], [2, 4]), strict=False):
        assert [bar.get_width() for bar in place.patches] == widths
        assert place.get_xscale() == "linear" and place.get_xlim()[0] == 0
    check_layout(figure)
    figure = models_side_by_side(rows, log=True)
    for place, values in zip(figure.axes, ([3, 3], [2, 4], [84.6]), strict=True):
        assert not place.patches and place.lines[0].get_xdata().tolist() == values
    assert [place.get_xscale() for place in figure.axes] == ["log", "log", "linear"]


def test_models_of_any_number_fit():
    for count, width in ((1, 1), (30, 15)):
        rows = [
            {"name": "a-name" * width, **MODEL, "parameters": 10.0 ** (index % 9 + 6), "mnli_m": 70 + index}
            for index in range(count)
        ]
        names = check_layout(models_side_by_side(rows))
        assert sum(name.startswith("a-") for name in names) == count
        check_layout(models_side_by_side(rows, log=True))
    row = {"name": "a", "latency": 0.01, "resident": 120.5, "on_disk": 80.0}
    check_layout(models_side_by_side([row], MEASURED))
    refuses(ValueError, "rows is empty, expected at least one model", models_side_by_side, [])
    refuses(TypeError, "rows is 3, expected a list", models_side_by_side, 3)
    refuses(ValueError, "without 'on_disk', which 'weights on disk", models_side_by_side, [{"name": "a"}], MEASURED[2:])
    for wrong, error in ((-1, ValueError), (float("nan"), ValueError), (float("inf"), ValueError), ("x", TypeError)):
        refuses(error, "resident memory, MB of a is", models_side_by_side, [row | {"resident": wrong}], MEASURED)


def test_masking(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    figure = masking(tokenizer, TEXT * 3, epochs=5)
    static, dynamic = (np.asarray(place.collections[0].get_array()).reshape(5, -1) for place in figure.axes)
    assert (static == static[0]).all() and not (dynamic == dynamic[0]).all()
    asked = round(0.15 * (static.shape[1] - 2))
    assert ((static > 0).sum(axis=1) == asked).all() and ((dynamic > 0).sum(axis=1) == asked).all()


def test_temperature(folder):
    model, tokenizer = tokenized(folder, AutoModelForMaskedLM)
    figure = distillation_temperature(model, tokenizer, MASKED, temperatures=[1, 4], words=7)
    ids = tokenizer([MASKED])["input_ids"]
    logits = model(ids).logits[0, ids[0].index(tokenizer.mask_token_id), : len(tokenizer)].astype(np.float64)
    for place, temperature in zip(figure.axes, (1, 4), strict=True):
        chances = np.exp(logits / temperature) / np.exp(logits / temperature).sum()
        widths = [bar.get_width() for bar in place.patches]
        np.testing.assert_allclose(widths, np.sort(chances)[::-1][:7], rtol=1e-5)
    check_layout(figure)
    check_layout(distillation_temperature(model, tokenizer, MASKED, temperatures=range(1, 13), words=40))
    for text, wrong, words, message in (
        (TEXT, [1], 12, r"text has no \[MASK\]"),
        (MASKED, [0], 12, "temperatures is 0, expected a finite number above 0"),
        (MASKED, [1, np.nan], 12, "temperatures is nan, expected a finite number above 0"),
        (MASKED, [], 12, "temperatures has 0 numbers, expected 1 to 12"),
        (MASKED, [1] * 13, 12, "temperatures has 13 numbers, expected 1 to 12"),
        (MASKED, [1], 41, "words is 41, expected at most 40"),
    ):
        options = {"temperatures": wrong, "words": words}
        refuses(ValueError, message, distillation_temperature, model, tokenizer, text, **options)


def classifier(folder, **config):
    """A classifier whose head counts as trained, and its tokenizer."""
    model = AutoModelForSequenceClassification.from_config({**CONFIG, **config}, seed=1)
    return model, AutoTokenizer.from_pretrained(folder)


def test_temperature_of_a_classifier(folder):
    names = ["good", "a label of many words, which no axis has space for", "$5 and $6\n"]
    model, tokenizer = classifier(folder, id2label=dict(enumerate(names)))
    figure = distillation_temperature(model, tokenizer, TEXT, temperatures=[2])
    logits = model(tokenizer([TEXT])["input_ids"]).logits[0].astype(np.float64)
    chances = np.exp(logits / 2) / np.exp(logits / 2).sum()
    np.testing.assert_allclose([bar.get_width() for bar in figure.axes[0].patches], np.sort(chances)[::-1], rtol=1e-6)
    texts = check_layout(figure)
    assert {"good", "$5 and $6", "a label of many wor…"} <= set(texts) and figure.axes[0].get_title() == "T = 2"
    for config, message in (
        ({"num_labels": 1}, "model has 1 outputs, expected a classifier with one label"),
        ({"problem_type": "multi_label_classification"}, "the problem_type multi_label_classification, expected a"),
    ):
        wrong = classifier(folder, **config)
        refuses(ValueError, message, distillation_temperature, *wrong, TEXT, temperatures=[1])


def test_temperature_of_an_untrained_head(tmp_path, capsys):
    given = ["--text", MASKED, "-o", str(tmp_path / "out.png")]
    assert main(["plot", "temperature", str(save_tiny_bert(tmp_path)), *given]) == 1
    assert "has no trained head, expected a classifier or a masked language model" in capsys.readouterr().err


def test_long_texts_are_refused(folder):  # not cut in silence
    model, tokenizer = tokenized(folder)
    longest = model.spec.longest_sequence
    message = f"text has {longest + 1} tokens, expected at most {longest}"
    refuses(ValueError, message, attention_maps, model, tokenizer, "cat " * (longest - 1), 1)
    refuses(ValueError, "text has 513 tokens, expected at most 512", masking, tokenizer, "cat " * 511, epochs=2)
    refuses(ValueError, "epochs is 101, expected at most 100", masking, tokenizer, TEXT, epochs=101)
    refuses(ValueError, "seed is -1, expected an integer of at least 0", masking, tokenizer, TEXT, epochs=1, seed=-1)


@pytest.mark.parametrize("texts", [1, 500])
def test_reliability(texts):
    rng = np.random.default_rng(0)
    probabilities, labels = rng.dirichlet(np.ones(4), texts), rng.integers(0, 4, texts)
    found = reliability(probabilities, labels, bins=10)
    figure = reliability_diagram(probabilities, labels, bins=10)
    above, below = figure.axes
    np.testing.assert_allclose([bar.get_height() for bar in above.patches], np.nan_to_num(found.accuracy))
    np.testing.assert_allclose([bar.get_height() for bar in below.patches], found.counts)
    assert above.get_title().startswith(f"expected calibration error {found.error:.3f}, {texts} text")
    check_layout(figure)
    check_layout(reliability_diagram(probabilities, labels, bins=100))
    refuses(ValueError, "bins is 101, expected at most 100", reliability_diagram, probabilities, labels, bins=101)
    refuses(ValueError, "at least two classes", reliability_diagram, np.ones((3, 1)), [0, 0, 0])


def test_curves(tmp_path):
    log = tmp_path / "log.jsonl"
    lines = [{"step": 1, "loss": 3.0, "learning_rate": 1e-3}, {"step": 2, "loss": None}, {"step": 2, "eval_loss": 2.5}]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    figure = training_curves(log)
    check_layout(figure)
    losses, rate = figure.axes
    assert {line.get_label(): line.get_xydata().tolist() for line in losses.lines} == {
        "training": [[1, 3]],
        "held out": [[2, 2.5]],
    }
    assert rate.lines[0].get_xydata().tolist() == [[1, 1e-3]]
    drawn = [line.get_xydata().tolist() for place in figure.axes for line in place.lines]
    for name, wrong in (
        ("loss", "3.0"),
        ("eval_loss", [1]),
        ("learning_rate", {}),
        ("step", "1"),
        ("loss", True),
        ("loss", 10**400),
    ):
        log.write_text(json.dumps({"step": 1, "loss": 1.0}) + "\n" + json.dumps({"step": 2, "loss": 1} | {name: wrong}))
        refuses(ValueError, rf"log\.jsonl, line 2: {name} is .*, expected a number", training_curves, log)
    log.write_bytes(b"\x93NUMPY")
    refuses(ValueError, r"log\.jsonl is not UTF-8 at byte 1, expected a log\.jsonl", training_curves, log)
    figure = training_curves(lines)
    assert [line.get_xydata().tolist() for place in figure.axes for line in place.lines] == drawn
    check_layout(training_curves([{"step": 10**8 * step, "loss": 1e-9 * step} for step in range(9)]))
    refuses(TypeError, r"log\[0\] is int, expected a mapping", training_curves, [1])
    refuses(ValueError, "log has no line with step and loss", training_curves, [{"step": 1, "loss": float("nan")}])
    log.write_text('{"eval_loss": 1}\n', encoding="utf-8")
    refuses(ValueError, "has no line with step and loss", training_curves, log)
    for wrong in ("step 1", "[1]"):
        log.write_text('{"step": 1, "loss": 1}\n' + wrong, encoding="utf-8")
        refuses(ValueError, r"log\.jsonl, line 2: .*, expected a JSON object", training_curves, log)


def random_embeddings(count, dim=5):
    return np.random.default_rng(0).normal(size=(count, dim))


def test_embeddings():
    rows = np.random.default_rng(0).normal(size=(9, 1)) * np.eye(5)[0] * 10 + np.eye(9, 5)
    place = embeddings_in_two_dimensions([f"text {number}" for number in range(9)], rows).axes[0]
    points = np.asarray(place.collections[0].get_offsets())
    first = np.abs(np.corrcoef(points[:, 0], rows[:, 0])[0, 1])
    assert first > 0.99 and points.shape == (9, 2) and len(place.texts) >= 5


@pytest.mark.parametrize(("count", "labels"), [(3, 1), (40, 2), (300, 40), (300, 18)])
def test_labels_of_texts_fit(count, labels):
    texts = [f"text {number}, as long as texts are that no figure has space for" for number in range(count)]
    given = [f"_{number % labels} a label of many words" * 2 for number in range(count)]
    figure = embeddings_in_two_dimensions(texts, random_embeddings(count), labels=given)
    assert len(figure.axes[0].collections) == len(figure.legends[0].get_texts()) == min(labels, 18)
    written = check_layout(figure)
    assert 2 <= sum(text.startswith("text ") for text in written) <= 40
    if labels == 40:
        assert any(text.startswith("others (") for text in written)
        assert sum(len(each.get_offsets()) for each in figure.axes[0].collections) == count


@pytest.mark.parametrize("method", ["pca", "tsne"])
def test_clusters(method):
    pytest.importorskip("sklearn")
    rows = np.repeat(np.eye(3, 8) * 9, [20, 5, 9], axis=0) + random_embeddings(34, 8) / 9
    figure = embeddings_in_two_dimensions(["a"] * 34, rows, clusters=3, method=method)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["1 (20)", "2 (9)", "3 (5)"]
    check_layout(figure)


@pytest.mark.parametrize(("count", "dim"), [(3, 1), (5, 2), (30, 8)])
def test_umap(count, dim):
    pytest.importorskip("umap")
    figure = embeddings_in_two_dimensions(["a"] * count, random_embeddings(count, dim), method="umap")
    assert len(figure.axes[0].collections[0].get_offsets()) == count
    check_layout(figure)


def test_characters_without_a_font_are_named_once():
    unknown = "\U00012000\U00012001"  # cuneiform
    with pytest.warns(UserWarning) as found:
        embeddings_in_two_dimensions(["a", unknown, unknown * 2], random_embeddings(3))
    assert [str(each.message).partition(":")[0] for each in found] == [f"no font here has {unknown}"]


def test_refused_embeddings(monkeypatch):
    rows = random_embeddings(3)
    for texts, given, options, message in (
        ("ab", rows[:2], {}, "texts has 2, expected at least 3"),
        ("abc", rows[:2], {}, r"embeddings has shape \(2, 5\), expected \(3, dim\)"),
        ("abc", rows[:, :0], {}, r"embeddings has shape \(3, 0\), expected \(3, dim\)"),
        ("abc", rows * np.inf, {}, "embeddings holds inf or NaN"),
        ("abc", rows, {"labels": ["x"]}, "labels has 1, expected one for each of 3 texts"),
        ("abc", rows, {"labels": [1, 2, 3], "clusters": 2}, "labels and clusters are both given"),
        ("abc", rows, {"clusters": 4}, "clusters is 4, expected at most 3"),
        ("abc", rows, {"clusters": 1}, "clusters is 1, expected an integer of at least 2"),
        ("abc", rows, {"method": "lda"}, "method is 'lda', expected one of pca, umap, tsne"),
        ("abc", rows, {"seed": 2**32}, "seed is 4294967296, expected at most"),
    ):
        refuses(ValueError, message, embeddings_in_two_dimensions, list(texts), given, **options)
    for texts, options, message in (
        ("abc", {}, "texts is 'abc', expected a list"),
        ([1] * 3, {"labels": 5}, "labels is 5"),
    ):
        refuses(TypeError, message, embeddings_in_two_dimensions, texts, rows, **options)
    monkeypatch.setattr("bertcore.plots.embeddings.find_spec", lambda name: None)
    message = "method is 'umap', which needs umap-learn: pip install umap-learn"
    refuses(ImportError, message, embeddings_in_two_dimensions, list("abc"), rows, method="umap")


def test_files_have_the_same_bytes_again(tmp_path):
    for suffix, start in ((".png", b"\x89PNG"), (".svg", b"<?xml")):
        files = [tmp_path / f"{number}{suffix}" for number in range(2)]
        for file in files:
            save_figure(embeddings_in_two_dimensions(list("abc"), random_embeddings(3)), file)
        first, second = (file.read_bytes() for file in files)
        assert first == second and first.startswith(start)
    wrong = tmp_path / "a.pdf"
    refuses(TypeError, "figure is NoneType, expected a figure of matplotlib", save_figure, None, wrong)
    refuses(TypeError, "target is None, expected the name of a file", save_figure, Figure(), None)
    refuses(ValueError, "kind of the figure's file is '.pdf', expected one of .png, .svg", save_figure, Figure(), wrong)
    assert not wrong.exists()


@pytest.mark.parametrize(("arguments", "suffix", "start"), [
    (["attention", "bert", "--text", TEXT, "--layer", "2"], "png", b"\x89PNG"),
    (["attention", "bert", "--text", TEXT, "--head", "2", "--no-special-tokens"], "svg", b"<?xml"),
    (["components", "deberta", "--text", TEXT, "--head", "1", "--layer", "2"], "png", b"\x89PNG"),
    (["temperature", "classifier", "--text", TEXT], "svg", b"<?xml"),
    (["embeddings", "encoder", "texts", "--labels", "texts"], "svg", b"<?xml"),
    (["embeddings", "encoder", "texts", "--clusters", "2"], "png", b"\x89PNG"),
    (["calibration", "chances", "--bins", "3"], "png", b"\x89PNG"),
    (["curves", "log"], "svg", b"<?xml"),
    (["components", "deberta", "--text", TEXT], "svg", b"<?xml"),
    (["masking", "bert", "--text", TEXT, "--epochs", "2"], "svg", b"<?xml"),
    (["temperature", "bert", "--text", MASKED, "--temperatures", "1,3"], "png", b"\x89PNG"),
    (["calibration", "chances"], "svg", b"<?xml"),
    (["embeddings", "encoder", "texts"], "png", b"\x89PNG"),
])  # fmt: skip
def test_command(folder, deberta, tmp_path, arguments, suffix, start):
    (tmp_path / "texts").write_text("\n".join(random_texts(5)), encoding="utf-8")
    chances = [{"probabilities": [0.2, 0.8], "label": 1}, {"probabilities": [0.6, 0.4], "label": 1}]
    (tmp_path / "chances").write_text("\n".join(map(json.dumps, chances)), encoding="utf-8")
    (tmp_path / "log").write_text('{"step": 1, "loss": 2}')
    places = {name: tmp_path / name for name in ("texts", "chances", "log", "classifier")}
    places |= {"bert": folder, "deberta": deberta}
    if "classifier" in arguments:
        model, tokenizer = classifier(folder)
        model.save_pretrained(places["classifier"])
        tokenizer.save_pretrained(places["classifier"])
    if "encoder" in arguments:
        places["encoder"] = save_tiny_encoder(tmp_path / "encoder")
        assert SentenceEncoder(places["encoder"]).embedding_dimension == CONFIG["hidden_size"]
    out = tmp_path / f"out.{suffix}"
    given = [str(places.get(each, each)) for each in arguments]
    assert main(["plot", *given, "-o", str(out), "--backend", "numpy"]) == 0
    assert out.read_bytes().startswith(start)


def test_labels_for_other_texts(folder, tmp_path, capsys):
    (tmp_path / "labels").write_text("one\n")
    given = ["--text", "a", "--text", "b", "--labels", str(tmp_path / "labels"), "-o", str(tmp_path / "out.png")]
    assert main(["plot", "embeddings", str(save_tiny_encoder(tmp_path / "encoder")), *given]) == 1
    assert "labels has 1 lines, expected a label for each of 2 texts" in capsys.readouterr().err


@pytest.mark.parametrize(("lines", "message"), [
    (['{"probabilities": [0.5, "x"], "label": 1}'], "line 1: '{"),
    (['{"probabilities": 1, "label": 1}'], "line 1: '{"),
    (['{"probabilities": [0.5, 0.5], "label": "1"}'], "line 1: label is '1', expected {"),
    (['{"probabilities": [0.5, 0.5], "label": true}'], "line 1: label is True, expected {"),
    (['{"probabilities": [0.5, 0.5], "label": 0}', "[]"], "line 2: '[]', expected {"),
    (['{"probabilities": [0.5, 0.5], "label": 0}', '{"probabilities": [1], "label": 0}'], "different numbers of"),
    ([], "holds no texts"),
])  # fmt: skip
def test_wrong_lines_of_probabilities(tmp_path, capsys, lines, message):
    (tmp_path / "chances").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    assert main(["plot", "calibration", str(tmp_path / "chances"), "-o", str(tmp_path / "out.png")]) == 1
    printed = capsys.readouterr().err
    assert message in printed and str(tmp_path / "chances") in printed
