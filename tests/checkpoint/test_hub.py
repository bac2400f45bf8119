"""Checkpoints by their hub ids, from a server on this machine."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bertcore import AutoModel, AutoModelForMaskedLM, AutoTokenizer, SentenceEncoder
from bertcore.checkpoint import CheckpointError, open_checkpoint
from bertcore.checkpoint.hub import resolve
from tests.checkpoint.hub_server import Hub, Model
from tests.refusals import refuses
from tests.tiny_bert import save_tiny_bert, save_tiny_encoder

huggingface_hub = pytest.importorskip("huggingface_hub")
constants = pytest.importorskip("huggingface_hub.constants")

SMALL = {"config.json": b"{}", "README.md": b"read", "vocab.txt": b"words", "tokenizer_config.json": b"{ }"}
OTHERS = {"tf_model.h5": b"tf", "flax_model.msgpack": b"flax", "onnx/config.json": b"onnx", "onnx/model.bin": b"o"}
SAFE, PICKLE = {"model.safetensors": b"safe" * 999}, {"pytorch_model.bin": b"pickle" * 999}
NAME = "org/some-model_1.0"


def use(monkeypatch, endpoint: str, cache: Path) -> None:
    """Point huggingface_hub, which reads the environment when it is imported, at `endpoint` and `cache`."""
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(cache / "token"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def hub(monkeypatch, tmp_path):
    hub = Hub()
    server = hub.start()
    use(monkeypatch, f"http://127.0.0.1:{server.server_port}", tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    yield hub
    server.shutdown()
    server.server_close()


@pytest.fixture
def offline(hub, monkeypatch):
    """Return a function after which no server answers."""
    return lambda: use(monkeypatch, "http://127.0.0.1:9", Path(constants.HF_HUB_CACHE))


def refused(message: str, *arguments, **options) -> None:
    """Assert that `resolve` raises CheckpointError with this message."""
    refuses(CheckpointError, message, resolve, *arguments, **options)


def names(folder: Path) -> set[str]:
    return {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize("load", [AutoModel.from_pretrained, AutoTokenizer.from_pretrained, SentenceEncoder, resolve])
def test_wrong_names(load, monkeypatch, tmp_path):
    """An empty name (an unset variable) is not the current folder."""
    monkeypatch.chdir(save_tiny_encoder(tmp_path / "model"))
    for name in (None, 3, b"folder"):
        refuses(TypeError, r"the checkpoint is .*, expected its folder", load, name)
    refuses(CheckpointError, "the checkpoint's name is empty, expected its folder", load, "")


def module_list(*paths) -> bytes:
    return json.dumps([{"path": path, "type": path.partition("_")[2]} for path in paths]).encode()


def shards_of(kind: str) -> dict[str, bytes]:
    """Two shards of weights and their index."""
    stem, ending = kind.split(".")
    shards = {f"{stem}-0000{number}-of-00002.{ending}": bytes([number]) * 500 for number in (1, 2)}
    weight_map = dict(zip("ab", shards, strict=True))
    return {**shards, f"{kind}.index.json": json.dumps({"weight_map": weight_map}).encode()}


PIECES = {"spiece.model": b"piece", "tokenizer.json": b"t", "merges.txt": b"m"}
SENTENCES = {
    "sentence_bert_config.json": b"{}",
    "config_sentence_transformers.json": b"{}",
    "1_Pooling/config.json": b"{}",
}
INNER = ("config.json", "vocab.txt", "pytorch_model.bin", "sentence_bert_config.json")
IN_A_FOLDER = {
    **{f"0_Transformer/{name}": name.encode() for name in INNER},
    "modules.json": module_list("0_Transformer", "1_Pooling"),
    "1_Pooling/config.json": b"{}",
}
WRONG_MODULES = [b"{", b"[1]", b'[{"path": "../.."}]', b'[{"path": 3}]', b'[{"path": "*"}]']
CONFIG, NOT_README = {"config.json": b"{}"}, {name: content for name, content in SMALL.items() if name != "README.md"}
# (wanted, files that are fetched, other files of the model).
FILES = [
    ("model", {**CONFIG, **SAFE}, {**SMALL, **OTHERS, **PICKLE}),
    ("model", {**CONFIG, **PICKLE}, {**SMALL, **OTHERS}),
    *[
        ("model", {**CONFIG, **shards_of(kind)}, {**SMALL, "other.safetensors": b"other"})
        for kind in ("model.safetensors", "pytorch_model.bin")
    ],
    ("tokenizer", {**NOT_README, **PIECES}, {**SMALL, **OTHERS, **SAFE}),
    (
        "sentence_encoder",
        {
            **NOT_README,
            **{name: name.encode() for name in SENTENCES},
            "modules.json": module_list("", "1_Pooling", "2_Normalize"),
            **SAFE,
        },
        {**SMALL, **OTHERS, **PICKLE},
    ),
    ("sentence_encoder", IN_A_FOLDER, {"0_Transformer/tf_model.h5": b"tf", "2_Dense/pytorch_model.bin": b"dense"}),
    (
        "sentence_encoder",
        {
            **IN_A_FOLDER,
            "modules.json": module_list("0_Transformer", "1_Pooling", "2_Dense"),
            "2_Dense/config.json": b"{ }",
            "2_Dense/model.safetensors": b"dense",
        },
        {"0_Transformer/tf_model.h5": b"tf", "2_Dense/pytorch_model.bin": b"pickle"},
    ),
    *[("sentence_encoder", {**NOT_README, "modules.json": wrong, **SAFE}, SMALL) for wrong in WRONG_MODULES],
]


class TestFiles:
    @pytest.mark.parametrize(("wanted", "fetched", "others"), FILES)
    def test_fetched_files(self, hub, wanted, fetched, others):
        commit = hub.add(NAME, {**others, **fetched})
        folder = resolve(NAME, wanted)
        assert folder.name == commit and names(folder) == set(fetched) == hub.fetched()
        assert all((folder / name).read_bytes() == content for name, content in fetched.items())

    def test_index_that_points_elsewhere(self, hub):
        index = {"model.safetensors.index.json": b'{"weight_map": {"a": "../../secret.safetensors"}}'}
        hub.add(NAME, {**SMALL, **index})
        refused("expected a plain name in the same folder", NAME)

    def test_no_weights_at_all(self, hub):
        hub.add(NAME, {**SMALL, **OTHERS})
        with pytest.raises(CheckpointError, match=r"has none of model\.safetensors, .*; it holds config\.json"):
            open_checkpoint(resolve(NAME))


class TestRevision:
    def test_branch_tag_and_commit(self, hub):
        files = {commit: {**SMALL, "model.safetensors": commit.encode()} for commit in ("a" * 40, "b" * 40)}
        hub.models[NAME] = Model(files, {"main": "a" * 40, "v2": "b" * 40})
        for revision, commit in {None: "a" * 40, "v2": "b" * 40, "b" * 40: "b" * 40}.items():
            folder = resolve(NAME, revision=revision)
            assert (folder / "model.safetensors").read_text() == commit

    def test_unknown(self, hub):
        hub.add(NAME, {**SMALL, **SAFE})
        refuses(CheckpointError, rf"{NAME} on the hub has no revision 'v9'", resolve, NAME, revision="v9")


class TestCache:
    def test_nothing_is_fetched_twice(self, hub):
        hub.add(NAME, {**SMALL, **OTHERS, **PICKLE})
        first = resolve(NAME)
        hub.requests.clear()
        assert resolve(NAME) == first and not hub.fetched() and len(hub.requests) < 3

    @pytest.mark.parametrize("how", ["no server", "answer is an error", "local_files_only", "HF_HUB_OFFLINE"])
    @pytest.mark.parametrize("weights", [SAFE, PICKLE], ids=["safetensors", "pickle"])
    def test_offline(self, hub, offline, monkeypatch, how, weights):
        hub.add(NAME, {**SMALL, **OTHERS, **weights})
        first = resolve(NAME)
        hub.requests.clear()
        if how == "no server":
            offline()
        hub.down = how == "answer is an error"
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", how == "HF_HUB_OFFLINE")
        found = resolve(NAME, local_files_only=how == "local_files_only")
        assert found == first and names(found) == {"config.json", *weights}
        assert hub.down or not hub.requests

    def test_offline_reads_a_commit_that_another_library_fetched(self, hub, monkeypatch):
        commit = hub.add(NAME, {**SMALL, **SAFE})
        files = [huggingface_hub.hf_hub_download(NAME, file) for file in ("config.json", *SAFE)]
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        assert resolve(NAME, revision=commit) == Path(files[0]).parent

    def test_offline_lacks_it(self, hub, offline, monkeypatch):
        hub.add(NAME, {**SMALL, **SAFE})
        refused(
            r"cache .* lacks all or part of it.* local_files_only forbids asking the hub", NAME, local_files_only=True
        )
        resolve(NAME)
        refused(r"lacks all or part of it, and local_files_only forbids", NAME, "tokenizer", local_files_only=True)
        refused(
            r"lacks all or part of it at revision v2, and local_files_only", NAME, revision="v2", local_files_only=True
        )
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        refused(r"lacks all or part of it.* HF_HUB_OFFLINE forbids asking the hub", "org/other")
        offline()
        refused(r"the hub \(http://127\.0\.0\.1:9\) cannot be reached: \w+: ", "org/other")

    def test_weights_missing_from_the_cache(self, hub):
        hub.add(NAME, {**SMALL, **SAFE})
        resolve(NAME, "tokenizer")
        refused("lacks all or part of it", NAME, local_files_only=True)

    def test_folder_of_the_cache(self, hub, tmp_path):
        hub.add(NAME, {**SMALL, **SAFE})
        folder = resolve(NAME, cache_dir=tmp_path / "mine")
        assert folder.is_relative_to(tmp_path / "mine") and not (tmp_path / "cache").exists()
        assert resolve(NAME, cache_dir=tmp_path / "mine", local_files_only=True) == folder

    def test_broken_download_leaves_nothing(self, hub, monkeypatch, tmp_path):
        monkeypatch.setattr("time.sleep", lambda seconds: None)
        hub.add(NAME, {**SMALL, **SAFE})
        hub.cut = 10**6
        refused(rf"{NAME} cannot be fetched from the hub .*: \w+: ", NAME)
        left = {file.name for file in (tmp_path / "cache").rglob("*") if file.is_file()}
        assert not any(name == "model.safetensors" or name.endswith(".incomplete") for name in left)
        hub.cut = 0
        assert (resolve(NAME) / "model.safetensors").read_bytes() == SAFE["model.safetensors"]


class TestAccess:
    def test_token_opens_a_private_model(self, hub):
        hub.add(NAME, {**SMALL, **SAFE}, token="hf_right")
        for token in (None, False, "hf_wrong"):
            with pytest.raises(CheckpointError, match=r"of that name, or it is private: .* pass token=") as caught:
                resolve(NAME, token=token)
            assert "hf_wrong" not in str(caught.value)
        assert "model.safetensors" in names(resolve(NAME, token="hf_right"))

    def test_token_goes_to_the_hub_alone(self, hub):
        hub.add(NAME, {**SMALL, **SAFE}, token="hf_right")
        resolve(NAME, token="hf_right")
        sent = {path.split("/")[1]: headers.get("authorization") for _, path, headers in hub.requests if NAME in path}
        assert set(sent.values()) == {"Bearer hf_right"}
        elsewhere = [headers for _, path, headers in hub.requests if path.startswith("/cdn/")]
        assert elsewhere and not any("authorization" in {key.lower() for key in headers} for headers in elsewhere)

    def test_gated(self, hub):
        hub.add(NAME, {**SMALL, **SAFE}, gated=True)
        refuses(CheckpointError, rf"{NAME} on the hub is gated: ask for access at http.*/{NAME}, then", resolve, NAME)


class TestNames:
    def test_no_such_model(self, hub):
        for name in ("org/nothing", "nothing"):
            refuses(CheckpointError, rf"{name} does not exist here, and the hub .* has no model of that", resolve, name)

    def test_folder_of_the_name_wins(self, hub, tmp_path):
        hub.add(NAME, {**SMALL, **SAFE})
        (tmp_path / NAME).mkdir(parents=True)
        assert resolve(NAME) == Path(NAME) and not hub.requests

    def test_link_to_nowhere_wins(self, hub, tmp_path):
        (tmp_path / "model").symlink_to("nowhere")
        assert resolve("model") == Path("model") and not hub.requests

    @pytest.mark.parametrize(
        "name",
        ["/a/b", "./a", "../a", "~/a", "a/b/c", "a/", "a\\b", "c:/a", ".", "a b", "org/model.safetensors", "m.bin",
         "org/é", "org/name\n", Path("org/name")],
    )  # fmt: skip
    def test_path_is_not_looked_for(self, hub, name):
        assert resolve(name) == Path(name) and not hub.requests

    def test_name_that_the_hub_forbids(self, hub):
        refused(r"org/a--b cannot be fetched .*Cannot have -- or \.\.", "org/a--b")

    def test_missing_package(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "huggingface_hub", None)
        refused(r"org/name does not exist here; .* pip install huggingface_hub", "org/name")
        assert resolve(os.curdir) == Path(os.curdir)  # a folder needs no hub


def published(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder as the hub has them."""
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


class TestFromPretrained:
    """AutoModel, AutoTokenizer and SentenceEncoder, by an id and by the folder it was published from."""

    def test_model_and_tokenizer(self, hub, tmp_path):
        folder = save_tiny_bert(tmp_path / "made", head=True)
        hub.models[NAME] = Model({"a" * 40: published(folder)}, {"v2": "a" * 40}, token="hf_right")
        options = {"revision": "v2", "token": "hf_right", "cache_dir": tmp_path / "mine"}
        ids = AutoTokenizer.from_pretrained(NAME, **options).encode("the cat sat")
        assert ids == AutoTokenizer.from_pretrained(folder).encode("the cat sat")
        model = AutoModelForMaskedLM.from_pretrained(NAME, **options)
        expected = AutoModelForMaskedLM.from_pretrained(folder)
        np.testing.assert_array_equal(model([ids]).logits, expected([ids]).logits)
        hub.requests.clear()
        AutoModel.from_pretrained(NAME, **options, local_files_only=True, add_pooling_layer=False)
        AutoTokenizer.from_pretrained(NAME, **options, local_files_only=True)
        assert not hub.requests

    def test_sentence_encoder(self, hub, tmp_path):
        folder = save_tiny_encoder(tmp_path / "made", {"pooling_mode": "cls"}, normalize=True)
        hub.add(NAME, {**published(folder), **OTHERS})
        texts = ["the cat sat", "paris"]
        found, expected = SentenceEncoder(NAME), SentenceEncoder(folder)
        np.testing.assert_array_equal(found.encode(texts), expected.encode(texts))
        assert found.settings.pooling == ("cls",) and not hub.fetched() & set(OTHERS)
        hub.requests.clear()
        np.testing.assert_array_equal(
            SentenceEncoder(NAME, local_files_only=True).encode(texts), expected.encode(texts)
        )
        assert not hub.requests

    def test_warning_names_the_model(self, hub, tmp_path):
        hub.add(NAME, published(save_tiny_bert(tmp_path / "made")))
        with pytest.warns(UserWarning, match=r"does not hold cls\..*newly initialised"):
            AutoModelForMaskedLM.from_pretrained(NAME)

    @pytest.mark.parametrize("load", [AutoModel.from_pretrained, AutoTokenizer.from_pretrained, SentenceEncoder])
    def test_errors_come_through(self, hub, load, tmp_path):
        refuses(CheckpointError, r"the hub .* has no model of that name", load, "org/nothing")
        with pytest.raises(CheckpointError, match=r"nowhere does not exist, expected the folder of a checkpoint"):
            load(tmp_path / "nowhere")
        refuses(CheckpointError, "nowhere does not exist, expected the folder", load, "./nowhere")

    def test_sentence_encoder_wants_a_folder(self, tmp_path):
        folder = save_tiny_encoder(tmp_path / "made")
        with pytest.raises(CheckpointError, match=r"model\.safetensors is a file, expected the folder of a sentence"):
            SentenceEncoder(folder / "model.safetensors")
        assert AutoTokenizer.from_pretrained(folder / "model.safetensors").tokenize("cat") == ["cat"]


def test_environment(hub, tmp_path):
    """HF_ENDPOINT, HF_HOME, HF_TOKEN and HF_HUB_OFFLINE, as huggingface_hub documents them."""
    hub.add(NAME, {**SMALL, **SAFE}, token="hf_right")
    code = f"from bertcore.checkpoint.hub import resolve; print(resolve({NAME!r}))"
    environment = {**os.environ, "HF_ENDPOINT": constants.ENDPOINT, "HF_HOME": str(tmp_path / "home")}

    def run(**variables):
        command = [sys.executable, "-c", code]
        return subprocess.run(command, env=environment | variables, capture_output=True, text=True)

    refused = run(HF_HUB_OFFLINE="1")
    assert refused.returncode and "HF_HUB_OFFLINE forbids asking the hub" in refused.stderr
    fetched = run(HF_TOKEN="hf_right")
    assert fetched.returncode == 0 and str(tmp_path / "home") in fetched.stdout
    hub.requests.clear()
    cached = run(HF_HUB_OFFLINE="1")
    assert cached.stdout == fetched.stdout and not hub.requests
