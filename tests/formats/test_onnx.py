"""ONNX models equal the encoders that they were written from, in every family, in ONNX Runtime and above it."""

import json
import os
import shutil
import subprocess

import numpy as np
import pytest

from bertcore import SentenceEncoder
from bertcore.cli import main
from bertcore.formats.export import export_onnx
from tests.formats.models import TEXTS, write_model
from tests.tiny_families import runnable

onnx = pytest.importorskip("onnx")
pytestmark = pytest.mark.parity  # its packages come with the extra
MEMORIES = {"transfo-xl-wt103", "xlnet-base-cased"}
KINDS = {"roberta-base": "BPE", "deberta-base": "BPE", "mpnet-base": "BPE", "xlm-roberta-base": "Unigram"}
# Beyond the batch of the pass that notes the graph, and beyond ModernBERT's windows.
LONG = [*TEXTS, "many different words, " * 22]
NARROW = {"hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 96, "num_hidden_layers": 3}


def run(folder, encoder, texts):
    """Return the vectors and hidden states of ONNX Runtime, and the inputs."""
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(folder / "onnx" / "model.onnx")
    batch = encoder.tokenizer(texts, padding=True, return_tensors="np")
    names = [each.name for each in session.get_inputs()]
    given = {name: np.asarray(batch.get(name, np.zeros_like(batch["input_ids"])), np.int64) for name in names}
    hidden, vectors = session.run(["last_hidden_state", "sentence_embedding"], given)
    return vectors, hidden, given


@pytest.mark.parametrize("preset", sorted({*runnable(), "jina-embeddings-v2-small-en"} - MEMORIES))
def test_every_family_is_equal_in_onnx_runtime(tmp_path, preset):
    folder = write_model(tmp_path / "model", preset, KINDS.get(preset, "WordPiece"))
    export_onnx(folder, tmp_path / "out")
    encoder = SentenceEncoder(folder)
    vectors, hidden, given = run(tmp_path / "out", encoder, LONG)
    np.testing.assert_allclose(vectors, encoder.encode(LONG), atol=1e-4)
    mask = given["attention_mask"][:, :, None]
    expected = encoder.model(**given).last_hidden_state
    atol = 3e-4 * np.abs(expected).max()  # MobileBERT, which has no norms, comes up to 8e-5: ids differ between runs
    np.testing.assert_allclose(hidden * mask, expected * mask, atol=atol)
    assert ("token_type_ids" in given) == (encoder.model.spec.type_vocab_size > 1)
    model = onnx.load(tmp_path / "out" / "onnx" / "model.onnx")
    assert {each.version for each in model.opset_import} == {17}


@pytest.mark.parametrize("pooling", ["mean", "cls", "max", "lasttoken", "weightedmean", "mean_sqrt_len_tokens"])
def test_every_pooling_is_equal(tmp_path, pooling):
    folder = write_model(tmp_path / "model", "bert-base-uncased", pooling=pooling, **NARROW)
    export_onnx(folder, tmp_path / "out")
    encoder = SentenceEncoder(folder)
    np.testing.assert_allclose(run(tmp_path / "out", encoder, TEXTS)[0], encoder.encode(TEXTS), atol=1e-5)


def test_large_weights_stand_beside_the_model(tmp_path):
    folder = write_model(tmp_path / "model", "bert-base-uncased", **NARROW)
    export_onnx(folder, tmp_path / "out", most_bytes=1000)
    assert (tmp_path / "out" / "onnx" / "model.onnx_data").stat().st_size > 100_000
    encoder = SentenceEncoder(folder)
    np.testing.assert_allclose(run(tmp_path / "out", encoder, TEXTS)[0], encoder.encode(TEXTS), atol=1e-5)


def test_command_writes_the_files_that_others_read(tmp_path, capsys):
    folder = write_model(tmp_path / "model", "bert-base-uncased", **NARROW)
    assert main(["export", str(folder), str(tmp_path / "out"), "--format", "onnx"]) == 0
    names = {file.relative_to(tmp_path / "out").as_posix() for file in (tmp_path / "out").rglob("*") if file.is_file()}
    assert {"onnx/model.onnx", "config.json", "tokenizer.json", "tokenizer_config.json", "modules.json"} <= names
    assert "special_tokens_map.json" in names and not any(name.endswith(".safetensors") for name in names)
    with pytest.raises(ValueError, match="out holds files"):
        export_onnx(str(folder), str(tmp_path / "out"))
    assert main(["export", str(folder), str(tmp_path / "x"), "--format", "onnx", "--precision", "f16"]) != 0


@pytest.mark.parametrize(
    "preset, message",
    [("xlnet-base-cased", "the model is xlnet, expected a family without memories"),
     ("transfo-xl-wt103", "the model is transfo-xl, expected a family without memories")],
)  # fmt: skip
def test_family_with_memories_is_refused(tmp_path, preset, message):
    folder = write_model(tmp_path / "model", preset)
    with pytest.raises(ValueError, match=message):
        export_onnx(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_fastembed_gives_equal_vectors(tmp_path):
    fastembed = pytest.importorskip("fastembed")
    common = pytest.importorskip("fastembed.common.model_description")
    folder = write_model(tmp_path / "model", "bert-base-uncased", **NARROW)
    export_onnx(folder, tmp_path / "out")
    source = common.ModelSource(hf="bertcore/small")
    kind = common.PoolingType.MEAN
    options = {"pooling": kind, "normalization": True, "sources": source, "dim": 64, "model_file": "onnx/model.onnx"}
    fastembed.TextEmbedding.add_custom_model(model="bertcore/small", **options)
    peer = fastembed.TextEmbedding("bertcore/small", specific_model_path=str(tmp_path / "out"))
    np.testing.assert_allclose(np.array(list(peer.embed(TEXTS))), SentenceEncoder(folder).encode(TEXTS), atol=1e-5)


SCRIPT = """
import { AutoModel, AutoTokenizer, env } from '@huggingface/transformers';
env.allowRemoteModels = false; env.localModelPath = process.argv[2];
const tokenizer = await AutoTokenizer.from_pretrained('out');
const model = await AutoModel.from_pretrained('out', { dtype: 'fp32' });
const texts = JSON.parse(process.argv[3]);
const { sentence_embedding } = await model(await tokenizer(texts, { padding: true, truncation: true }));
console.log(JSON.stringify(sentence_embedding.tolist()));
"""


def test_transformers_js_gives_equal_vectors(tmp_path, monkeypatch):
    """BERTCORE_NODE_MODULES is the folder of node_modules that has @huggingface/transformers."""
    modules = os.environ.get("BERTCORE_NODE_MODULES")
    if modules is None or shutil.which("node") is None:
        pytest.skip("needs node and @huggingface/transformers in BERTCORE_NODE_MODULES")
    folder = write_model(tmp_path / "model", "bert-base-uncased", **NARROW)
    export_onnx(folder, tmp_path / "out")
    (tmp_path / "node_modules").symlink_to(modules)
    (tmp_path / "run.mjs").write_text(SCRIPT, encoding="utf-8")
    texts = [text for text in TEXTS if text]
    command = ["node", "run.mjs", str(tmp_path), json.dumps(texts)]
    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert answer.returncode == 0, answer.stderr
    found = np.array(json.loads(answer.stdout.splitlines()[-1]))
    np.testing.assert_allclose(found, SentenceEncoder(folder).encode(texts), atol=1e-5)
