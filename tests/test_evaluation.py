"""Evaluators: metrics as sentence-transformers and scikit-learn compute them, and wrong data."""

import csv
import functools
import importlib
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertcore import CrossEncoder, SentenceEncoder, SparseEncoder, evaluation
from bertcore.evaluation import (
    BinaryClassificationEvaluator,
    EmbeddingSimilarityEvaluator,
    InformationRetrievalEvaluator,
    ParaphraseMiningEvaluator,
    RerankingEvaluator,
    SimilarityFunction,
    TripletEvaluator,
)
from bertcore.evaluation.evaluator import average_precision, ndcg, of_thresholds
from bertcore.training.objectives import SoftmaxLoss
from tests.refusals import refuses
from tests.tasks.cross_encoder.tiny import save_tiny_classifier
from tests.tasks.sparse_encoder.tiny import save_tiny_splade
from tests.tiny_bert import random_texts, save_tiny_encoder

MANY = [*random_texts(35, longest=10, seed=1), *["the cat"] * 3, ""]  # with equal ones
CORPUS = {f"d{place}": text for place, text in enumerate(MANY[9:])}
QUERIES = {f"q{place}": MANY[place] for place in range(9)}
RELEVANT = {f"q{place}": {f"d{3 * place}", f"d{place + 1}", "elsewhere"} for place in range(8)} | {"q8": set()}
SAMPLES = [
    {"query": MANY[k], "positive": MANY[k + 5 : k + 7], "negative": [MANY[k + 10], MANY[k + 15], "the cat"]}
    for k in range(20)
]
SAMPLES += [{"query": "cats", "positive": "a cat", "negative": []}]
SCORES = np.random.default_rng(3).random(19).round(1).tolist()
LABELS = [int(place % 3 == 0) for place in range(19)]
IDS = {str(place): text for place, text in enumerate(MANY)}
SAME = [("1", "2"), ("2", "5"), ("35", "36"), ("36", "37"), ("7", "nowhere")]
TEACHER = object()  # stands for the encoder
ROWS = [{"de": MANY[k], "en": MANY[k + 9], "fr": MANY[k + 18] if k % 2 else " "} for k in range(9)]
ALL = ["cosine", "dot", "euclidean", "manhattan"]
SEARCH, TRIPLES = (QUERIES, CORPUS, RELEVANT), (MANY[:13], MANY[13:26], MANY[26:])
SCORED, BINARY = (MANY[:19], MANY[19:38], SCORES), (MANY[:19], MANY[19:38], LABELS)
IN_CHUNKS = {"corpus_chunk_size": 7, "ndcg_at_k": [1, 5, 100], "mrr_at_k": [2], "truncate_dim": 5, "name": "some"}
DOT = {"main_similarity_function": SimilarityFunction.DOT_PRODUCT, "margin": {"dot": 0.1}}
DATA = {
    "retrieval": ("InformationRetrievalEvaluator", SEARCH, {}),
    "retrieval-chunks": ("InformationRetrievalEvaluator", SEARCH, IN_CHUNKS),
    "similarity": ("EmbeddingSimilarityEvaluator", SCORED, {"name": "pairs"}),
    "similarities": ("EmbeddingSimilarityEvaluator", SCORED, {"similarity_fn_names": ALL}),
    **{
        precision: ("EmbeddingSimilarityEvaluator", SCORED, {"precision": precision, "main_similarity": "dot"})
        for precision in ("uint8", "binary", "ubinary")
    },
    "triplets": ("TripletEvaluator", TRIPLES, {"margin": 0.01}),
    "triplets-all": ("TripletEvaluator", TRIPLES, {"similarity_fn_names": ALL} | DOT),
    "binary": ("BinaryClassificationEvaluator", BINARY, {}),
    "binary-all": ("BinaryClassificationEvaluator", BINARY, {"similarity_fn_names": ALL}),
    "alike": ("BinaryClassificationEvaluator", (MANY[:5], MANY[:5], [1] * 5), {}),
    "reranking": ("RerankingEvaluator", (SAMPLES,), {"at_k": 2}),
    "mse": ("MSEEvaluator", (MANY[:19], MANY[19:38], TEACHER), {}),
    "mse-named": ("MSEEvaluator", (MANY[:19], MANY[:19], TEACHER), {"name": "some", "truncate_dim": 5}),
    "mse-languages": ("MSEEvaluatorFromDataFrame", (ROWS, TEACHER, [("de", "en"), ("de", "fr")]), {"name": "some"}),
    "mining": ("ParaphraseMiningEvaluator", (IDS, SAME), {}),
    "mining-self": ("ParaphraseMiningEvaluator", (IDS, [*SAME, ("3", "3")]), {"add_transitive_closure": True}),
    "mining-closure": ("ParaphraseMiningEvaluator", (IDS, SAME), {"add_transitive_closure": True, "max_pairs": 300}),
}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return SentenceEncoder(save_tiny_encoder(tmp_path_factory.mktemp("dense"), normalize=True))


def compare(peers, name, data, options, encoder, folder):
    """Compare the metrics of an evaluator, and its table, with a peer's; return the names of both primary metrics."""
    peer, ours = getattr(peers, name)(*data, **options), getattr(evaluation, name)(*data, **options)
    folders = [folder / kind for kind in ("theirs", "ours")]
    expected, found = encoder.evaluate(peer, str(folders[0])), encoder.evaluate(ours, str(folders[1]))
    theirs, tables = ([(file.name, file.read_text().split()[0]) for file in folder.iterdir()] for folder in folders)
    assert tables == theirs and set(found) == set(expected)
    for metric, value in expected.items():
        rounded = any(part in metric for part in ("threshold", "pearson", "_accuracy", "mse"))  # in float32
        assert found[metric] == pytest.approx(value, abs=1e-6 if rounded else 1e-9)
    return ours.primary_metric, peer.primary_metric


@pytest.mark.parity
@pytest.mark.parametrize("case", DATA)
def test_metrics_and_tables_equal_sentence_transformers(encoder, case, tmp_path):
    peers = importlib.import_module("sentence_transformers.sentence_transformer.evaluation")
    name, data, options = DATA[case]
    data = [encoder if each is TEACHER else each for each in data]
    assert len(set(compare(peers, name, data, options, encoder, tmp_path))) == 1


PAIRS = list(zip(MANY[:19], MANY[19:38], strict=True))
RANKED = [
    {"query": MANY[k], "positive": MANY[k + 5 : k + 7], "documents": [*MANY[k + 3 : k + 6 + k % 3], "a fox"]}
    for k in range(20)
]
RANKED[3] |= {"positive": []}
OF_CROSS_ENCODERS = {
    "one label": (1, "Classification", (PAIRS, LABELS), {"name": "some"}),
    "three labels": (3, "Classification", (PAIRS, [place % 4 for place in range(19)]), {}),
    "scores": (1, "Correlation", (PAIRS, SCORES, "some"), {}),
    "negatives": (1, "Reranking", ([SAMPLES[k] for k in range(20)],), {"at_k": 2, "name": "some"}),
    "no documents": (1, "Reranking", ([{"query": "a", "positive": [], "negative": []}, SAMPLES[0]],), {}),
    "documents": (1, "Reranking", (RANKED,), {}),
    "found documents": (1, "Reranking", (dict(enumerate(RANKED)), 3, False), {"batch_size": 5}),
}


@pytest.mark.parity
@pytest.mark.parametrize("case", OF_CROSS_ENCODERS)
def test_metrics_of_cross_encoders_equal_sentence_transformers(case, tmp_path):
    peers = importlib.import_module("sentence_transformers.cross_encoder.evaluation")
    labels, kind, data, options = OF_CROSS_ENCODERS[case]
    (tmp_path / "model").mkdir()
    encoder = CrossEncoder(save_tiny_classifier(tmp_path / "model", labels=labels))
    primary, peers_primary = compare(peers, f"CrossEncoder{kind}Evaluator", data, options, encoder, tmp_path)
    assert primary.endswith(peers_primary)


@pytest.mark.parity
def test_translations_and_sequences_equal_sentence_transformers(encoder, tmp_path, capsys):
    peers = importlib.import_module("sentence_transformers.sentence_transformer.evaluation")
    results = []

    def encode(texts, convert_to_numpy, **options):
        return list(encoder.encode(texts, **options, convert_to_tensor=True))

    card = SimpleNamespace(set_evaluation_metrics=lambda *given: None)
    columns = [*MANY[:24], *["the cat"] * 3], [*MANY[:20], *["the cat"] * 7]
    for kind, model in (peers, SimpleNamespace(encode=encode, model_card_data=card)), (evaluation, encoder):
        folder = tmp_path / kind.__name__
        translations = kind.TranslationEvaluator(*columns, name="some", print_wrong_matches=True)
        found = translations(model, str(folder))
        pairs = kind.TripletEvaluator(*TRIPLES)
        several = kind.SequentialEvaluator([pairs, lambda *given: given[2], pairs], main_score_function=sum)
        found |= several(encoder, str(folder), 3)
        files = {file.name: file.read_text().split()[0] for file in folder.iterdir()}
        results.append((pytest.approx(found, abs=1e-6), files, translations.primary_metric, several.primary_metric))
    assert results[0][0] == found and results[1][1:] == results[0][1:] and 0 < found["some_mean_accuracy"] < 1
    assert "expected 'the cat', found:\n  0." in capsys.readouterr().out
    narrow = evaluation.MSEEvaluator(["a cat"], ["a cat"], encoder, truncate_dim=1)
    narrow.truncate_dim = None
    refuses(ValueError, "the student's embeddings have shape", narrow, encoder)


def test_accuracy_of_a_trained_classifier(tmp_path):
    """The classifier's own loss on the same pairs gives its logits."""
    encoder = SentenceEncoder(save_tiny_encoder(tmp_path))
    objective, labels = SoftmaxLoss(num_labels=3, concatenation_sent_multiplication=True), np.arange(12) % 3
    evaluator = functools.partial(evaluation.LabelAccuracyEvaluator, softmax_model=objective)
    examples = [SimpleNamespace(texts=[MANY[k], MANY[k + 12]], label=labels[k]) for k in range(12)]
    batches = [examples[:8], examples[8:]]
    refuses(ValueError, "SoftmaxLoss has no classifier yet", evaluator(batches), encoder)
    refuses(TypeError, "softmax_model is int, expected the objective SoftmaxLoss", evaluator, [], softmax_model=3)
    objective.parameters(encoder.model)
    refuses(ValueError, "dataloader has no examples", evaluator([]), encoder)
    loader = SimpleNamespace(collate_fn=None)
    evaluator(loader)
    assert loader.collate_fn is None
    right = 0
    for example in examples:
        batch = objective.collator(encoder.tokenizer)([{"a": example.texts[0], "b": example.texts[1], "label": 0}])
        losses = [float(objective.loss(encoder.model, {**batch, "labels": np.array([k])}).loss) for k in range(3)]
        right += int(np.argmin(losses)) == example.label
    found = evaluator(batches, "some")(encoder, tmp_path)
    assert found == {"some_accuracy": right / 12} and 0 < right < 12
    assert (tmp_path / "accuracy_evaluation_some_results.csv").read_text().startswith("epoch,steps,accuracy\n-1,-1,0.")


@pytest.mark.parity
def test_sparse_metrics_equal_sentence_transformers(tmp_path):
    peers = importlib.import_module("sentence_transformers.sparse_encoder.evaluation")
    encoder = SparseEncoder(save_tiny_splade(tmp_path))
    for case in ("retrieval", "similarities", "triplets-all", "binary-all", "reranking"):
        name, data, options = DATA[case]
        expected = encoder.evaluate(getattr(peers, f"Sparse{name}")(*data, **options))
        found = encoder.evaluate(getattr(evaluation, name)(*data, **options))
        exact = {metric: value for metric, value in expected.items() if metric in found and "threshold" not in metric}
        assert {metric: found[metric] for metric in exact} == pytest.approx(exact, abs=1e-5)


ranked = st.lists(st.tuples(st.booleans(), st.sampled_from([-1.5, 0.0, 0.25, 0.5, 2.0])), min_size=2, max_size=17)


@given(ranked.filter(lambda rows: any(right for right, _ in rows)), st.integers(1, 12))
@settings(max_examples=30, deadline=None)
def test_ties_count_as_in_scikit_learn(rows, k):
    metrics = pytest.importorskip("sklearn.metrics")
    right, scores = np.array([right for right, _ in rows]), np.array([score for _, score in rows])
    assert ndcg(right, scores, k) == pytest.approx(metrics.ndcg_score([right], [scores], k=k))
    assert average_precision(right, scores) == pytest.approx(metrics.average_precision_score(right, scores))
    found = of_thresholds(scores, right)
    assert found["ap"] == pytest.approx(metrics.average_precision_score(right, scores))
    assert found["f1"] == pytest.approx(metrics.f1_score(right, scores >= found["f1_threshold"]))
    assert found["accuracy"] == pytest.approx(np.mean(right == (scores >= found["accuracy_threshold"])))
    assert found["mcc"] == pytest.approx(metrics.matthews_corrcoef(right, scores >= found["f1_threshold"]))
    thresholds = [*scores, scores.max() + 1]
    assert found["f1"] == pytest.approx(max(metrics.f1_score(right, scores >= each) for each in thresholds))
    assert found["accuracy"] == pytest.approx(max(np.mean(right == (scores >= each)) for each in thresholds))


def test_retrieval_by_hand():
    """Three queries over four documents, whose scores are given."""

    class Given:
        similarity_fn_name = "given"

        def encode_query(self, texts, **options):
            return np.array([[3.0, 2.0, 1.0, 0.0], [0.0, 1.0, 2.0, 3.0], [1.0, 1.0, 1.0, 1.0]])

        def encode_document(self, texts, **options):
            return np.eye(4)[[int(text) for text in texts]]

        def similarity(self, asked, documents):
            return asked @ documents.T

    corpus, right = {str(k): str(k) for k in (2, 0, 3, 1)}, {"a": ["1"], "b": ["0", "3"], "c": ["2", "gone"]}
    made = InformationRetrievalEvaluator(dict.fromkeys("abc", "?"), corpus, right, mrr_at_k=[1, 3], ndcg_at_k=[4])
    found = made(Given())
    assert made.primary_metric == "given_ndcg@4"
    assert found["given_accuracy@1"] == pytest.approx(1 / 3) and found["given_mrr@1"] == pytest.approx(1 / 3)
    assert found["given_mrr@3"] == pytest.approx((1 / 2 + 1 + 1 / 3) / 3)
    assert found["given_recall@3"] == pytest.approx((1 + 1 / 2 + 1 / 2) / 3)
    assert found["given_map@100"] == pytest.approx((1 / 2 + (1 + 2 / 4) / 2 + (1 / 3) / 2) / 3)
    gain = 1 / np.log2(np.arange(2, 6))
    expected = (gain[1] + (gain[0] + gain[3]) / gain[:2].sum() + gain[2] / gain[:2].sum()) / 3
    assert found["given_ndcg@4"] == pytest.approx(expected)


def test_an_answer_at_the_last_rank_counts():
    """Also where 1 / rank * rank is below 1."""
    corpus = {f"{number:03}": "text" for number in range(60)}
    made = InformationRetrievalEvaluator({"q": "?"}, corpus, {"q": ["048"]}, mrr_at_k=[48, 49])
    found = made.of_hits(np.arange(60)[None] == 48)
    assert found["mrr@48"] == 0 and found["mrr@49"] == 1 / 49


def test_cross_encoders_are_compared(tmp_path):
    encoder = CrossEncoder(save_tiny_classifier(tmp_path))
    found = encoder.evaluate(RerankingEvaluator(SAMPLES, at_k=3))
    assert set(found) == {"map", "mrr@3", "ndcg@3"} and 0 < found["map"] <= 1


def test_scores_are_those_of_all_pairs(encoder):
    wrong = InformationRetrievalEvaluator(QUERIES, CORPUS, RELEVANT, score_functions={"own": lambda *rows: 1.0})
    refuses(ValueError, r"score_functions\['own'\] returned shape \(\), expected \(\d+, \d+\)", wrong, encoder)


def test_results_are_appended_to_a_table(encoder, tmp_path):
    evaluator = TripletEvaluator(["the cat"], ["the cat"], ["a dog"], name="pets")
    for step in (1, 2):
        assert evaluator(encoder, tmp_path / "new", epoch=0, steps=step) == {"pets_cosine_accuracy": 1.0}
    with open(tmp_path / "new" / "triplet_evaluation_pets_results.csv", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["steps"] for row in rows] == ["1", "2"] and rows[0]["accuracy_cosine"] == "1.0"


TWO = ["a", "b"]


ENCODES = SimpleNamespace(encode=len)


@pytest.mark.parametrize("error, text, kind, data, options", [
    (ValueError, "relevant_docs answers 0 of 1 queries", "InformationRetrieval", ({"q": "a"}, CORPUS, {}), {}),
    (ValueError, "corpus has 0 documents", "InformationRetrieval", (QUERIES, {}, RELEVANT), {}),
    (TypeError, "queries is list", "InformationRetrieval", (TWO, CORPUS, RELEVANT), {}),
    (TypeError, "score_functions is list, expected a ma", "InformationRetrieval", SEARCH, {"score_functions": ["cos"]}),
    (TypeError, r"score_functions\['dot'\] is 'dot', expected a function", "InformationRetrieval", SEARCH,
     {"score_functions": {"dot": "dot"}}),
    (TypeError, r"relevant_docs\['q0'\] is str", "InformationRetrieval", (QUERIES, CORPUS, {"q0": "d1"}), {}),
    (ValueError, "mrr_at_k is 0", "InformationRetrieval", SEARCH, {"mrr_at_k": [0]}),
    (ValueError, "ndcg_at_k is empty", "InformationRetrieval", SEARCH, {"ndcg_at_k": []}),
    (ValueError, "sentences1 has 2, sentences2 has 1", "EmbeddingSimilarity", (TWO, ["a"], [1, 2]), {}),
    (ValueError, "scores has shape", "EmbeddingSimilarity", (TWO, TWO, [1]), {}),
    (TypeError, "scores is {}, expected 2 finite numbers", "EmbeddingSimilarity", (TWO, TWO, {}), {}),
    (TypeError, "expected 2 finite numbers", "EmbeddingSimilarity", (TWO, TWO, [10**400, 1]), {}),
    (TypeError, "expected 2 finite numbers", "EmbeddingSimilarity", (TWO, TWO, ["a", "b"]), {}),
    (TypeError, r"main_similarity is \[\]", "EmbeddingSimilarity", (TWO, TWO, [1, 2]), {"main_similarity": []}),
    (ValueError, "main_similarity_function is 'cos', expected one of 'cosine'", "Triplet", (TWO, TWO, TWO),
     {"main_similarity_function": "cos"}),
    (ValueError, r"similarity_fn_names\[0\] is 'cos', expected one of 'cosine'", "BinaryClassification",
     (TWO, TWO, [1, 0]), {"similarity_fn_names": ["cos"]}),
    (TypeError, "names is .dot", "EmbeddingSimilarity", (TWO, TWO, [1, 2]), {"similarity_fn_names": "dot"}),
    (TypeError, r"duplicates_dict\['a'\] is str", "ParaphraseMining", ({"a": "b"},), {"duplicates_dict": {"a": "a"}}),
    (TypeError, r"samples\[0\]\['positive'\] is NoneType", "Reranking",
     ([{"query": "a", "positive": None, "negative": "b"}],), {}),
    (TypeError, "duplicates_list has 3, expected pairs", "ParaphraseMining", ({"a": "b"}, [3]), {}),
    (TypeError, "duplicates_dict is 'x'", "ParaphraseMining", ({"a": "b"},), {"duplicates_dict": "x"}),
    (ValueError, "scores holds inf or NaN", "EmbeddingSimilarity", (TWO, TWO, [1, float("nan")]), {}),
    (TypeError, "mrr_at_k is int, expected", "InformationRetrieval", SEARCH, {"mrr_at_k": 5}),
    (TypeError, "samples is NoneType, expected a list", "Reranking", (None,), {}),
    (TypeError, "samples is NoneType, expected a list", "CrossEncoderReranking", (None,), {}),
    (TypeError, "sentence_pairs is NoneType, expected a list", "CrossEncoderCorrelation", (None, [1]), {}),
    (ValueError, "main_similarity is 'cosin'", "EmbeddingSimilarity", (TWO, TWO, [1, 2], 16, "cosin"), {}),
    (ValueError, "labels has numbers other than 0 and 1", "BinaryClassification", (TWO, TWO, [1, 2]), {}),
    (ValueError, "source_sentences has 2, target_sentences has 1", "MSE", (TWO, ["a"], None), {}),
    (TypeError, "teacher_model is NoneType, expected an encoder", "MSE", (TWO, TWO, None), {}),
    (TypeError, "teacher_model is str, expected an encoder", "MSE", (TWO, TWO, "folder"), {}),
    (TypeError, "main_score_function is 3, expected a function", "Sequential", ([len], 3), {}),
    *((TypeError, "combinations has .*, expected pairs of lang", "MSEEvaluatorFromDataFrame", ([], ENCODES, some), {})
      for some in (None, "ende", ["en"], [("en", "de", "fr")], [3], ("en", "de"))),
    (TypeError, "print_wrong_matches is 'no'", "Translation", (TWO, TWO), {"print_wrong_matches": "no"}),
    (TypeError, r"evaluators\[0\] is str, expected an evaluator", "Sequential", (["a"],), {}),
    (TypeError, "evaluators is dict, expected a list", "Sequential", ({"a": len},), {}),
    (ValueError, "evaluators is empty, expected at least one", "Sequential", ([],), {}),
    (TypeError, "dataframe is dict", "MSEEvaluatorFromDataFrame", ({}, ENCODES, [("en", "de")]), {}),
    (ValueError, r"dataframe\[0\] has en, expected a text in 'de'", "MSEEvaluatorFromDataFrame",
     ([{"en": "a"}], ENCODES, [("en", "de")]), {}),
    (TypeError, r"dataframe\[0\]\['de'\] is int", "MSEEvaluatorFromDataFrame",
     ([{"en": "a", "de": 3}], ENCODES, [("en", "de")]), {}),
    (TypeError, "sentences1 is str", "BinaryClassification", ("ab", TWO, [1, 0]), {}),
    (ValueError, "anchors has 0", "Triplet", ([], [], []), {}),
    (ValueError, "margin has cosin", "Triplet", (TWO, TWO, TWO), {"margin": {"cosin": 1}}),
    (ValueError, r"samples\[0\] is .*expected query, positive and negative", "Reranking", ([{"query": "a"}],), {}),
    (ValueError, "samples has no entry", "Reranking", ([],), {}),
    (ValueError, "at_k is 0", "Reranking", (SAMPLES,), {"at_k": 0}),
    (ValueError, r"sentence_pairs\[1\] is 'ab', expected two", "CrossEncoderCorrelation", ([TWO, "ab"], [1, 2]), {}),
    (TypeError, "RerankingEvaluator has no argument batchsize; did you mean batch_size", "Reranking",
     (SAMPLES,), {"batchsize": 2}),
    (ValueError, "samples has no documents", "CrossEncoderReranking", ([],), {}),
    (ValueError, "sentence_pairs is empty", "CrossEncoderClassification", ([], []), {}),
    (ValueError, "labels has negative numbers", "CrossEncoderClassification", ([TWO], [-1]), {}),
    (ValueError, r"samples\[0\] is .*and negative or documents", "CrossEncoderReranking",
     ([SAMPLES[0] | {"documents": TWO}],), {}),
    (TypeError, "sentences_map is list", "ParaphraseMining", (TWO,), {}),
    (ValueError, "batch_size is 0", "Triplet", (TWO, TWO, TWO), {"batch_size": 0}),
])  # fmt: skip
def test_wrong_data(error, text, kind, data, options):
    name = kind if kind.startswith("MSEE") else f"{kind}Evaluator"
    refuses(error, text, getattr(evaluation, name), *data, **options)


def test_a_table_of_translations_may_lack_some(encoder):
    rows = [{"en": "the cat", "de": "a dog"}, {"en": "a", "de": None}, {"en": " ", "de": "b"}]
    frame = pytest.importorskip("pandas").DataFrame(rows)
    made = [evaluation.MSEEvaluatorFromDataFrame(each, encoder, [("en", "de")]) for each in (rows[:1], rows, frame)]
    assert len({each(encoder)["negative_mse"] for each in made}) == 1


@pytest.mark.parametrize("model", [None, "folder", 3])
def test_models_are_encoders(model):
    refuses(TypeError, "model is .*, expected one with encode", TripletEvaluator(["a"], ["b"], ["c"]), model)


def test_a_reranker_is_not_an_encoder_of_texts(encoder):
    reranker = SimpleNamespace(predict=len)
    refuses(TypeError, "expected one with encode or", InformationRetrievalEvaluator(*SEARCH), reranker)
    evaluator = evaluation.CrossEncoderCorrelationEvaluator([TWO], [1])
    refuses(TypeError, "model is SentenceEncoder, expected one with predict", evaluator, encoder)


def test_a_teacher_may_return_lists(encoder):
    teacher = SimpleNamespace(encode=lambda texts, **options: encoder.encode(texts).tolist())
    assert evaluation.MSEEvaluator(TWO, TWO, teacher)(encoder)["negative_mse"] == pytest.approx(0)


def test_an_evaluator_without_metrics_is_refused(encoder):
    refuses(
        ValueError, r"evaluators\[0\] returned no metrics", evaluation.SequentialEvaluator([lambda *given: {}]), encoder
    )


def test_mining_and_labels_without_duplicates(encoder):
    assert ParaphraseMiningEvaluator(IDS, [])(encoder)["f1"] == 0.0
    found = BinaryClassificationEvaluator(TWO, ["c", "d"], [0, 0])(encoder)
    assert found["cosine_accuracy"] == 1.0 and found["cosine_ap"] == 0.0
    assert np.isnan(EmbeddingSimilarityEvaluator(TWO, TWO, [1, 1])(encoder)["pearson_cosine"])
