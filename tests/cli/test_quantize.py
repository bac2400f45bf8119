"""bertcore quantize: checkpoints of low precision, whole or not at all."""

import errno
import os
import shutil

import numpy as np
import pytest

from bertcore import AutoModel, AutoModelForMaskedLM, SentenceEncoder, use_backend
from bertcore.checkpoint import open_checkpoint, read_config
from bertcore.cli import main
from bertcore.tasks import low_precision
from tests.checkpoint.files import write_tensors
from tests.tiny_bert import random_texts, write_modules
from tests.tolerances import assert_same_arrays

TEXTS = random_texts(12)


def run(*arguments):
    return main(["quantize", "--backend", "numpy", *map(str, arguments)])


def files(folder):
    return {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize("dtype", ["int8", "bfloat16"])
def test_a_sentence_encoder(encoder_folder, tmp_path, capsys, dtype):
    target = tmp_path / "new" / "low"
    assert run(encoder_folder, target, "--dtype", dtype) == 0
    assert f" MB in {dtype}, from 0.1 MB" in capsys.readouterr().out
    assert files(target) == files(encoder_folder)
    assert [entry.name for entry in target.parent.iterdir()] == ["low"]  # nothing is left beside it
    with use_backend("numpy"):
        expected = SentenceEncoder(encoder_folder, dtype=dtype).encode(TEXTS)
        encoder = SentenceEncoder(target)
        assert encoder.model.dtype == dtype
        np.testing.assert_array_equal(encoder.encode(TEXTS), expected)


def test_int8_is_the_default(encoder_folder, tmp_path):
    assert run(encoder_folder, tmp_path / "low") == 0
    assert read_config(tmp_path / "low")["quantization_config"]["format"] == "int-quantized"


def test_heads_without_a_class_stay_and_copies_of_tied_tensors_go(masked_lm_folder, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(masked_lm_folder, source)
    arrays = dict(open_checkpoint(source))
    arrays["cls.predictions.decoder.weight"] = arrays["bert.embeddings.word_embeddings.weight"]
    arrays["cls.seq_relationship.weight"] = np.ones((2, 39), np.float32)
    write_tensors(source / "model.safetensors", arrays)
    assert run(source, tmp_path / "low") == 0
    low = open_checkpoint(tmp_path / "low")
    assert "cls.predictions.decoder.weight" not in low
    assert low["cls.seq_relationship.weight"].dtype == np.float32
    ignored = read_config(tmp_path / "low")["quantization_config"]["ignore"]
    assert ignored == ["cls.predictions.decoder", "cls.seq_relationship"]
    AutoModelForMaskedLM.from_pretrained(tmp_path / "low")


def test_calibrated_on_texts(encoder_folder, tmp_path):
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(TEXTS * 4) + "\n", encoding="utf-8")
    assert run(encoder_folder, tmp_path / "plain") == 0
    assert run(encoder_folder, tmp_path / "low", "--calibrate", texts) == 0
    assert files(tmp_path / "low") == files(encoder_folder)
    before, after = open_checkpoint(encoder_folder), open_checkpoint(tmp_path / "low")
    smoothed = [name.removesuffix("_input_scale") for name in after if name.endswith("_input_scale")]
    assert all(after[name].dtype == np.int8 for name in smoothed)
    expected = "int-quantized-smoothed" if smoothed else "int-quantized"
    assert read_config(tmp_path / "low")["quantization_config"]["format"] == expected
    query = next(name for name in before if name.endswith("layer.1.attention.self.query.weight"))
    plain = open_checkpoint(tmp_path / "plain")[query]
    assert (after[query] != plain).mean() > 0
    with use_backend("numpy"):
        exact, found, uncalibrated = (
            SentenceEncoder(folder).encode(TEXTS) for folder in (encoder_folder, tmp_path / "low", tmp_path / "plain")
        )
        assert np.square(found - exact).sum() < np.square(uncalibrated - exact).sum()
        model = AutoModel.from_pretrained(tmp_path / "low")
        model.save_pretrained(tmp_path / "again")
    again = open_checkpoint(tmp_path / "again")
    assert_same_arrays(again, after)
    assert read_config(tmp_path / "again")["quantization_config"]["format"] == expected


def test_calibration_is_refused(encoder_folder, tmp_path, capsys):
    (tmp_path / "latin").write_bytes(b"good\ncaf\xe9\n")
    assert run(encoder_folder, tmp_path / "low", "--calibrate", tmp_path / "latin") == 1
    assert "line 2: byte 4 (0xe9) is not UTF-8" in capsys.readouterr().err
    assert not (tmp_path / "low").exists()


def test_an_empty_folder_is_taken(encoder_folder, tmp_path):
    (tmp_path / "target").mkdir()
    assert run(encoder_folder, tmp_path / "target") == 0
    assert files(tmp_path / "target") == files(encoder_folder)


def test_where_it_may_not_write(encoder_folder, tmp_path, capsys):
    (tmp_path / "papers").mkdir()
    (tmp_path / "papers" / "a.txt").write_text("")
    (tmp_path / "link").symlink_to(encoder_folder)
    expected = {
        encoder_folder: "is the model itself",
        tmp_path / "link": "is the model itself",
        tmp_path / "papers": "holds files: give a new or empty folder",
        tmp_path / "papers" / "a.txt": "is not a folder",
    }
    before = {file: (encoder_folder / file).read_bytes() for file in files(encoder_folder)}
    for target, problem in expected.items():
        assert run(encoder_folder, target) == 1
        assert problem in capsys.readouterr().err
    assert {file: (encoder_folder / file).read_bytes() for file in files(encoder_folder)} == before
    assert files(tmp_path / "papers") == {"a.txt"}


def test_quantized_model_is_refused(encoder_folder, tmp_path, capsys):
    assert run(encoder_folder, tmp_path / "low") == 0
    assert run(tmp_path / "low", tmp_path / "again", "--dtype", "bfloat16") == 1
    assert "is in int8, expected the model that it was made from" in capsys.readouterr().err
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize("path", ["../victim", "/etc", "a/../../victim"])
def test_no_module_may_lie_outside(encoder_folder, tmp_path, capsys, path):
    source = shutil.copytree(encoder_folder, tmp_path / "source")
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "secret.txt").write_text("secret")
    kinds = {"": "Transformer", "1_Pooling": "Pooling", path: "Normalize"}
    write_modules(source, {path: f"sentence_transformers.models.{kind}" for path, kind in kinds.items()})
    assert run(source, tmp_path / "new" / "low") == 1
    assert f"names the path '{path}', expected a folder inside" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("place", ["notes.txt", "model.safetensors", "1_Pooling"])
def test_links_out_of_the_folder_are_refused(encoder_folder, tmp_path, capsys, place):
    source = shutil.copytree(encoder_folder, tmp_path / "source")
    if (source / place).exists():
        shutil.move(source / place, tmp_path / "elsewhere")
    else:
        (tmp_path / "elsewhere").write_text("secret")
    (source / place).symlink_to(tmp_path / "elsewhere")
    assert run(source, tmp_path / "low") == 1
    assert f"{source / place} is a link out of the model's folder" in capsys.readouterr().err
    assert not (tmp_path / "low").exists()


def test_a_snapshot_of_the_hub_s_cache_consists_of_links(encoder_folder, tmp_path):
    snapshot = shutil.copytree(encoder_folder, tmp_path / "models--a--b" / "snapshots" / "abc")
    blobs = tmp_path / "models--a--b" / "blobs"
    blobs.mkdir()
    for number, file in enumerate(file for file in snapshot.rglob("*") if file.is_file()):
        shutil.move(file, blobs / str(number))
        file.symlink_to(blobs / str(number))
    assert run(snapshot, tmp_path / "low") == 0
    assert files(tmp_path / "low") == files(encoder_folder)


@pytest.mark.parametrize("exists", [False, True], ids=["new", "empty"])
def test_a_failure_leaves_nothing(encoder_folder, tmp_path, monkeypatch, capsys, exists):
    target = tmp_path / "target"
    if exists:
        target.mkdir()

    def fail(*args):
        raise OSError("disk full")

    monkeypatch.setattr(low_precision, "_copy_files", fail)
    assert run(encoder_folder, target, "--dtype", "bfloat16") == 1
    assert "disk full" in capsys.readouterr().err
    assert [entry.name for entry in tmp_path.iterdir()] == (["target"] if exists else [])
    assert not exists or not any(target.iterdir())


@pytest.mark.parametrize("limit", [16, 20_000], ids=["copies", "weights"])
def test_a_full_disk_names_the_folder_that_was_given(encoder_folder, tmp_path, capsys, limit):
    resource = pytest.importorskip("resource")
    sizes = [file.stat().st_size for file in encoder_folder.rglob("*") if file.suffix != ".safetensors"]
    assert 16 < max(sizes) < 20_000 < (encoder_folder / "model.safetensors").stat().st_size / 4
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        assert run(encoder_folder, tmp_path / "target") == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert capsys.readouterr().err == f"bertcore quantize: {tmp_path / 'target'}: {os.strerror(errno.EFBIG)}\n"
    assert not any(tmp_path.iterdir())


def test_nan_weights_are_named(masked_lm_folder, tmp_path, capsys):
    source = tmp_path / "source"
    shutil.copytree(masked_lm_folder, source)
    arrays = {name: array.copy() for name, array in open_checkpoint(source).items()}
    arrays["bert.encoder.layer.0.output.dense.weight"][1, 1] = np.inf
    write_tensors(source / "model.safetensors", arrays)
    assert run(source, tmp_path / "low") == 1
    assert "bert.encoder.layer.0.output.dense.weight: weight[1] holds inf" in capsys.readouterr().err
    assert not (tmp_path / "low").exists()


@pytest.mark.parity
def test_transformers_reads_bfloat16(encoder_folder, tmp_path):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    assert run(encoder_folder, tmp_path / "low", "--dtype", "bfloat16") == 0
    theirs, report = transformers.AutoModel.from_pretrained(tmp_path / "low", output_loading_info=True)
    assert theirs.dtype == torch.bfloat16 and not any(report.values())
    with use_backend("numpy"):
        ours = AutoModel.from_pretrained(tmp_path / "low").state_dict()
    for name, parameter in theirs.named_parameters():
        rounded = parameter.detach().float().numpy()
        np.testing.assert_array_equal(ours[name].astype(rounded.dtype), rounded) if "bias" not in name else None
