"""The estimators in scikit-learn's own machinery."""

import pickle
import warnings

import numpy as np
import pytest

from bertcore import SentenceEncoder, use_backend
from bertcore.tasks.texts import TextsCutWarning
from tests.plugins.texts import LONG, TEXTS, close
from tests.refusals import refuses
from tests.tiny_bert import VOCABULARY, WIDTH, random_texts, save_tiny_encoder, write_json

sklearn = pytest.importorskip("sklearn")

from sklearn.base import clone  # noqa: E402
from sklearn.exceptions import NotFittedError  # noqa: E402
from sklearn.linear_model import LogisticRegression  # noqa: E402
from sklearn.model_selection import GridSearchCV, cross_val_score  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.utils.estimator_checks import parametrize_with_checks  # noqa: E402
from sklearn.utils.validation import check_is_fitted, validate_data  # noqa: E402

from bertcore.plugins import scikit_learn  # noqa: E402
from bertcore.plugins.scikit_learn import TextClassifier, TextEmbedder  # noqa: E402

WORDS = np.array(random_texts(60, seed=3))
LABELS = np.array(["cat" if "cat" in text else "none" for text in WORDS])


class OfNumbers:
    """Reads a row of numbers as a text, so that all of scikit-learn's checks apply; a tiny model learns little."""

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.two_d_array, tags.requires_fit = False, True, True
        if tags.classifier_tags is not None:
            tags.classifier_tags.poor_score = True
        return tags

    def __sklearn_is_fitted__(self):
        return hasattr(self, "n_features_in_")

    def read(self, X):
        check_is_fitted(self)
        rows = 10 + (3 * validate_data(self, X, reset=False)).astype(int) % 20
        return [" ".join(VOCABULARY[number] for number in row) for row in rows]


class EmbedderOfNumbers(OfNumbers, TextEmbedder):
    def __init__(self, model="encoder"):
        super().__init__(model)

    def fit(self, X, y=None):
        validate_data(self, X)
        return super().fit(self.read(X))

    def transform(self, X):
        return super().transform(self.read(X))


class ClassifierOfNumbers(OfNumbers, TextClassifier):
    def __init__(self, model="encoder", epochs=1):
        super().__init__(model, epochs=epochs)

    def fit(self, X, y):
        X, y = validate_data(self, X, y)
        return super().fit(self.read(X), y)

    def decision_function(self, X):
        return super().decision_function(self.read(X))

    def predict_proba(self, X):
        return super().predict_proba(self.read(X))

    def predict(self, X):
        return super().predict(self.read(X))


@pytest.fixture(scope="module")
def beside_an_encoder(tmp_path_factory):
    """A folder with an encoder: the checks make their estimators themselves, from the defaults of their arguments."""
    return save_tiny_encoder(tmp_path_factory.mktemp("checks") / "encoder").parent


@parametrize_with_checks([TextEmbedder("folder"), TextClassifier("folder"), EmbedderOfNumbers(), ClassifierOfNumbers()])
def test_scikit_learns_own_checks(estimator, check, beside_an_encoder, monkeypatch):
    """All checks; of estimators of texts scikit-learn runs only those that need no numeric input."""
    monkeypatch.chdir(beside_an_encoder)
    with use_backend("numba"):  # where the results for a row do not depend on the others
        check(estimator)


def test_embeddings(folder, encoder):
    embedder = TextEmbedder(folder)
    close(embedder.transform(TEXTS), encoder.encode(TEXTS))
    close(embedder.fit_transform(np.array(TEXTS)), encoder.encode(TEXTS))
    short = clone(embedder).set_params(truncate_dim=7, normalize_embeddings=True, prompt_name="query")
    close(short.transform(TEXTS), encoder.encode_query(TEXTS, truncate_dim=7, normalize_embeddings=True))
    assert short.get_feature_names_out().tolist() == [f"textembedder{number}" for number in range(7)]
    close(pickle.loads(pickle.dumps(short)).transform(TEXTS), short.transform(TEXTS))
    assert len(pickle.dumps(short)) < 2000
    refuses(TypeError, r"X\[1\] is float, expected str", embedder.fit, ["a", 0.5])


def test_a_folder_that_is_written_anew_is_read_anew(tmp_path):
    folder = save_tiny_encoder(tmp_path / "encoder")
    before = TextEmbedder(folder).fit_transform(TEXTS)
    write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": WIDTH, "pooling_mode": "cls"})
    after = TextEmbedder(folder).fit_transform(TEXTS)
    assert not np.allclose(before, after)
    close(after, SentenceEncoder(folder).encode(TEXTS))


def test_columns_of_tables(folder, encoder):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"text": TEXTS, "number": range(len(TEXTS))}, index=[3, 1, 4, 5, 9])
    found = TextEmbedder(folder).set_output(transform="pandas").fit_transform(frame["text"])
    close(found, encoder.encode(TEXTS))
    assert found.columns[0] == "textembedder0" and found.index.tolist() == frame.index.tolist()
    from sklearn.compose import make_column_transformer

    both = make_column_transformer((TextEmbedder(folder), "text"), ("passthrough", ["number"]))
    assert both.fit_transform(frame).shape == (len(TEXTS), encoder.embedding_dimension + 1)


def test_a_search_over_a_pipeline(folder):
    pipeline = make_pipeline(TextEmbedder(folder), LogisticRegression(max_iter=1000))
    grid = {"logisticregression__C": [0.01, 100.0], "textembedder__normalize_embeddings": [False, True]}
    search = GridSearchCV(pipeline, grid, cv=3).fit(WORDS, LABELS)
    assert search.best_score_ > np.mean(LABELS == "none") + 0.1 > 0.6
    restored = pickle.loads(pickle.dumps(search))
    assert (restored.predict(WORDS) == search.predict(WORDS)).all()


@pytest.fixture(scope="module")
def classifier(folder):
    with use_backend("numpy"):
        return TextClassifier(folder, epochs=16, learning_rate=3e-3, batch_size=8).fit(WORDS, LABELS)


def test_the_classifier_learns(classifier):
    assert classifier.classes_.tolist() == ["cat", "none"]
    assert classifier.score(WORDS, LABELS) > 0.9
    chances = classifier.predict_proba(WORDS)
    np.testing.assert_allclose(chances.sum(axis=1), 1, rtol=1e-6)
    assert (classifier.classes_[chances.argmax(axis=1)] == classifier.predict(WORDS)).all()
    assert ((classifier.decision_function(WORDS) > 0) == (classifier.predict(WORDS) == "none")).all()
    assert classifier.predict([]).shape == (0,) and classifier.predict_proba([]).shape == (0, 2)


def test_the_classifier_is_kept(classifier):
    restored = pickle.loads(pickle.dumps(classifier))
    np.testing.assert_array_equal(restored.predict_proba(TEXTS), classifier.predict_proba(TEXTS))
    refuses(NotFittedError, None, clone(classifier).predict, TEXTS)


def test_the_classifier_is_made_again(folder, classifier):
    once = clone(classifier).set_params(epochs=2).fit(WORDS, LABELS)
    again = clone(once).fit(list(WORDS), list(LABELS))
    np.testing.assert_array_equal(again.predict_proba(TEXTS), once.predict_proba(TEXTS))
    numbers = TextClassifier(folder, epochs=1).fit(WORDS[:20], np.arange(20) % 3)
    assert numbers.decision_function(TEXTS).shape == (len(TEXTS), 3)
    assert set(numbers.predict(TEXTS)) <= {0, 1, 2}
    scores = cross_val_score(TextClassifier(folder, epochs=1), WORDS[:20], LABELS[:20], cv=2)
    assert len(scores) == 2 and np.isfinite(scores).all()


def test_long_texts_and_wrong_ones(folder, classifier):
    with pytest.warns(TextsCutWarning):
        pickle.loads(pickle.dumps(classifier)).predict([LONG])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clone(classifier).set_params(truncation="chunk", epochs=1).fit(WORDS[:9], LABELS[:9]).predict([LONG])
    refuses(ValueError, "y has 2 labels of 1 classes for 2 texts", TextClassifier(folder).fit, ["a", "b"], [1, 1])
    refuses(ValueError, "y has 1 labels of 1 classes for 2 texts", TextClassifier(folder).fit, ["a", "b"], [1])
    refuses(TypeError, "X is str, expected a list of strings", classifier.predict, "the cat")


@pytest.mark.parametrize("labels", [[0, np.nan], [0.5, 1.0], np.eye(2), None, ["a", None], ["a", np.nan]])
def test_labels_that_are_no_classes(labels):
    labels = np.array(labels, object) if isinstance(labels, list) and "a" in labels else labels
    with pytest.raises(ValueError, match=r"NaN|Unknown label type|should be a 1d array|types (NoneType|float), str"):
        TextClassifier("never-loaded").fit(["a text", "another"], labels)


@pytest.mark.parametrize(("settings", "message"), [
    ({"max_length": None}, "max_length is None, expected an integer of at least 3"),
    ({"max_length": 2}, "max_length is 2, expected an integer of at least 3"),
    ({"random_state": -1}, "random_state is -1, expected an integer of at least 0"),
    ({"random_state": "one"}, "'one' cannot be used to seed"),
    ({"truncation": "some"}, "truncation is 'some', expected one of"),
    ({"model": None}, "the checkpoint is None, expected its folder"),
])  # fmt: skip
def test_invalid_settings_fail_before_training(folder, settings, message, monkeypatch):
    monkeypatch.setattr("bertcore.plugins.scikit_learn.Trainer.train", None)
    refuses((TypeError, ValueError), message, TextClassifier(folder).set_params(**settings).fit, ["a", "b"], [0, 1])


@pytest.mark.parametrize("make", [lambda: 3, lambda: np.int64(3), lambda: np.random.RandomState(3)])
def test_a_random_state_of_any_kind_is_a_seed(folder, make):
    settings = {"epochs": 1, "batch_size": np.int64(8), "max_length": np.int64(9)}
    first, second, other = (
        TextClassifier(folder, random_state=state, **settings).fit(WORDS[:8], LABELS[:8]).predict_proba(TEXTS)
        for state in (make(), make(), 4)
    )
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, other)


def test_no_random_state_draws_one(folder, monkeypatch):
    def note(*args, seed, **settings):
        seeds.add(seed)
        raise InterruptedError

    seeds = set()
    monkeypatch.setattr(scikit_learn, "TrainingArguments", note)
    np.random.seed(0)
    for _ in range(3):
        refuses(InterruptedError, None, TextClassifier(folder, random_state=None).fit, WORDS[:2], LABELS[:2])
    assert len(seeds) == 3


@pytest.mark.parametrize("model", [None, 3, b"folder"])
def test_what_is_no_model_is_told(model):
    with pytest.raises(
        TypeError, match=r"the checkpoint is .*, expected its folder, a file of weights or an id on the"
    ):
        TextEmbedder(model).fit(TEXTS).transform(TEXTS)
