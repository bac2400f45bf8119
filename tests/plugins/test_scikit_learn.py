"""The estimators in scikit-learn's own machinery."""

import pickle
import warnings

import numpy as np
import pytest

from bertcore.tasks.texts import TextsCutWarning
from tests.plugins.texts import LONG, TEXTS, close
from tests.tiny_bert import random_texts

sklearn = pytest.importorskip("sklearn")

from sklearn.base import clone  # noqa: E402
from sklearn.exceptions import NotFittedError  # noqa: E402
from sklearn.linear_model import LogisticRegression  # noqa: E402
from sklearn.model_selection import GridSearchCV, cross_val_score  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.utils.estimator_checks import parametrize_with_checks  # noqa: E402

from bertcore.plugins.scikit_learn import TextClassifier, TextEmbedder  # noqa: E402

WORDS = np.array(random_texts(60, seed=3))
LABELS = np.array(["cat" if "cat" in text else "none" for text in WORDS])


@parametrize_with_checks([TextEmbedder("folder"), TextClassifier("folder")])
def test_scikit_learns_own_checks(estimator, check):
    """Those that need no numbers as input; scikit-learn leaves out the others, by the estimators' tags."""
    check(estimator)


def test_embeddings(folder, encoder):
    embedder = TextEmbedder(folder)
    close(embedder.transform(TEXTS), encoder.encode(TEXTS))
    close(embedder.fit_transform(np.array(TEXTS)), encoder.encode(TEXTS))
    short = clone(embedder).set_params(truncate_dim=7, normalize=True, prompt_name="query")
    close(short.transform(TEXTS), encoder.encode_query(TEXTS, truncate_dim=7, normalize=True))
    assert short.get_feature_names_out().tolist() == [f"textembedder{number}" for number in range(7)]
    close(pickle.loads(pickle.dumps(short)).transform(TEXTS), short.transform(TEXTS))
    assert len(pickle.dumps(short)) < 2000
    with pytest.raises(TypeError, match=r"X\[1\] is float, expected str"):
        embedder.fit(["a", 0.5])


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
    grid = {"logisticregression__C": [0.01, 100.0], "textembedder__normalize": [None, True]}
    search = GridSearchCV(pipeline, grid, cv=3).fit(WORDS, LABELS)
    assert search.best_score_ > np.mean(LABELS == "none") + 0.1 > 0.6
    restored = pickle.loads(pickle.dumps(search))
    assert (restored.predict(WORDS) == search.predict(WORDS)).all()


@pytest.fixture(scope="module")
def classifier(folder):
    from bertcore import use_backend

    with use_backend("numpy"):
        return TextClassifier(folder, epochs=25, learning_rate=3e-3, batch_size=8).fit(WORDS, LABELS)


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
    with pytest.raises(NotFittedError):
        clone(classifier).predict(TEXTS)


def test_the_classifier_is_made_again(folder, classifier):
    again = clone(classifier).fit(list(WORDS), list(LABELS))
    np.testing.assert_array_equal(again.predict_proba(TEXTS), classifier.predict_proba(TEXTS))
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
    with pytest.raises(ValueError, match="y has 2 labels of 1 classes for 2 texts"):
        TextClassifier(folder).fit(["a", "b"], [1, 1])
    with pytest.raises(ValueError, match="y has 1 labels of 1 classes for 2 texts"):
        TextClassifier(folder).fit(["a", "b"], [1])
    with pytest.raises(TypeError, match="X is str, expected a list of strings"):
        classifier.predict("the cat")


@pytest.mark.parametrize("labels", [[0, np.nan], [0.5, 1.0], np.eye(2), None])
def test_labels_that_are_no_classes(labels):
    with pytest.raises(ValueError, match=r"NaN|Unknown label type|should be a 1d array"):
        TextClassifier("never-loaded").fit(["a text", "another"], labels)
