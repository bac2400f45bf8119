"""SentenceEncoder beside sentence-transformers' own, on random models; each module and option."""

import importlib
import inspect
import itertools
import re
from unittest import mock

import numpy as np
import pytest

import bertcore
from bertcore import AutoTokenizer, SentenceEncoder, evaluation, use_backend
from bertcore.tasks import search
from tests.lazy import lazy
from tests.models.family_parity import random_model
from tests.models.family_table import FAMILIES
from tests.tiny_bert import WIDTH, random_texts, save_tiny_encoder, write_json
from tests.tokenization.family_folders import write_family

sentence_transformers = lazy("sentence_transformers")
torch = pytest.importorskip("torch")

pytestmark = pytest.mark.parity

TEXTS = ["the cat sat on a mat.", "paris", *random_texts(19, longest=20, seed=2)]
MODES = ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]


@pytest.fixture(autouse=True)
def on_numba():
    with use_backend("numba"):
        yield


def test_module_objects_of_the_peer(tmp_path):
    from sentence_transformers import SentenceTransformer, models

    encoder = models.Transformer(str(save_tiny_encoder(tmp_path)), max_seq_length=20)
    modules = [encoder, models.Pooling(WIDTH, "mean"), models.Dense(WIDTH, 5), models.Normalize()]
    expected = SentenceTransformer(modules=modules, device="cpu").encode(TEXTS)
    np.testing.assert_allclose(SentenceEncoder(modules=modules).encode(TEXTS), expected, atol=1e-5)


def both(folder, **options):
    """Ours and theirs, of the same folder."""
    peer = sentence_transformers.SentenceTransformer(str(folder), device="cpu", **options)
    ours = SentenceEncoder(folder, **options)
    if not ours.settings.is_static:
        peer.max_seq_length = 40
    return ours, peer


def close(found, expected):
    assert found.shape == expected.shape and found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, atol=2e-6 * max(1, np.abs(expected).max()), rtol=1e-5)


@pytest.mark.parametrize("modes", [*MODES, ["mean", "cls"], ["lasttoken", "weightedmean", "max"]], ids=str)
@pytest.mark.parametrize("include_prompt", [True, False])
def test_poolings(tmp_path, modes, include_prompt):
    pooling = {"pooling_mode": modes, "include_prompt": include_prompt, "embedding_dimension": WIDTH}
    ours, peer = both(save_tiny_encoder(tmp_path, pooling))
    close(ours.encode(TEXTS), peer.encode(TEXTS))
    close(ours.encode(TEXTS, prompt="paris is "), peer.encode(TEXTS, prompt="paris is "))
    assert ours.embedding_dimension == peer.get_embedding_dimension()


def save_with_peer(folder, tmp_path, *modules):
    """The encoder in `folder` with these modules after its pooling, saved by sentence-transformers."""
    plain = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    sentence_transformers.SentenceTransformer(modules=[*plain, *modules], device="cpu").save(str(tmp_path / "saved"))
    return tmp_path / "saved"


@pytest.mark.parametrize("case", range(5))
def test_modules_after_the_pooling(tmp_path, case):
    from sentence_transformers.base.modules import Dense, Normalize
    from sentence_transformers.sentence_transformer.modules import LayerNorm

    torch.manual_seed(case)
    norm = LayerNorm(WIDTH)
    torch.nn.init.normal_(norm.norm.weight)
    torch.nn.init.normal_(norm.norm.bias)
    modules = [
        [Dense(WIDTH, 13), Normalize()],
        [Dense(WIDTH, 50, activation_function=torch.nn.Identity(), bias=False)],
        [norm, Dense(WIDTH, WIDTH, activation_function=torch.nn.GELU(), use_residual=True)],
        [Normalize(), Dense(WIDTH, 7, activation_function=torch.nn.ReLU(), use_residual=True)],
        [Dense(WIDTH, 16, activation_function=torch.nn.SiLU()), Dense(16, 9)],
    ][case]
    folder = save_with_peer(save_tiny_encoder(tmp_path / "plain"), tmp_path, *modules)
    ours, peer = both(folder)
    close(ours.encode(TEXTS), peer.encode(TEXTS))
    assert ours.embedding_dimension == peer.get_embedding_dimension()
    np.testing.assert_array_equal(ours.encode(TEXTS, batch_tokens=1), ours.encode(TEXTS))


@pytest.mark.parametrize(
    ("family", "tokenizer", "widths"),
    [("t5", "T5Tokenizer", [39, 39]), ("gemma3_text", "XLMRobertaTokenizer", [36, 144, 39])],
)
def test_encoders_of_their_families(tmp_path, family, tokenizer, widths):
    """sentence-t5 and GTR, EmbeddingGemma: maps without biases after the mean, then length 1."""
    from sentence_transformers.base.modules import Dense, Normalize

    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(**FAMILIES[family].config)
    plain = tmp_path / "plain"
    random_model(config, None, np.random.default_rng(0)).save_pretrained(plain)
    write_family(plain, tokenizer)
    AutoTokenizer.from_pretrained(plain).save_pretrained(plain)
    torch.manual_seed(0)
    identity = {"bias": False, "activation_function": torch.nn.Identity()}
    maps = [Dense(*pair, **identity) for pair in itertools.pairwise(widths)]
    ours, peer = both(save_with_peer(plain, tmp_path, *maps, Normalize()))
    texts = ["the value", "value", "the the value. value s"]
    close(ours.encode(texts), peer.encode(texts))
    assert ours.embedding_dimension == widths[-1]


def test_static_embeddings(tmp_path):
    import tokenizers
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    AutoTokenizer.from_pretrained(save_tiny_encoder(tmp_path / "plain")).save_pretrained(tmp_path / "tokenizer")
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer" / "tokenizer.json"))
    table = np.random.default_rng(0).normal(size=(tokenizer.get_vocab_size(), 11)).astype(np.float32)
    module = StaticEmbedding(tokenizer, embedding_weights=table)
    sentence_transformers.SentenceTransformer(modules=[module], device="cpu").save(str(tmp_path / "saved"))
    ours, peer = both(tmp_path / "saved")
    texts = [*TEXTS, "", "the cat " * 500]
    close(ours.encode(texts), peer.encode(texts))
    close(ours.encode(texts, normalize_embeddings=True), peer.encode(texts, normalize_embeddings=True))


@pytest.mark.parametrize("normalized", [False, True])
def test_options(tmp_path, normalized):
    from sentence_transformers.util import quantize_embeddings as expected_of

    folder = save_tiny_encoder(tmp_path, normalize=normalized)
    settings = {"prompts": {"query": "paris is ", "document": "the "}, "default_prompt_name": "document"}
    write_json(folder / "config_sentence_transformers.json", settings)
    ours, peer = both(folder)
    close(ours.encode(TEXTS), peer.encode(TEXTS))
    close(ours.encode_query(TEXTS), peer.encode_query(TEXTS))
    close(ours.encode_document(TEXTS), peer.encode_document(TEXTS))
    close(ours.encode(TEXTS, prompt_name="query"), peer.encode(TEXTS, prompt_name="query"))
    close(ours.encode(TEXTS, truncate_dim=10), peer.encode(TEXTS, truncate_dim=10))
    options = {"truncate_dim": 10, "prompt": ""}
    close(
        ours.encode(TEXTS, normalize_embeddings=True, **options),
        peer.encode(TEXTS, normalize_embeddings=True, **options),
    )
    found = ours.encode(TEXTS)
    for precision in ("int8", "uint8", "binary", "ubinary"):
        quantized = ours.encode(TEXTS, precision=precision)
        np.testing.assert_array_equal(quantized, expected_of(found, precision))  # the same bits
        assert quantized.dtype == peer.encode(TEXTS, precision=precision).dtype
    assert (ours.encode(TEXTS, precision="binary") == peer.encode(TEXTS, precision="binary")).mean() > 0.99


@pytest.mark.parametrize("name", ["cosine", "dot", "euclidean", "manhattan"])
def test_similarities(tmp_path, name):
    folder = save_tiny_encoder(tmp_path)
    write_json(folder / "config_sentence_transformers.json", {"similarity_fn_name": name})
    ours, peer = both(folder)
    assert ours.similarity_fn_name == peer.similarity_fn_name == name
    left, right = ours.encode(TEXTS), ours.encode(TEXTS[::-1])
    scale = np.abs(peer.similarity(left, right).numpy()).max()
    np.testing.assert_allclose(ours.similarity(left, right), peer.similarity(left, right), atol=1e-5 * scale)
    found = ours.similarity_pairwise(left, right)
    np.testing.assert_allclose(found, peer.similarity_pairwise(left, right), atol=1e-5 * scale)
    angles, width = sentence_transformers.util.pairwise_angle_sim, right.shape[1] // 2 * 2
    for some in (left, right), (left[:, :width], right[:, :width]):  # an odd and an even dimension
        np.testing.assert_allclose(bertcore.util.pairwise_angle_sim(*some), angles(*some), atol=1e-5)


def test_search_mining_and_communities(tmp_path):
    from sentence_transformers import util

    ours, peer = both(save_tiny_encoder(tmp_path))
    texts = list(dict.fromkeys(random_texts(80, longest=6, seed=5)))
    rows = ours.encode(texts)
    sizes = {"query_chunk_size": 7, "corpus_chunk_size": 11}
    found = search.semantic_search(rows[:9], rows, top_k=5, **sizes)
    for mine, theirs in zip(found, util.semantic_search(rows[:9], rows, top_k=5), strict=True):
        assert [entry["corpus_id"] for entry in mine] == [entry["corpus_id"] for entry in theirs]
        np.testing.assert_allclose([e["score"] for e in mine], [e["score"] for e in theirs], atol=1e-5)
    mined = search.paraphrase_mining(ours, texts, top_k=4, max_pairs=50, **sizes)
    expected = util.paraphrase_mining(peer, texts, top_k=4, max_pairs=50)
    assert [pair[1:] for pair in mined] == [pair[1:] for pair in expected]
    np.testing.assert_allclose([pair[0] for pair in mined], [pair[0] for pair in expected], atol=1e-5)
    for threshold in (0.5, 0.8, 0.95):
        found = search.community_detection(rows, threshold=threshold, min_community_size=2, batch_size=13)
        expected = util.community_detection(rows, threshold=threshold, min_community_size=2)
        assert sorted(map(sorted, found)) == sorted(map(sorted, expected)) and found


# Names that sentence-transformers has and this package does not, with the reason.
LEFT_OUT = {
    "use_auth_token": "its older name of token", "modules": "a folder or an id is read",
    "model_kwargs": "dtype is an argument", "processor_kwargs": "the tokenizer is as published",
    "config_kwargs": "the config is as published", "model_card_data": "model cards are written by finetune",
    "backend": "use_backend chooses", "keep_in_fp32_modules": "dtype is that of all weights",
}  # fmt: skip


@pytest.mark.parametrize(("kind", "method"), [
    *((kind, "__init__") for kind in ("SentenceEncoder", "CrossEncoder", "SparseEncoder")),
    *(("SentenceEncoder", name) for name in ("encode", "similarity", "similarity_pairwise")),
    *(("CrossEncoder", name) for name in ("predict", "rank")),
    *(("SparseEncoder", name) for name in ("encode", "similarity", "similarity_pairwise", "decode")),
])  # fmt: skip
def test_arguments_have_the_same_names(kind, method):
    peer = getattr(sentence_transformers, kind.replace("SentenceEncoder", "SentenceTransformer"))
    theirs = inspect.signature(getattr(peer, method)).parameters
    known = set(theirs) - set(LEFT_OUT) - {"self", "kwargs"}
    function = getattr(getattr(bertcore, kind), method)
    with pytest.raises(TypeError, match=r"has no argument|unexpected") as raised:
        function(mock.Mock(routes=None), zzzzzzzz=1)
    ours = {*inspect.signature(function).parameters, *re.findall(r"\w+", str(raised.value).partition("it takes")[2])}
    assert known <= ours, sorted(known - ours)


def positional(function):
    """Return the names of the arguments that may be given by position."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    given = inspect.signature(function).parameters.values()
    return [each.name for each in given if each.kind in kinds and each.name != "self"]


def shared_functions():
    """Yield the public functions that both have: methods of the encoders, `util`, evaluators."""
    pairs = [(sentence_transformers.SentenceTransformer, SentenceEncoder), (sentence_transformers.util, bertcore.util)]
    kinds = "CrossEncoder", "SparseEncoder", "MultiVectorEncoder"
    pairs += [(getattr(sentence_transformers, kind), getattr(bertcore, kind)) for kind in kinds]
    for name in set(evaluation.__all__) - {"Evaluator"}:
        folder = "cross_encoder" if name.startswith("CrossEncoder") else "sentence_transformer"
        evaluators = importlib.import_module(f"sentence_transformers.{folder}.evaluation")
        pairs.append((getattr(evaluators, name), getattr(evaluation, name)))
    for theirs, ours in pairs:
        shared = set(dir(theirs)) & set(dir(ours)) - set(vars(torch.nn.Module))
        public = [name for name in shared if not name.startswith("_")]
        for name in sorted([*public, *(["__init__", "__call__"] if inspect.isclass(ours) else [])]):
            functions = getattr(theirs, name), getattr(ours, name)
            if all(map(inspect.isfunction, functions)):
                yield f"{ours.__name__}.{name}", *functions


def test_arguments_have_the_positions_of_the_peers():
    """An argument given by position means the same, or is an error."""
    found = {name: (positional(theirs), positional(ours)) for name, theirs, ours in shared_functions()}
    assert len(found) > 60
    renamed = {"inputs": "texts"}  # of `tokenize`
    for name, (theirs, ours) in found.items():
        for their, own in zip(theirs, ours, strict=False):
            assert own == their or renamed.get(own) == their, name
