"""scikit-learn's estimators: `TextEmbedder` and `TextClassifier` (need scikit-learn).

    from bertcore.plugins.scikit_learn import TextClassifier, TextEmbedder

    quick = make_pipeline(TextEmbedder("all-MiniLM-L6-v2/"), LogisticRegression()).fit(texts, labels)
    fine_tuned = TextClassifier("bert-base-uncased", epochs=2).fit(texts, labels)
    GridSearchCV(quick, {"logisticregression__C": [0.1, 1, 10]}).fit(texts, labels)

`set_output`, `clone`, pickling and searches work as for any estimator.
"""

import functools
import os
import tempfile
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from bertcore.arguments import check_count
from bertcore.checkpoint import resolve
from bertcore.kernels import get_backend
from bertcore.kernels.arrays import ArrayLike
from bertcore.models.auto import AutoModelForSequenceClassification
from bertcore.models.model import NewlyInitialisedWarning
from bertcore.tasks.long_texts import Cutting
from bertcore.tasks.reading import ReadOptions
from bertcore.tasks.sentence_encoder import SentenceEncoder
from bertcore.tasks.sentence_encoder.modules import read_settings
from bertcore.tasks.sequence_scores import SequenceScores, softmax
from bertcore.tasks.texts import BATCH_TOKENS, checked_texts
from bertcore.tokenization import AutoTokenizer
from bertcore.training import Trainer, TrainingArguments
from bertcore.training.arguments import MOST_SEED

LONGEST = 512  # tokens of a text


@functools.lru_cache(maxsize=1)
def _encoder(model: str, dtype: str | None, files: tuple[Any, ...]) -> SentenceEncoder:
    """Return the last encoder until its files change; clones of a search and unpickled estimators share it."""
    return SentenceEncoder(model, dtype=dtype)


def _files(model: object) -> tuple[Any, ...]:
    """Return the files of a folder with their modification times; empty for an id on the hub."""
    if not isinstance(model, str | os.PathLike) or not os.path.isdir(model):
        return ()
    return tuple(sorted((str(file), file.stat().st_mtime_ns) for file in Path(model).rglob("*")))


class _OfTexts:
    """Scikit-learn's tags for estimators whose input is a sequence of strings."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.two_d_array = True, False
        return tags


class TextEmbedder(_OfTexts, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Turn each text into its embedding; no fitting is needed.

    Args:
        model: folder of a sentence encoder, or its id on the Hugging Face hub.
        dtype: dtype of the weights, as for AutoModel.
        prompt_name: name of one of the model's prompts.
        normalize_embeddings, truncate_dim, truncation, batch_tokens: as for `SentenceEncoder.encode`.

    Pickling stores only these settings, not the model.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        dtype: str | None = None,
        prompt_name: str | None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        truncation: bool | str = "warn",
        batch_tokens: int = BATCH_TOKENS,
    ):
        self.model, self.dtype, self.prompt_name = model, dtype, prompt_name
        self.normalize_embeddings, self.truncate_dim = normalize_embeddings, truncate_dim
        self.truncation, self.batch_tokens = truncation, batch_tokens

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        tags.transformer_tags.preserves_dtype = []  # embeddings are float32
        return tags

    def fit(self, X: Iterable[str], y: object = None) -> "TextEmbedder":
        """Check that `X` is a sequence of strings."""
        list(checked_texts(X, "X"))
        return self

    def transform(self, X: Iterable[str]) -> np.ndarray:
        """Return the embeddings of texts (a list, array or column of strings), float32 (texts, dim)."""
        names = ("prompt_name", "normalize_embeddings", "truncate_dim", "truncation", "batch_tokens")
        texts = list(checked_texts(X, "X"))
        return self._opened.encode(texts, **{name: getattr(self, name) for name in names})

    @property
    def _opened(self) -> SentenceEncoder:
        return _encoder(self.model, self.dtype, _files(self.model))

    @property
    def _n_features_out(self) -> int:
        """Number of columns; scikit-learn names them textembedder0, textembedder1, ..."""
        width = self._opened.embedding_dimension
        return width if self.truncate_dim is None else min(width, self.truncate_dim)

    def __sklearn_is_fitted__(self) -> bool:
        return True


class TextClassifier(_OfTexts, ClassifierMixin, BaseEstimator):
    """Fine-tune an encoder on labelled texts, then classify other texts.

    Args:
        model: folder of a model and its tokenizer, or its id on the Hugging Face hub.
        epochs: number of passes over the texts.
        batch_size: texts per training step.
        learning_rate: initial value; falls linearly to 0.
        max_length: most tokens of a text, capped by the model's limit.
        truncation: treatment of longer texts in `predict`, see `SentenceEncoder.encode`; `fit` cuts them.
        random_state: seed of dropout and of the order of texts; drawn at random for None or a RandomState.

    Attributes:
        classes_: the labels, sorted.
        files_: the trained model's files, {name: bytes}, which pickling stores.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        epochs: float = 3,
        batch_size: int = 16,
        learning_rate: float = 5e-5,
        max_length: int = LONGEST,
        truncation: bool | str = "warn",
        random_state: int | np.random.RandomState | None = 0,
    ):
        self.model, self.epochs, self.batch_size, self.learning_rate = model, epochs, batch_size, learning_rate
        self.max_length, self.truncation, self.random_state = max_length, truncation, random_state

    def fit(self, X: Iterable[str], y: ArrayLike) -> "TextClassifier":
        """Train on texts with a label each.

        Raises ValueError if the numbers of texts and labels differ, for fewer than two classes, for labels that are not
        classes (NaN, None, fractions, several per text), and for a `max_length` too small for any text.
        """
        texts, labels = list(checked_texts(X, "X")), column_or_1d(y)
        try:
            check_classification_targets(labels)
            classes, numbers = np.unique(labels, return_inverse=True)
        except TypeError as error:  # labels that cannot be sorted: None for a missing one, or several types
            kinds = ", ".join(sorted({type(label).__name__ for label in labels}))
            raise ValueError(f"y has labels of types {kinds}, expected one type") from error
        if len(numbers) != len(texts) or len(classes) < 2:
            raise ValueError(f"y has {len(numbers)} labels of {len(classes)} classes for {len(texts)} texts")
        with tempfile.TemporaryDirectory() as folder:
            self._train(texts, numbers, len(classes), folder)
            saved = Path(folder) / "model"
            self.files_ = {file.name: file.read_bytes() for file in sorted(saved.iterdir())}
        self.classes_ = classes
        self._scores = self._loaded()
        return self

    def _train(self, texts: list[str], labels: np.ndarray, classes: int, folder: str) -> None:
        source = read_settings(resolve(self.model, "sentence_encoder")).model_folder
        with warnings.catch_warnings():  # a new head is intended
            warnings.simplefilter("ignore", NewlyInitialisedWarning)
            model = AutoModelForSequenceClassification.from_pretrained(source, num_labels=classes)
        tokenizer = AutoTokenizer.from_pretrained(source)
        wanted = check_count("max_length", self.max_length, max(1, tokenizer.num_special_tokens_to_add(pair=True)))
        length = min(wanted, model.spec.longest_sequence or wanted)
        Cutting(self.truncation, length)  # reject now options that `predict` would reject
        rows = tokenizer(texts, truncation=True, max_length=length)
        columns = {**rows, "labels": labels.tolist()}
        examples = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        given = {"num_train_epochs": self.epochs, "per_device_train_batch_size": self.batch_size}
        given |= {"learning_rate": self.learning_rate, "seed": self._seed()}
        settings = TrainingArguments(folder, save_strategy="no", report_to="none", disable_tqdm=True, **given)
        Trainer(model, settings, train_dataset=examples, processing_class=tokenizer).train()
        model.save_pretrained(Path(folder) / "model")
        tokenizer.save_pretrained(Path(folder) / "model")

    def _seed(self) -> int:
        """Return `random_state` if it is an integer, otherwise an integer drawn from it."""
        if isinstance(self.random_state, int | np.integer):
            return check_count("random_state", self.random_state, 0)
        return int(check_random_state(self.random_state).randint(MOST_SEED))

    def decision_function(self, X: Iterable[str]) -> np.ndarray:
        """Return scores, float32 (texts, classes); for two classes the second minus the first, (texts,)."""
        scores = self._logits(X)
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict_proba(self, X: Iterable[str]) -> np.ndarray:
        """Return the probabilities of the classes, float64 (texts, classes)."""
        return softmax(self._logits(X))

    def predict(self, X: Iterable[str]) -> np.ndarray:
        """Return the most probable class of each text."""
        best = self._logits(X).argmax(axis=1)  # raises if not fitted, before classes_ is read
        return self.classes_[best]

    def _logits(self, X: Iterable[str]) -> np.ndarray:
        check_is_fitted(self)
        texts = [(text,) for text in checked_texts(X, "X")]
        cutting = Cutting(self.truncation, self._scores.max_seq_length)
        found = list(self._scores.logits(texts, ReadOptions(cutting=cutting, backend=get_backend())))
        return np.array(found, np.float32).reshape(len(texts), len(self.classes_))

    def _loaded(self) -> SequenceScores:
        # The weights stay mapped after the files are deleted, which Windows refuses.
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            for name, content in self.files_.items():
                (Path(folder) / name).write_bytes(content)
            return SequenceScores(Path(folder), published_length=self.max_length)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "_scores"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "files_" in state:
            self._scores = self._loaded()
