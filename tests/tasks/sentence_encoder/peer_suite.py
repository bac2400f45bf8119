"""A pytest plugin: sentence-transformers' own test suite without the hub, and with the classes of this package.

test_peer_suite.py runs it. By hand, in a checkout of sentence-transformers, with this folder and the root of this
repository on PYTHONPATH:

    PEER_SUITE=ours python -m pytest -p peer_suite tests/sentence_transformer/test_model.py

PEER_SUITE is "own" for the suite as it is, "ours" for SentenceEncoder, CrossEncoder, SparseEncoder and bertcore.util in
place of its classes and functions, "module" for SentenceTransformer around `EncoderModule`. Tiny random models stand in
the hub's cache under the names that the suite loads. Tests that need published files fail with "own", too.
"""

import os
import re
import sys
import tempfile
from pathlib import Path

CACHE = Path(tempfile.gettempdir()) / f"bertcore-peer-suite-{os.getuid()}"
os.environ |= {"HF_HOME": str(CACHE), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
KIND = os.environ.get("PEER_SUITE", "own")

import sentence_transformers  # noqa: E402  (after the place of the cache is set)
import sentence_transformers.cross_encoder.evaluation  # noqa: E402  (their own functions stay theirs)
import sentence_transformers.sentence_transformer.evaluation  # noqa: E402
import sentence_transformers.sparse_encoder.evaluation  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from sentence_transformers.base.modules import Router, Transformer  # noqa: E402
from sentence_transformers.sentence_transformer import modules as dense  # noqa: E402
from sentence_transformers.sparse_encoder import modules as sparse  # noqa: E402

DENSE, *_ = CLASSES = "SentenceTransformer", "CrossEncoder", "SparseEncoder"
SENTENCE = "sentence-transformers-testing/stsb-bert-tiny-safetensors"
REVISIONS = "ba33022fdf0b0fc2643263f0726f44d0a07d0e24", "f3cb857cba53019a20df283396bcca179cf051a4"
RERANKER, SPLADE = "cross-encoder-testing/reranker-bert-tiny-gooaq-bce", "sparse-encoder-testing/splade-bert-tiny-nq"
TINY = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512}


def vocabulary() -> list[str]:
    """Return a vocabulary of BERT's size, 30,522, that knows the words of the suite and all characters."""
    words: dict[str, None] = {}
    for file in sorted(Path("tests").rglob("*.py")):
        words |= dict.fromkeys(re.findall(r"[a-z]+|\d+", file.read_text(encoding="utf-8").lower()))
    letters = [chr(number) for number in range(33, 127) if not chr(number).isupper()]
    known = ["[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{c}" for c in letters if c.isalnum())]
    known += [word for word in words if len(word) > 1][:20_000]
    unused = [f"[unused{number}]" for number in range(30_521 - len(known))]
    return ["[PAD]", *unused[:99], *known, *unused[99:]]


def tokenizer(words: list[str]) -> transformers.BertTokenizer:
    """Return a WordPiece tokenizer of these entries."""
    return transformers.BertTokenizer(vocab={word: i for i, word in enumerate(words)}, model_max_length=512)


def bert(head: str, seed: int = 0, **config) -> transformers.PreTrainedModel:
    """Return a random BERT with the head of this class."""
    torch.manual_seed(seed)
    return getattr(transformers, head)(transformers.BertConfig(**TINY | config))


def snapshot(name: str, revision: str = "0" * 40, *branches: str) -> Path:
    """Return the folder of the hub's cache for a revision, which `branches` point to."""
    folder = CACHE / "hub" / f"models--{name.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True, exist_ok=True)
    for branch in branches:
        (folder / "refs" / branch).write_text(revision)
    return folder / "snapshots" / revision


def save_models() -> None:
    """Write all models into the cache."""
    words, tanh = tokenizer(vocabulary()), "torch.nn.modules.activation.Tanh"

    def save(kind: str, folder: str, *modules, **options) -> None:
        given = {"modules": list(modules)} if modules else {"model_name_or_path": folder}
        peer = getattr(sentence_transformers, kind)
        peer(**given, device="cpu", **options).save_pretrained(folder, create_model_card=False)

    def saved(name: str, model, revision: str = "0" * 40) -> str:
        folder = snapshot(name, revision, "main")
        model.save_pretrained(folder)
        words.save_pretrained(folder)
        return str(folder)

    for seed, revision in ((1, REVISIONS[0]), (0, REVISIONS[1])):  # "main" is the last one
        folder = saved(SENTENCE, bert("BertModel", seed), revision)
        save(DENSE, folder, Transformer(folder, max_seq_length=512), dense.Pooling(128, "mean"))
    for name, width, more in (
        ("all-MiniLM-L6-v2", 384, [dense.Normalize()]),
        ("paraphrase-distilroberta-base-v1", 768, []),
    ):
        folder = saved(f"sentence-transformers/{name}", bert("BertModel", hidden_size=width))
        save(DENSE, folder, Transformer(folder, max_seq_length=256), dense.Pooling(width, "mean"), *more)
    for name in ("distilbert-base-uncased", "distilroberta-base", "bert-base-uncased"):
        owner = "google-bert" if name.startswith("bert") else "distilbert"
        saved(f"{owner}/{name}", bert("BertForMaskedLM", hidden_size=768, num_attention_heads=12))
    for name, width in (("sentence-transformers/static-retrieval-mrl-en-v1", 1024), ("minishlab/potion-base-8M", 256)):
        table = dense.StaticEmbedding(words._tokenizer, embedding_weights=torch.randn(len(words), width).numpy())
        save(DENSE, str(snapshot(name, "0" * 40, "main")), table)
    for name, config in (
        (f"{RERANKER}-tanh-v3", {"sbert_ce_default_activation_function": tanh}),
        (f"{RERANKER}-tanh-v4", {"sentence_transformers": {"activation_fn": tanh, "version": "4.0.1"}}),
        (f"{RERANKER}-STv54", {}),
        ("cross-encoder/stsb-distilroberta-base", {}),
        ("cross-encoder/nli-MiniLM2-L6-H768", {"num_labels": 3}),
        ("BAAI/bge-reranker-base", {}),
        (RERANKER, {}),
    ):
        folder = saved(name, bert("BertForSequenceClassification", **{"num_labels": 1} | config))
    save("CrossEncoder", folder, max_length=512)
    scores = bert("BertForMaskedLM")
    torch.nn.init.constant_(scores.cls.predictions.bias, -0.8)  # few logits are above zero
    folder = saved(SPLADE, scores)
    documents = [Transformer(folder, transformer_task="fill-mask"), sparse.SpladePooling()]
    save("SparseEncoder", folder, *documents)
    queries = sparse.SparseStaticEmbedding(documents[0].tokenizer, weight=torch.rand(len(words)))
    folder = str(snapshot(SPLADE.replace("splade-", "inference-free-splade-"), "0" * 40, "main"))
    save("SparseEncoder", folder, Router.for_query_document([queries], documents))


def plugged_in() -> type:
    """Return a SentenceTransformer that reads the model of a name by `EncoderModule`."""
    from bertcore.plugins.sentence_transformers import EncoderModule

    class PluggedIn(sentence_transformers.SentenceTransformer):
        def __init__(self, name=None, modules=None, **options):
            if name is not None and not os.path.exists(os.path.join(str(name), "0_EncoderModule")):
                hub = {key: options.pop(key) for key in ("revision", "cache_folder") if key in options}
                modules, name = [EncoderModule(name, **hub)], None
            super().__init__(name, modules=modules, **options | {"trust_remote_code": True})  # to load our class

    PluggedIn.__name__ = DENSE  # which model cards and errors say
    return PluggedIn


def replace(kind: str) -> None:
    """Put the classes and functions of a kind in the place of those of sentence-transformers."""
    import bertcore
    from bertcore import util

    class Sparse(bertcore.SparseEncoder):
        """Returns sentence-transformers' kind of array by default; without PyTorch it is SciPy's."""

        def encode(self, inputs, *args, **options):
            return super().encode(inputs, *args, **{"convert_to_tensor": True} | options)

    classes = {"SentenceTransformer": bertcore.SentenceEncoder, "CrossEncoder": bertcore.CrossEncoder}
    classes["SparseEncoder"] = Sparse
    if kind == "module":
        classes = {"SentenceTransformer": plugged_in()}
    for name, kept in classes.items():
        peer = getattr(sentence_transformers, name)
        for module in (sentence_transformers, sys.modules[peer.__module__]):
            setattr(module, name, kept)
    for name in util.__all__ if kind == "ours" else ():
        setattr(sentence_transformers.util, name, getattr(util, name))


if not (CACHE / "done").exists():
    save_models()
    (CACHE / "done").touch()
if KIND != "own":
    replace(KIND)
