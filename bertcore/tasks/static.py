"""Static embeddings: distilled from an encoder, one vector per token, averaged over a text; heads on them (Model2Vec).

Tulkens and van Dongen, "Model2Vec: Fast State-of-the-Art Static Embeddings", 2024.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bertcore import kernels
from bertcore.arguments import Described, check_count, check_numbers, check_share
from bertcore.checkpoint import CheckpointError, open_checkpoint, resolve
from bertcore.checkpoint.files import (
    CONFIG_NAME,
    HEAD_NAME,
    made_folder,
    missing_file,
    read_json_object,
    replacing,
    write_json,
)
from bertcore.checkpoint.safetensors_file import write_safetensors
from bertcore.checkpoint.weights import WEIGHTS_NAME
from bertcore.kernels import checks
from bertcore.kernels.arrays import ArrayLike
from bertcore.tasks.folder import MODELS, MODULES_NAME, module_entries
from bertcore.tasks.sentence_encoder import SentenceEncoder
from bertcore.tasks.sentence_encoder.modules import pool, unknown_id
from bertcore.tasks.sequence_scores import FUNCTIONS, best_labels
from bertcore.tasks.texts import MOST_TOKENS, checked_text, checked_texts
from bertcore.tokenization.tokenizer import Tokenizer

POOLING = {"mean": "mean", "first": "cls", "last": "lasttoken"}
DTYPES = ("float16", "float32", "int8")
ROWS = 1024  # computed at once
ACTIVATIONS = ("softmax", "sigmoid", "identity")
SEQUENCE = 1_000_000  # "seq_length" of Model2Vec's files: any


def distill_static(
    model: SentenceEncoder | str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    vocabulary: Sequence[str] | None = None,
    pca_dims: int | float | Literal["auto"] | None = 256,
    sif_coefficient: float | None = 1e-4,
    token_remove_pattern: str | None = r"\[unused\d+\]",
    quantize_to: str = "float16",
    pooling: str = "mean",
) -> SentenceEncoder:
    """Distill an encoder into static embeddings, write them in Model2Vec's format, and open them.

    Each token of the vocabulary passes the encoder by itself, between the special tokens; the vectors are reduced by
    principal component analysis and weighted by smooth inverse frequency (Arora et al., 2017), with frequencies
    estimated from the ranks in the vocabulary by Zipf's law.

    Args:
        model: a `SentenceEncoder`, or the folder or hub id of one; its own pooling and modules are not used.
        folder: where to write config.json, model.safetensors, tokenizer.json and modules.json, which Model2Vec,
            sentence-transformers and `SentenceEncoder` load.
        vocabulary: words or phrases to add to the vocabulary of a WordPiece tokenizer.
        pca_dims: the number of dimensions; a float for that share of the variance; "auto" for as many as the encoder
            has; None for no analysis. With fewer tokens than dimensions there is no analysis either.
        sif_coefficient: between 0 and 1, smaller for a stronger weighting; None for no weighting.
        token_remove_pattern: a regular expression that matches the beginning of tokens to leave out.
        quantize_to: dtype of the file: "float32", "float16" or "int8".
        pooling: "mean" over a token and the special ones, "first" or "last".

    Raises:
        ValueError: for any other value, and if no token is left.
        TypeError: for a value of another type.
    """
    checks.choice("quantize_to", quantize_to, DTYPES)
    checks.choice("pooling", pooling, POOLING)
    wanted = _dimensions(pca_dims)
    if sif_coefficient is not None and not 0 < check_share("sif_coefficient", sif_coefficient) < 1:
        raise ValueError(f"sif_coefficient is {sif_coefficient}, expected a number between 0 and 1")
    if token_remove_pattern is not None:
        checked_text("token_remove_pattern", token_remove_pattern)
    try:
        removed = re.compile(token_remove_pattern) if token_remove_pattern is not None else None
    except re.error as error:
        raise ValueError(f"token_remove_pattern is {token_remove_pattern!r}, expected a regular expression") from error
    encoder = model if isinstance(model, SentenceEncoder) else SentenceEncoder(model)
    if encoder.settings.is_static:
        raise ValueError(f"model is {encoder!r}, expected an encoder with layers")
    tokenizer, rows = _vocabulary(encoder.tokenizer, list(checked_texts(vocabulary or [], "vocabulary")), removed)
    vectors = _vectors(encoder, rows, POOLING[pooling])
    if wanted is not None:
        vectors = _principal_components(vectors, wanted)
    if sif_coefficient is not None:
        vectors = vectors * _weights(len(vectors), sif_coefficient)[:, None]
    config = {
        "tokenizer_name": encoder.folder.name,
        "apply_pca": pca_dims,
        "sif_coefficient": sif_coefficient,
        "hidden_dim": vectors.shape[1],
        "normalize": True,
        "pooling": pooling,
        "embedding_dtype": quantize_to,
    }
    _write(made_folder(folder), config, {"embeddings": _quantized(vectors, quantize_to)}, tokenizer)
    return SentenceEncoder(folder)


class StaticModelPipeline(Described):
    """A classifier or a regression of static embeddings: linear maps with ReLU between, as Model2Vec's class has.

    Args:
        model: a `SentenceEncoder` of static embeddings that leaves out unknown words (`unknown="drop"`).
        layers: each map's weight, (outputs, inputs), and bias, (outputs,); none leaves embeddings as they are.
        activation: "softmax" for one class of a text, "sigmoid" for any number of them, "identity" for a regression.
        classes: the name or number of each output; None for a regression.

    Raises:
        ValueError: for another encoder, and for shapes or classes that do not fit.
        TypeError: for a value of another type.
    """

    def __init__(
        self, model: SentenceEncoder, layers: Sequence[Any], activation: str, classes: ArrayLike | None = None
    ):
        checks.choice("activation", activation, ACTIVATIONS)
        if not isinstance(model, SentenceEncoder):
            raise TypeError(f"model is {type(model).__name__}, expected a SentenceEncoder")
        how = model.settings
        if model.routes is not None or not how.is_static or how.maps or model.truncate_dim is not None:
            raise ValueError(f"model is {model!r}, expected a SentenceEncoder of static embeddings in all dimensions")
        if not model.drops_unknown:
            raise ValueError("model pools unknown words, expected SentenceEncoder(..., unknown='drop')")
        self.model, self.activation = model, activation
        wrong = next((pair for pair in layers if not isinstance(pair, tuple | list) or len(pair) != 2), None)
        if wrong is not None:
            raise TypeError(f"layers has {wrong!r:.60}, expected pairs of a weight and a bias")
        self.layers = [tuple(check_numbers("layers", part).astype(np.float32) for part in pair) for pair in layers]
        width = model.embedding_dimension
        for number, (weight, bias) in enumerate(self.layers):
            if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
                raise ValueError(f"layers[{number}] holds inf or NaN, expected finite numbers")
            checks.shape((None, width), **{f"layers[{number}][0]": weight})
            checks.shape((len(weight),), **{f"layers[{number}][1]": bias})
            width = len(weight)
        self.classes_ = None if classes is None else np.asarray(classes)
        expected = None if activation == "identity" else (width,)
        if (None if self.classes_ is None else self.classes_.shape) != expected:
            wanted = "None" if expected is None else f"{width} names, one of each output"
            raise ValueError(f"classes is {classes!r:.80}, expected {wanted}")

    @classmethod
    def from_pretrained(cls, folder: str | os.PathLike[str]) -> "StaticModelPipeline":
        """Load a folder that Model2Vec or `save_pretrained` has written, or an id on the hub.

        Raises CheckpointError for invalid files, and for the older pipeline.skops, which may hold code.
        """
        folder = resolve(folder, "sentence_encoder")
        file = Path(folder) / HEAD_NAME
        if not file.is_file():
            older = (file.parent / "pipeline.skops").is_file()
            hint = ": model2vec.inference.convert_legacy_pipeline converts pipeline.skops, which may hold code"
            raise missing_file(file, f"has no {HEAD_NAME}{hint if older else ''}")
        model = SentenceEncoder(folder, unknown="drop")
        own = read_json_object(file.parent / CONFIG_NAME).get("head_config")
        own = {"n_layers": 0, "activation": "identity", "classes": None} | (own if isinstance(own, dict) else {})
        weights, count = open_checkpoint(file), own["n_layers"]
        names = [f"head.{number}.{part}" for number in range(len(weights) // 2) for part in ("weight", "bias")]
        if count != len(weights) // 2 or set(names) != set(weights):
            raise CheckpointError(f"{file} has {', '.join(sorted(weights))}, expected the maps head.0 to {count!r}")
        arrays = [np.asarray(weights[name], np.float32) for name in names]
        try:
            return cls(model, list(zip(arrays[::2], arrays[1::2], strict=True)), own["activation"], own["classes"])
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"{file.parent}: {error}") from error

    @classmethod
    def from_estimator(cls, model: SentenceEncoder, estimator: Any) -> "StaticModelPipeline":
        """Take the head of a fitted scikit-learn LogisticRegression, MLPClassifier or MLPRegressor of embeddings.

        Raises ValueError for another estimator, or another activation than ReLU between layers.
        """
        kind, classes = type(estimator).__name__, getattr(estimator, "classes_", None)
        kind = kind if hasattr(estimator, "coef_") or hasattr(estimator, "coefs_") else "unfitted"
        if kind == "LogisticRegression" and (estimator.solver != "liblinear" or len(classes) == 2):
            layers, activation = [(estimator.coef_, estimator.intercept_)], "softmax"
        elif kind in ("MLPClassifier", "MLPRegressor") and (estimator.activation == "relu" or estimator.n_layers_ == 2):
            layers = [(weight.T, bias) for weight, bias in zip(estimator.coefs_, estimator.intercepts_, strict=True)]
            activation = {"logistic": "sigmoid"}.get(estimator.out_activation_, estimator.out_activation_)
        else:
            known = "LogisticRegression, MLPClassifier or MLPRegressor with ReLU"
            raise ValueError(f"estimator is {estimator!r:.80}, expected a fitted {known}")
        weight, bias = layers[-1]
        if classes is not None and (len(weight), len(classes)) == (1, 2):  # the score of the second class
            layers[-1] = np.concatenate([0 * weight, weight]), np.concatenate([0 * bias, bias])
            activation = "softmax"
        return cls(model, layers, activation, classes)

    def predict(self, texts: str | Iterable[str], *, threshold: float = 0.5, **options: Any) -> np.ndarray:
        """Return the class of each text, or its classes above `threshold`, or its numbers (texts, outputs).

        `options` are those of `SentenceEncoder.encode`.
        """
        if self.activation == "sigmoid":
            chosen = self.predict_proba(texts, **options) > check_share("threshold", threshold)
            found = np.empty(len(chosen), object)
            found[:] = [self.classes_[row] for row in chosen]
            return found
        scores = self._scores(texts, options)
        return scores if self.classes_ is None else self.classes_[scores.argmax(axis=1)]

    def predict_proba(self, texts: str | Iterable[str], **options: Any) -> np.ndarray:
        """Return the probability of each class, (texts, classes). Raises ValueError for a regression."""
        if self.classes_ is None:
            raise ValueError("activation is 'identity', expected 'softmax' or 'sigmoid' for probabilities")
        return FUNCTIONS[self.activation](self._scores(texts, options))

    def answers(self, texts: Iterable[str], top_k: int | None = 1, **options: Any) -> Iterator[list[dict[str, Any]]]:
        """Return an iterator over [{"label", "score"}, ...] of each text, as from pipeline("text-classification").

        `top_k` is the most classes, best first; None for all. The outputs of a regression are LABEL_0, LABEL_1, ...
        `options` are those of `SentenceEncoder.encode_stream`; texts may be a stream.
        """
        top_k = None if top_k is None else check_count("top_k", top_k)
        rows, names = self.model.encode_stream(texts, **options), self.labels
        return (best_labels(self.shares(self.logits(row[None]))[0], names, top_k) for row in rows)

    @property
    def labels(self) -> list[str]:
        """The names of the outputs; those of a regression are LABEL_0, LABEL_1, ..."""
        if self.classes_ is not None:
            return list(map(str, self.classes_.tolist()))
        count = len(self.layers[-1][1]) if self.layers else self.model.embedding_dimension
        return [f"LABEL_{number}" for number in range(count)]

    def _scores(self, texts: str | Iterable[str], options: Mapping[str, Any]) -> np.ndarray:
        return self.logits(np.atleast_2d(self.model.encode(texts, **options)))

    def shares(self, logits: np.ndarray) -> np.ndarray:
        """Return the probabilities that follow from logits; those of a regression stay as they are."""
        return FUNCTIONS[self.activation if self.classes_ is not None else "none"](logits)

    def logits(self, rows: np.ndarray) -> np.ndarray:
        """Return the outputs of the last layer, (texts, outputs), for embeddings."""
        for number, (weight, bias) in enumerate(self.layers):
            rows = (np.maximum(rows, 0) if number else rows) @ weight.T + bias
        return rows

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Write the folder, which Model2Vec's StaticModelPipeline and, for embeddings alone, `SentenceEncoder` load."""
        model, classes = self.model, None if self.classes_ is None else self.classes_.tolist()
        length = model.max_seq_length
        config = {
            "hidden_dim": model.embedding_dimension,
            "normalize": model.settings.normalize,
            "max_length": None if length == MOST_TOKENS else length,
            "embedding_dtype": "float32",
            "head_config": {"n_layers": len(self.layers), "activation": self.activation, "classes": classes},
        }
        parts = {
            f"head.{number}.{name}": part
            for number, pair in enumerate(self.layers)
            for name, part in zip(("weight", "bias"), pair, strict=True)
        }
        tokenizer = model.tokenizer.backend_tokenizer.to_str()
        _write(made_folder(folder), config, model.model.tensors(), tokenizer, {HEAD_NAME: parts})


def _dimensions(pca_dims: float | str | None) -> float | str | None:
    """Return the number of dimensions, a share of the variance, or "auto"; None for no analysis."""
    if pca_dims is None or pca_dims == "auto":
        return pca_dims
    if isinstance(pca_dims, float):
        if not check_share("pca_dims", pca_dims) > 0:
            raise ValueError(f"pca_dims is {pca_dims}, expected a share of the variance above 0")
        return pca_dims
    return check_count("pca_dims", pca_dims)


def _vocabulary(tokenizer: Tokenizer, words: list[str], removed: re.Pattern[str] | None) -> tuple[str, list[list[int]]]:
    """Return tokenizer.json of the kept tokens, numbered anew, and the original ids of each, with special ones.

    Special tokens are removed, except the padding and unknown tokens; no special tokens are added to texts.
    """
    parts = json.loads(tokenizer.backend_tokenizer.to_str())
    own, kind = parts["model"], parts["model"]["type"]
    before, after = _special_ids(tokenizer)
    is_list = isinstance(own["vocab"], list)
    names = [entry[0] for entry in own["vocab"]] if is_list else sorted(own["vocab"], key=own["vocab"].get)
    ids = dict(zip(names, range(len(names)), strict=True)) if is_list else dict(own["vocab"])
    unknown = unknown_id(tokenizer)
    needed = {tokenizer.pad_token, tokenizer.unk_token, None if unknown is None else names[unknown]}
    special = {entry["content"] for entry in parts["added_tokens"]} - needed
    is_gone = removed.match if removed is not None else lambda name: False
    gone = {name for name in names if name in special or (name not in needed and is_gone(name))}
    kept = [name for name in names if name not in gone]
    if set(kept) <= needed:
        raise ValueError("token_remove_pattern matches every token, expected some to be left")
    new = {name: number for number, name in enumerate(kept)}
    rows = [[*before, ids[name], *after] for name in kept]
    if is_list:
        own["vocab"] = [entry for entry in own["vocab"] if entry[0] not in gone]
        own["unk_id"] = new.get(names[own["unk_id"]]) if own.get("unk_id") is not None else None
    else:
        own["vocab"] = new
    if kind == "BPE":
        pairs = [pair if isinstance(pair, list) else pair.split(" ") for pair in own["merges"]]
        own["merges"] = [pair for pair in pairs if {*pair, "".join(pair)} <= set(new)]
    parts["added_tokens"] = [
        entry | {"id": new[entry["content"]]} for entry in parts["added_tokens"] if entry["content"] in new
    ]
    parts |= {"post_processor": None, "padding": None, "truncation": None}
    pre_tokenizers = parts["pre_tokenizer"] or {}
    for each in pre_tokenizers.get("pretokenizers", [pre_tokenizers]):
        if "add_prefix_space" in each:
            each["add_prefix_space"] = True  # a text's first word is like the others
    rows += _add(words, parts, tokenizer, new)
    return json.dumps(parts, ensure_ascii=False), rows


def _add(words: list[str], parts: dict[str, Any], tokenizer: Tokenizer, new: dict[str, int]) -> list[list[int]]:
    """Add words and phrases to a tokenizer's parts; return the original ids of each."""
    if words and parts["model"]["type"] != "WordPiece":
        raise ValueError(f"vocabulary is given with a {parts['model']['type']} tokenizer, expected one of WordPiece")
    backend, rows, phrases = tokenizer.backend_tokenizer, [], set()
    for word in words:
        plain = backend.normalizer.normalize_str(word).strip() if backend.normalizer else word.strip()
        pieces = [piece for piece, _ in backend.pre_tokenizer.pre_tokenize_str(plain)]
        name = pieces[0] if len(pieces) == 1 else plain
        if not pieces or name in new:
            continue
        new[name] = len(new)
        rows.append(tokenizer.encode(name))
        if len(pieces) > 1:
            phrases.add(name)
            entry = {"id": new[name], "content": name, "normalized": True, "special": False}
            parts["added_tokens"].append(entry | dict.fromkeys(("single_word", "lstrip", "rstrip"), False))
    if words:
        parts["model"]["vocab"] = {name: number for name, number in new.items() if name not in phrases}
    return rows


def _special_ids(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Return the ids of the special tokens before and after a text."""
    row = tokenizer("a", return_special_tokens_mask=True)
    ids, is_special = list(row["input_ids"]), list(row["special_tokens_mask"])
    first = is_special.index(0)
    last = len(ids) - is_special[::-1].index(0)
    return ids[:first], ids[last:]


def _vectors(encoder: SentenceEncoder, rows: list[list[int]], pooling: str) -> np.ndarray:
    """Return the pooled hidden states of rows of ids, float32."""
    found = np.empty((len(rows), encoder.model.spec.hidden_size), np.float32)
    order = sorted(range(len(rows)), key=lambda number: len(rows[number]))
    for start in range(0, len(rows), ROWS):
        some = order[start : start + ROWS]
        hidden, cu_seqlens = encoder.model.encode_packed([np.array(rows[number], np.int32) for number in some])
        found[some] = kernels.to_host(pool(hidden, cu_seqlens, (pooling,)))
    return np.nan_to_num(found)


def _principal_components(vectors: np.ndarray, wanted: Any) -> np.ndarray:
    """Return the vectors along their first principal components, the largest entry of each positive."""
    width = vectors.shape[1]
    wanted = width if wanted == "auto" else wanted if isinstance(wanted, float) else min(wanted, width)
    if wanted >= len(vectors):
        return vectors
    centred = vectors - vectors.mean(axis=0, dtype=np.float64)
    variances, directions = np.linalg.eigh(centred.T @ centred / (len(vectors) - 1))
    variances, directions = np.clip(variances[::-1], 0, None), directions[:, ::-1]
    if isinstance(wanted, float):
        share = np.cumsum(variances) / variances.sum()
        wanted = min(int(np.searchsorted(share, wanted)) + 1, width)
    found = centred @ directions[:, :wanted]
    largest = np.take_along_axis(found, np.abs(found).argmax(axis=0)[None], axis=0)
    return (found * np.sign(largest)).astype(np.float32)


def _weights(count: int, coefficient: float) -> np.ndarray:
    """Return the smooth inverse frequency of each rank, with frequencies in proportion to 1 / (rank + 2)."""
    inverse = 1 / np.arange(2, count + 2)
    return coefficient / (coefficient + inverse / inverse.sum())


def _quantized(vectors: np.ndarray, dtype: str) -> np.ndarray:
    if dtype != "int8":
        return vectors.astype(dtype)
    scale = np.abs(vectors).max() / 127 or 1.0
    return np.clip(np.rint(vectors / scale), -127, 127).astype(np.int8)


def _write(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Any], tokenizer: str, more: Mapping[str, Any] = {}
) -> None:
    config = {"model_type": "model2vec", "architectures": ["StaticModel"], "seq_length": SEQUENCE, **config}
    kinds = {".": f"{MODELS}.StaticEmbedding", "1_Normalize": f"{MODELS}.Normalize"}
    modules = module_entries(dict(list(kinds.items())[: 1 + config["normalize"]]))
    with replacing(folder, CONFIG_NAME) as new:
        for name, arrays in {WEIGHTS_NAME: tensors, **more}.items():
            write_safetensors(new / name, {key: np.ascontiguousarray(array) for key, array in arrays.items()})
        for name, value in ((CONFIG_NAME, config), (MODULES_NAME, modules)):
            write_json(new / name, value)
        (new / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
