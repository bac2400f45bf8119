"""bertcore compare: the family side by side."""

import csv
import importlib.util
import io
import json

import pytest

from bertcore.cli import info, main
from bertcore.cli.doctor import cpu_model
from bertcore.kernels import get_num_threads
from bertcore.kernels._numba import LEVEL
from bertcore.models import cost
from bertcore.plots import models
from bertcore.presets import PRESETS, preset_config
from tests.tiny_bert import CONFIG

NAMES = ["bert-base-uncased", "mini-bert"]


def shown(capsys, *arguments):
    assert main(["compare", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_a_table(capsys):
    lines = shown(capsys, *NAMES).splitlines()
    assert lines[0].split()[:3] == ["model", "year", "layers"]
    cells = ("bert-base-uncased 2018 12 768 3072 12 30,522 learned absolute 512 109.5 23.8 174.6 437.9 134.0 84.6",)
    cells += ("MLM + NSP the encoder that the others vary general a baseline: labels, entities and answers English",)
    assert " ".join(lines[1].split()) == " ".join(cells)
    assert lines[2].split()[0] == "mini-bert"
    assert "a sequence of 128 tokens" in lines[-1]


def test_all_presets_are_the_default(capsys):
    assert [row["name"] for row in json.loads(shown(capsys, "--json"))] == list(PRESETS)


def test_csv_and_json_hold_numbers_in_units_of_one(capsys, encoder_folder):
    (line, folder) = csv.DictReader(io.StringIO(shown(capsys, "mini-bert", encoder_folder, "--csv", "--length", "32")))
    assert list(line) == [*info.COLUMNS, "mnli_m_source", "glue_dev_source"]
    assert (line["parameters"], line["mnli_m"], line["glue_dev"]) == ("2957568", "", "")
    assert int(line["flops_per_token"]) == 2 * 1_327_104 + 3 * 4 * 32 * 192
    assert (folder["name"], folder["year"], folder["use"]) == (str(encoder_folder), "", "")
    assert (folder["position_encoding"], int(folder["positions"])) == ("learned absolute", 40)
    (same,) = json.loads(shown(capsys, "mini-bert", "--json", "--length", "32"))
    assert same["parameters"] == 2_957_568 and same["mnli_m"] is same["glue_dev"] is None


def test_positions_are_read_from_the_config(capsys, tmp_path):
    expected = {
        "mpnet-base": "learned absolute + relative", "xlnet-base-cased": "relative", "sentence-t5-base": "relative",
        "deberta-v3-base": "relative", "modernbert-base": "rotary", "jina-embeddings-v2-base-en": "ALiBi",
    }  # fmt: skip
    configs = {
        "sinusoidal": preset_config("distilbert-base-uncased") | {"sinusoidal_pos_embds": True},
        "learned absolute + relative": preset_config("deberta-base") | {"position_biased_input": True},
        "none": preset_config("deberta-base") | {"relative_attention": False, "pos_att_type": []},
    }
    for kind, config in configs.items():
        (tmp_path / f"{kind}.json").write_text(json.dumps(config))
        expected[str(tmp_path / f"{kind}.json")] = kind
    rows = json.loads(shown(capsys, *expected, "--json"))
    assert {row["name"]: row["position_encoding"] for row in rows} == expected
    lines = shown(capsys, "xlnet-base-cased", "modernbert-base").splitlines()
    assert "32,000 relative no limit 116.7" in " ".join(lines[1].split())
    assert "50,368 rotary 8,192 149.0" in " ".join(lines[2].split())


@pytest.mark.parametrize(("name", "more", "start"), [("a.png", [], b"\x89PNG"), ("a.SVG", ["--log"], b"<?xml")])
def test_a_plot(tmp_path, capsys, name, more, start):
    pytest.importorskip("matplotlib")
    shown(capsys, *NAMES, "--plot", tmp_path / name, *more)
    assert (tmp_path / name).read_bytes().startswith(start)
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_a_plot_without_matplotlib_is_refused_before_anything_is_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["compare", "mini-bert", "--plot", str(tmp_path / "family.png")]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "bertcore compare: --plot needs matplotlib, which is not installed: pip install matplotlib\n"


@pytest.fixture
def drawn(monkeypatch):
    """The lengths of the bars in each panel of the figures that compare draws."""
    pytest.importorskip("matplotlib")
    found, draw = [], models.models_side_by_side

    def record(*arguments, **options):
        figure = draw(*arguments, **options)
        found.extend([bar.get_width() for bar in place.patches] for place in figure.axes)
        return figure

    monkeypatch.setattr(models, "models_side_by_side", record)
    return found


@pytest.mark.slow
def test_training_costs(capsys, tmp_path, monkeypatch, drawn):
    monkeypatch.setenv("BERTCORE_BACKEND", "numpy")  # in the processes that are measured, which load no compiler
    config = {**CONFIG, "num_hidden_layers": 1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    row = json.loads(
        shown(
            capsys, str(tmp_path), "--training", "--batch", "2", "--length", "5", "--json", "--plot", tmp_path / "a.svg"
        )
    )[0]
    assert drawn == [[row["peak"]], [row["checkpointed_peak"]], [row["tokens_per_second"]]]
    assert row["weights"] == row["gradients"] == row["moments"] / 2 < row["peak"]
    assert row["tokens_per_second"] > 0 and row["checkpointed_peak"] > 0


@pytest.fixture
def short_rounds(monkeypatch):
    monkeypatch.setattr(cost, "ROUNDS", 3)


def test_passes_are_measured(capsys, tmp_path, encoder_folder, short_rounds, drawn):
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "config.json").write_text(json.dumps(CONFIG))
    low = tmp_path / "low"
    assert main(["quantize", str(encoder_folder), str(low), "--dtype", "int8", "--backend", "numpy"]) == 0
    capsys.readouterr()
    arguments = (encoder_folder, low, bare, "--measure", "--batch", "2", "--length", "40", "--backend", "numpy")
    loaded, int8, random = rows = json.loads(shown(capsys, *arguments, "--json", "--plot", tmp_path / "a.png"))
    assert drawn[0] == [row["latency"] * 1e3 for row in rows]
    assert drawn[1:] == [[row[key] for row in rows] for key in ("resident", "on_disk")]
    assert [row["weights"] for row in rows] == ["loaded", "loaded", "random"]
    for row in rows:
        assert 0 < row["fastest"] <= row["latency"] <= row["slowest"] and row["resident"] > 0
        assert row["tokens_per_second"] == pytest.approx(80 / row["latency"])
        assert (row["threads"], row["backend"], row["level"]) == (get_num_threads(), "numpy", "") and row["cpu"]
    for row, folder in ((loaded, encoder_folder), (int8, low)):
        assert row["on_disk"] * 1e6 == (folder / "model.safetensors").stat().st_size
    assert random["on_disk"] * 1e6 == pytest.approx(4 * random["parameters"])


def test_table_of_passes_names_the_machine(capsys, short_rounds):
    lines = shown(capsys, "mini-bert", "--measure", "--length", "7").splitlines()
    assert lines[0].split()[:2] == ["model", "weights"] and lines[1].split()[:2] == ["mini-bert", "random"]
    assert lines[-2] == "passes of 1 sequence of 7 tokens, 3 rounds in turns"
    assert lines[-1].startswith(f"{cpu_model()}, {get_num_threads()} thread")
    assert lines[-1].endswith(f"numba for {LEVEL.name}")


def test_unloadable_model_is_reported(capsys, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "model.safetensors").write_bytes(b"no weights")
    assert main(["compare", str(tmp_path), "--measure", "--length", "4"]) == 1
    assert "model.safetensors" in capsys.readouterr().err
