"""GGUF files: written and read back for every architecture, hostile ones refused, and equal to the package gguf."""

import json
import os
import struct

import numpy as np
import pytest

from bertcore import AutoModel, AutoTokenizer, CrossEncoder, SentenceEncoder
from bertcore.checkpoint import CheckpointError
from bertcore.cli import main
from bertcore.formats import gguf_model
from bertcore.formats.export import export_gguf
from bertcore.formats.gguf_file import KINDS, GGUFFile, dequantized, quantized, write_gguf
from bertcore.formats.gguf_tokenizer import tokenizer_files
from tests.formats.models import TEXTS, WORDS, write_model
from tests.refusals import refuses
from tests.varied_texts import varied_texts

NARROW = {"hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 96, "num_hidden_layers": 3}
MIXTURE = {
    "activation_function": "gelu", "moe_every_n_layers": 2, "num_experts": 4, "moe_top_k": 2, "n_embd": 64,
    "qkv_proj_bias": True, "mlp_fc1_bias": True, "mlp_fc2_bias": True, "n_head": 2, "n_inner": 96, "n_positions": 64,
}  # fmt: skip
# architecture -> preset, tokenizer, pooling, keys of the config
CASES = {
    "bert": ("bert-base-uncased", "WordPiece", "mean", NARROW),
    "bert of RoBERTa": ("roberta-base", "BPE", "cls", NARROW),
    "bert of XLM-R": ("xlm-roberta-base", "Unigram", "mean", NARROW),
    "bert of DistilBERT": (
        "distilbert-base-uncased", "WordPiece", "mean", {"dim": 64, "n_heads": 2, "hidden_dim": 96}
    ),
    "nomic-bert": ("nomic-embed-text-v1", "WordPiece", "mean", {"n_embd": 64, "n_head": 2, "n_inner": 96}),
    "nomic-bert-moe": ("nomic-embed-text-v1", "Unigram", "mean", MIXTURE),
    "jina-bert-v2": ("jina-embeddings-v2-small-en", "WordPiece", "mean", NARROW),
    "jina-bert-v3": ("jina-embeddings-v3", "Unigram", "mean", NARROW),
    "modern-bert": ("modernbert-base", "BPE", "cls", NARROW | {"num_hidden_layers": 4}),
    "eurobert": ("eurobert-210m", "BPE", "lasttoken", NARROW | {"num_key_value_heads": 1}),
}  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(gguf_model, "writable_cache_folder", lambda: tmp_path / "cache")  # not that of kernels


def same(first, second, least):
    """Return whether the cosines of embeddings of the same texts are at least `least`."""
    first, second = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (first, second))
    return (first * second).sum(axis=1).min() >= least


def write_case(folder, case):
    """Write the model of a case; return the folder."""
    preset, kind, pooling, keys = CASES[case]
    write_model(folder, preset, kind, pooling=pooling, **keys)
    if case == "nomic-bert-moe":  # llama.cpp has no bias of experts
        model = AutoModel.from_pretrained(folder, add_pooling_layer=False)
        tensors = {n: array * (not n.endswith("experts.bias")) for n, array in model.state_dict().items()}
        model.load_state_dict(tensors)
        model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("case", CASES)
def test_written_file_is_read_back(tmp_path, case):
    folder, pooling = write_case(tmp_path / "model", case), CASES[case][2]
    encoder, files = SentenceEncoder(folder), {name: tmp_path / f"{name}.gguf" for name in ("f32", "q8_0")}
    for precision, file in files.items():
        export_gguf(folder, file, precision)
    opened = GGUFFile(files["f32"])
    assert opened.metadata["general.architecture"] == case.split()[0]
    expected = encoder.encode(TEXTS)
    exact = SentenceEncoder(files["f32"])
    assert exact.settings.pooling == (pooling,)
    assert [list(exact.tokenizer(text)["input_ids"]) for text in TEXTS] == [
        list(encoder.tokenizer(text)["input_ids"]) for text in TEXTS
    ]
    np.testing.assert_allclose(exact.encode(TEXTS), expected, atol=2e-5)
    low = SentenceEncoder(files["q8_0"])
    assert low.dtype == ("float32" if case == "nomic-bert-moe" else "int8_weight_only")
    assert same(low.encode(TEXTS), expected, 0.99)
    if low.dtype != "float32":  # exact in float32, though scales are float16
        name = "blk.1.attn_output.weight"
        wide = AutoModel.from_pretrained(files["q8_0"], dtype="float32", add_pooling_layer=False).state_dict()
        assert any(np.array_equal(array, GGUFFile(files["q8_0"]).read(name)) for array in wide.values())


@pytest.mark.parametrize(
    "preset, kind", [("bert-base-uncased", "WordPiece"), ("roberta-base", "BPE"), ("modernbert-base", "BPE")]
)
def test_reranker_keeps_its_head(tmp_path, preset, kind):
    own = {"classifier_pooling": "mean"} if preset == "modernbert-base" else {}
    folder = write_model(tmp_path / "model", preset, kind, labels=1, **NARROW, **own)
    export_gguf(folder, tmp_path / "rank.gguf", "f32")
    pairs = [(TEXTS[0], TEXTS[1]), (TEXTS[1], TEXTS[3])]
    found, expected = (CrossEncoder(each).predict(pairs) for each in (tmp_path / "rank.gguf", folder))
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("count", [800, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["WordPiece", "BPE", "Unigram"])
def test_tokens_are_those_of_the_original(tmp_path, kind, count):
    preset = {"WordPiece": "bert-base-uncased", "BPE": "roberta-base", "Unigram": "xlm-roberta-base"}[kind]
    folder = write_model(tmp_path / "model", preset, kind, **NARROW)
    export_gguf(folder, tmp_path / "model.gguf", "f16")
    texts = varied_texts(count)
    found, expected = (
        AutoTokenizer.from_pretrained(each, model_max_length=10**6)(texts)["input_ids"]
        for each in (tmp_path / "model.gguf", folder)
    )
    assert found == expected


def test_file_that_changes_is_unpacked_again(tmp_path):
    file, other = tmp_path / "x.gguf", write_model(tmp_path / "model", "bert-base-uncased", **NARROW)
    export_gguf(other, file, "f32")
    first = SentenceEncoder(str(file))
    assert SentenceEncoder(file).folder == first.folder and first.encode("a").shape == (64,)
    wide = write_model(tmp_path / "wide", "bert-base-uncased", **NARROW | {"hidden_size": 96})
    export_gguf(wide, file, "f32")
    assert SentenceEncoder(tmp_path).encode("a").shape == (96,)  # the only one in its folder
    export_gguf(other, tmp_path / "y.gguf", "f32")
    refuses(CheckpointError, r"holds x.gguf, y.gguf, expected the name of one file", SentenceEncoder, tmp_path)


def test_command_writes_a_file(tmp_path, capsys):
    folder = write_model(tmp_path / "model", "bert-base-uncased", **NARROW)
    assert main(["export", str(folder), str(tmp_path / "x.gguf"), "--format", "gguf", "--precision", "f16"]) == 0
    assert GGUFFile(tmp_path / "x.gguf").info["token_embd.weight"].kind == "F16"
    assert main(["export", str(folder), str(tmp_path / "y"), "--precision", "q4_0"]) != 0
    assert main(["embed", str(tmp_path / "x.gguf"), "--text", "hello"]) == 0
    capsys.readouterr()
    for command in ("classify", "rerank query"):
        name, *more = command.split()
        assert main([name, str(tmp_path / "x.gguf"), *more, "--text", "a"]) == 1
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and f"{tmp_path / 'x.gguf'} " in said


# ---- Hostile files ---------------------------------------------------------------------------------------------------


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def head(tensors=0, entries=0, version=3, magic=b"GGUF"):
    return magic + struct.pack("<IQQ", version, tensors, entries)


def number(key, value):
    return text(key) + struct.pack("<II", 4, value)


def tensor(name, shape, kind=0, offset=0):
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


DATA = bytes(4096)
HOSTILE = {
    "not GGUF": (b"version https://git-lfs", "does not begin with GGUF"),
    "empty": (b"", "does not begin with GGUF"),
    "cut": (head()[:9], "it ends within tensors"),
    "version": (head(version=1), "its version is 1, expected 2 or 3"),
    "big endian": (head(version=3 << 24), "its version is 50331648"),
    "tensors": (head(tensors=1 << 60), f"it has {1 << 60} tensors"),
    "entries": (head(entries=1 << 40) + DATA, f"it has {1 << 40} entries of metadata"),
    "key": (head(entries=1) + struct.pack("<Q", 1 << 62) + DATA, "bytes of the key of an entry"),
    "text": (head(entries=1) + text("a") + struct.pack("<IQ", 8, 1 << 50), "bytes of a, more than it can hold"),
    "type": (head(entries=1) + text("a") + struct.pack("<I", 77) + DATA, "a has the type 77"),
    "list": (head(entries=1) + text("a") + struct.pack("<IIQ", 9, 4, 1 << 61), "numbers of a, more than it can hold"),
    "texts": (head(entries=1) + text("a") + struct.pack("<IIQ", 9, 8, 1 << 30) + DATA, "texts of a, more than"),
    "lists": (head(entries=1) + text("a") + struct.pack("<IIQ", 9, 9, 1) + DATA, "a is a list of the type 9"),
    "twice": (head(entries=2) + number("a", 1) + number("a", 1), "the key 'a' occurs twice"),
    "UTF-8": (head(entries=1) + struct.pack("<Q", 1) + b"\xff" + DATA, "is not UTF-8"),
    "alignment": (
        head(entries=1) + number("general.alignment", 24),
        "general.alignment is 24, expected a power of two",
    ),
    "no alignment": (head(entries=1) + number("general.alignment", 0), "general.alignment is 0"),
    "axes": (head(tensors=1) + tensor("t", (1,) * 9) + DATA, "tensor t has 9 axes"),
    "kind": (head(tensors=1) + tensor("t", (32,), kind=99) + DATA, "tensor t has the type 99"),
    "shape": (head(tensors=1) + tensor("t", (1 << 40, 1 << 40)) + DATA, "which no array can have"),
    "size": (head(tensors=1) + tensor("t", (1 << 20,)) + DATA, "tensor t ends at 4194"),
    "rows": (head(tensors=1) + tensor("t", (33,), kind=8) + DATA, "expected a multiple of 32 for Q8_0"),
    "offset": (head(tensors=1) + tensor("t", (1,), offset=7) + DATA, "expected a multiple of 32"),
    "far offset": (head(tensors=1) + tensor("t", (1,), offset=1 << 63) + DATA, "tensor t ends at"),
    "overlap": (head(tensors=2) + tensor("t", (64,)) + tensor("u", (64,), offset=32) + DATA, "within another one"),
    "same names": (head(tensors=2) + tensor("t", (8,)) + tensor("t", (8,), offset=32) + DATA, "'t' occurs twice"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_broken_file_is_refused(tmp_path, case):
    content, message = HOSTILE[case]
    (tmp_path / "x.gguf").write_bytes(content)
    with pytest.raises(CheckpointError) as error:
        SentenceEncoder(tmp_path / "x.gguf")
    assert message in str(error.value) and "x.gguf is not an intact GGUF file" in str(error.value)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    export_gguf(write_model(folder / "model", "bert-base-uncased", **NARROW), folder / "x.gguf", "f32")
    return folder / "x.gguf"


def test_file_cut_anywhere_is_refused(plain, tmp_path):
    content = plain.read_bytes()
    for size in np.random.default_rng(0).integers(0, len(content) - 64, 60):
        (tmp_path / "x.gguf").write_bytes(content[:size])
        refuses(CheckpointError, None, SentenceEncoder, tmp_path / "x.gguf")


ODD = {  # changes of a key's value, or of a tensor (None removes it) -> a part of the error
    "general.architecture": ("llama", "general.architecture is 'llama', supported is 'bert'"),
    "bert.block_count": (1 << 31, "bert.block_count is 2147483648"),
    "bert.embedding_length": ("wide", "bert.embedding_length is 'wide', expected a positive integer"),
    "bert.attention.head_count": (3, "expected a multiple of num_attention_heads 3"),
    "bert.pooling_type": (np.arange(2), "bert.pooling_type is [0, 1], supported is 0"),
    "bert.attention.causal": (True, "has causal attention"),
    "tokenizer.ggml.model": ("rwkv", "tokenizer.ggml.model is 'rwkv'"),
    "tokenizer.ggml.tokens": ([], "tokenizer.ggml.tokens is []"),
    "tokenizer.ggml.token_type": (np.ones(3, np.int32), "tokenizer.ggml.token_type is not a list of 400 numbers"),
    "tokenizer.ggml.unknown_token_id": (4000, "tokenizer.ggml.unknown_token_id is 4000"),
    "tokenizer.ggml.normalizer.lowercase": (["x"] * 9999, "', 'x'], expected true or false"),
    "blk.1.attn_q.weight": (None, "lacks the tensors blk.1.attn_q.weight"),
    "blk.0.attn_q.bias": (np.zeros(63, np.float32), "blk.0.attn_q.bias has the shape [63], expected [64]"),
    "token_embd.weight": (np.zeros((8, 64), np.float32), "expected at most 8, the rows of token_embd"),
    "blk.9.attn_q.weight": (np.zeros((64, 64), np.float32), "has tensors that its architecture does not"),
}


@pytest.mark.parametrize("key", ODD)
def test_contradicting_file_is_refused(plain, tmp_path, key):
    value, message = ODD[key]
    opened = GGUFFile(plain)
    metadata, tensors = dict(opened.metadata), {name: ("F32", opened.read(name)) for name in opened.info}
    if key in tensors or key.startswith("blk."):
        tensors[key] = ("F32", value)
    else:
        metadata[key] = value
    tensors = {name: each for name, each in tensors.items() if each[1] is not None}
    write_gguf(tmp_path / "x.gguf", metadata, tensors)
    with pytest.raises(CheckpointError) as error:
        SentenceEncoder(tmp_path / "x.gguf")
    assert message in str(error.value) and len(str(error.value)) < 2100


def test_tokens_that_occur_twice_are_refused(plain, tmp_path):
    opened = GGUFFile(plain)
    tokens = [*opened.metadata["tokenizer.ggml.tokens"]]
    tokens[300] = tokens[301]
    changed = {**opened.metadata, "tokenizer.ggml.tokens": tokens}
    write_gguf(tmp_path / "x.gguf", changed, {name: ("F32", opened.read(name)) for name in opened.info})
    refuses(CheckpointError, "twice, at 300 and 301", AutoTokenizer.from_pretrained, tmp_path / "x.gguf")


def test_model_without_a_counterpart_is_not_written(tmp_path):
    folder = write_model(tmp_path / "model", "mpnet-base", **NARROW)
    with pytest.raises(ValueError, match=r"model_type is 'mpnet', expected one that llama.cpp has"):
        export_gguf(folder, tmp_path / "x.gguf")
    pooled = write_model(tmp_path / "max", "bert-base-uncased", pooling="max", **NARROW)
    refuses(ValueError, "the encoder pools by max", export_gguf, str(pooled), str(tmp_path / "x.gguf"))
    assert sorted(os.listdir(tmp_path)) == ["cache", "max", "model"] or not (tmp_path / "x.gguf").exists()


# ---- Peers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [number for number, (_, size, _) in KINDS.items() if size > 1])
def test_blocks_are_those_of_gguf(number):
    peer = pytest.importorskip("gguf")
    name, _, dtype = KINDS[number]
    raw = np.random.default_rng(number).integers(0, 256, (3000, dtype.itemsize), np.uint8)
    with np.errstate(all="ignore"):
        expected = peer.quants.dequantize(raw, peer.GGMLQuantizationType[name]).reshape(-1)
    found = dequantized(name, raw.reshape(-1).view(dtype))
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


def test_written_blocks_are_those_of_gguf():
    peer = pytest.importorskip("gguf")
    rows = np.random.default_rng(0).standard_normal((64, 256)).astype(np.float32) * np.logspace(-12, 6, 64)[:, None]
    rows[3] = 0
    expected = peer.quants.quantize(rows.astype(np.float32), peer.GGMLQuantizationType.Q8_0)
    np.testing.assert_array_equal(quantized(rows.astype(np.float32)).view(np.uint8).reshape(64, -1), expected)


@pytest.mark.parametrize("case", CASES)
def test_written_files_have_the_names_of_gguf(tmp_path, case):
    peer = pytest.importorskip("gguf")
    export_gguf(write_case(tmp_path / "model", case), tmp_path / "x.gguf")
    opened = peer.GGUFReader(tmp_path / "x.gguf")
    name = opened.fields["general.architecture"].contents()
    architecture = next(each for each, text in peer.MODEL_ARCH_NAMES.items() if text == name)
    known = {peer.TENSOR_NAMES[each] for each in peer.MODEL_TENSORS[architecture]}
    blocks = {text.replace("{bid}", str(layer)) for text in known for layer in range(8)}
    assert {each.name.rpartition(".")[0] for each in opened.tensors} <= blocks
    assert len(opened.fields["tokenizer.ggml.tokens"].data) == WORDS


def test_vectors_are_those_of_llama_cpp(tmp_path):
    llama_cpp = pytest.importorskip("llama_cpp")
    folder = write_model(tmp_path / "model", "bert-base-uncased", **NARROW)
    export_gguf(folder, tmp_path / "x.gguf")
    llama = llama_cpp.Llama(str(tmp_path / "x.gguf"), embedding=True, verbose=False)
    found = np.array([llama.embed(text) for text in TEXTS])
    assert same(found, SentenceEncoder(folder).encode(TEXTS), 0.995)
    assert json.loads((SentenceEncoder(tmp_path / "x.gguf").folder / "config.json").read_text())["model_type"] == "bert"


def test_marks_of_a_word_piece_vocabulary_keep_their_names():
    """Converters write [unused0] with or without U+2581, and [UNK] as control or unknown."""
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[unused0]", "\u2581[unused1]", "\u2581[", "]", "\u2581cat", "s"]
    types = np.array([3, 2, 3, 3, 1, 1, 1, 1, 1, 1], np.int32)
    metadata = {"model": "bert", "tokens": tokens, "token_type": types}
    metadata = {f"tokenizer.ggml.{key}": value for key, value in metadata.items()}
    found = tokenizer_files(metadata, {"vocab_size": len(tokens), "type_vocab_size": 2})["tokenizer.json"]
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[unused0]", "[unused1]", "[", "##]", "cat", "##s"]
    assert list(found["model"]["vocab"]) == names and found["model"]["unk_token"] == "[UNK]"
