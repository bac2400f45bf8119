"""Write models in low precision, and compare them with float32 on texts: size, speed, embeddings, words."""

import contextlib
import functools
import itertools
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np

from bertcore import checkpoint, kernels
from bertcore.arguments import INT8, Result
from bertcore.checkpoint import INPUT_SCALE, SCALE, Checkpoint, CheckpointError
from bertcore.checkpoint.files import CONFIG_NAME, naming, temporary_beside
from bertcore.checkpoint.parameters import find_parameters
from bertcore.models.architectures import models_of
from bertcore.models.auto import AutoModelForMaskedLM
from bertcore.models.model import Model, NewlyInitialisedWarning
from bertcore.models.registry import family_of
from bertcore.models.rounding import observed_inputs, rounded_weight
from bertcore.models.with_heads import head_specs
from bertcore.system import replace
from bertcore.tasks.loading import ENCODERS, read_encoder_settings
from bertcore.tasks.multi_vector.modules import is_late
from bertcore.tasks.search import semantic_search
from bertcore.tasks.sentence_encoder import SentenceEncoder
from bertcore.tasks.similarity import pairwise_cos_sim

CALIBRATED_AT_ONCE = 32  # texts
COPIED = (".json", ".txt", ".model", ".md", ".metadata")  # tokenizers, settings of encoders, model cards
GROUP = 32  # texts that are embedded at once, and timed


def quantize(
    source: Path, target: Path, dtype: str, texts: Iterable[str] | None = None, name: str = "texts"
) -> tuple[int, int]:
    """Write a model in low precision to another folder, with its tokenizer and its settings as an encoder.

    Args:
        source: folder of the model, in float32, float16 or bfloat16.
        target: folder to write; it appears only when complete, and must be empty if it exists.
        dtype: "int8", "int8_weight_only" or "bfloat16".
        texts: sample texts; int8 weights are rounded to minimise the error on the encoder's inputs from these.
        name: the name of the texts in error messages.

    Returns:
        The total bytes of the tensors before and after.

    Raises:
        ValueError: for a model in low precision, a folder that holds files, links out of `source`, and missing texts.
    """
    settings = read_encoder_settings(source)
    model = settings.model_folder
    _check_links(source, settings.folders)
    check_target(target, (source, model))
    config, stored_dtype = checkpoint.split_dtype(model, checkpoint.read_config(model))
    if stored_dtype is not None:
        raise ValueError(f"{model} is in {stored_dtype}, expected the model that it was made from")
    opened = family_of(config).name_rules.published(checkpoint.open_checkpoint(model))
    calibrated = {} if texts is None else _calibrated(source, opened, texts, name)
    with checkpoint.naming_config(model):
        tensors, unquantized = converted(opened, config, dtype, calibrated)
    smoothed = any(name.endswith(INPUT_SCALE) for name in tensors)
    config = checkpoint.with_dtype(config, dtype, unquantized, smoothed=smoothed)
    with written_beside(target) as beside:
        with_weights = {module.folder for module in settings.maps}  # their weights are copied
        _copy_files(source, beside, settings.folders, model / CONFIG_NAME, with_weights, target)
        with naming(target):
            checkpoint.save_checkpoint(beside / model.relative_to(source), config, tensors)
    return sum(opened[name].nbytes for name in opened), sum(array.nbytes for array in tensors.values())


def _calibrated(source: Path, opened: Checkpoint, texts: Iterable[str], name: str) -> dict[str, dict[str, Any]]:
    """Return the calibrated tensors of the encoder's weights, by the old name."""
    encoder = ENCODERS["late" if is_late(source) else "dense"](source, dtype="float32")
    model, found, count = encoder.model, {}, 0
    rules = model.family.name_rules
    sources = find_parameters(opened, model.expected_tensors(), rules, optional=rules.heads)
    with observed_inputs(model) as statistics:
        given = iter(texts)
        while some := list(itertools.islice(given, CALIBRATED_AT_ONCE)):
            encoder.encode(some, show_progress_bar=False)
            count += len(some)
        if not count:
            raise ValueError(f"{name} holds no texts")
    for parameter, of_inputs in statistics.items():
        if of_inputs.rows == 0:  # not used by any text
            continue
        function = functools.partial(rounded_weight, statistics=of_inputs, parts=len(parameter.names))
        rounded = _named(", ".join(parameter.names), function, parameter.array())
        scales = dict(parameter.parts(rounded.scale[:, None]))
        for own_name, values in parameter.parts(rounded.values):
            stored = sources[own_name]
            found[stored] = {stored: values, stored + SCALE: scales[own_name]}
            if rounded.input_scale is not None:
                found[stored][stored + INPUT_SCALE] = rounded.input_scale
    return found


def converted(
    opened: Checkpoint, config: dict[str, Any], dtype: str,
    calibrated: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> tuple[dict[str, Any], list[str]]:  # fmt: skip
    """Return the new tensors under their old names, and the matrices of unknown heads, which are unchanged.

    `calibrated` holds tensors that have already been computed, by their old names.
    """
    uses, layouts, copies = _uses(opened, config)
    tensors = {}
    for name in opened:
        array, use, layout = opened[name], uses.get(name, set()), layouts.get(name)
        if name in copies:
            continue
        if name in calibrated:
            tensors.update(calibrated[name])
            continue
        if dtype in INT8 and use == {"weight"}:
            array, is_grouped = np.asarray(array, np.float32), dtype == "int8_weight_only"
            quantize = functools.partial(kernels.quantize_weight, per_group=is_grouped)
            values, scale = _named(name, quantize, array if layout is None else layout.to_computing(array))
            tensors[name] = values if layout is None else layout.to_stored(values)
            rows = scale if is_grouped else scale[:, None]
            tensors[name + SCALE] = rows if layout is None or is_grouped else layout.to_stored(rows)
        elif use & {"weight", "table"}:
            tensors[name] = array.astype(ml_dtypes.bfloat16)
        else:
            tensors[name] = array.astype(np.float32, copy=False) if use else array
    others = [name.removesuffix(".weight") for name in opened if name.endswith(".weight") and name not in uses]
    return tensors, others


def _named(name: str, function: Callable[[Any], Result], array: object) -> Result:
    try:
        return function(array)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _uses(opened: Checkpoint, config: dict[str, Any]) -> tuple[dict[str, set[str]], dict[str, Any], set[str]]:
    """Return the uses of each tensor ("weight", "table", "vector"), its layout, and the copies of tied tensors."""
    uses: dict[str, set[str]] = {}
    layouts: dict[str, Any] = {}
    for class_name, model in models_of(config).items():
        rules = model.family.name_rules
        try:
            sources = find_parameters(opened, model.expected_tensors(), rules, optional=rules.heads)
        except CheckpointError:
            if class_name == "AutoModel":  # every checkpoint has the encoder; other heads stay unchanged
                raise
            continue
        for parameter in model.parameters():
            for name in filter(sources.__contains__, parameter.names):
                uses.setdefault(sources[name], set()).update(parameter.uses)
                layouts[sources[name]] = parameter.layout
    pairs = [
        (name, other)
        for copy, original in rules.tied
        for name in opened
        for other in opened
        if name.endswith(copy) and other.endswith(original) and name not in uses
    ]
    return uses, layouts, {name for name, other in pairs if np.array_equal(opened[name], opened[other])}


def _check_links(source: Path, folders: Iterable[Path]) -> None:
    """Raise ValueError for links out of the model's folder, except into the blobs of the Hugging Face cache."""
    allowed = [source.resolve()]
    if allowed[0].parent.name == "snapshots":
        allowed.append(allowed[0].parent.parent / "blobs")
    for folder in filter(Path.is_dir, folders):
        for path in (folder, *folder.iterdir()):
            if not any(path.resolve().is_relative_to(root) for root in allowed):
                raise ValueError(
                    f"{path} is a link out of the model's folder, to {path.resolve()}: "
                    "if it is intended, copy the model and the files that its links point to (cp -rL)"
                )


def check_target(target: Path, sources: tuple[Path, ...]) -> None:
    """Raise ValueError unless `target` is new or an empty folder, and none of `sources`."""
    if not target.exists():
        return
    if not target.is_dir():
        raise ValueError(f"{target} is not a folder")
    if any(target.samefile(source) for source in sources):
        raise ValueError(f"{target} is the model itself: give another folder")
    if any(target.iterdir()):  # an old tokenizer or shard would be read as the new model's
        raise ValueError(f"{target} holds files: give a new or empty folder")


@contextlib.contextmanager
def written_beside(target: Path) -> Iterator[Path]:
    """Return a context with a new folder beside `target`, which replaces it when the block succeeds."""
    place = target.resolve()
    with naming(target):
        place.parent.mkdir(parents=True, exist_ok=True)
    with temporary_beside(place) as beside:
        with naming(target):
            beside.mkdir()
        yield beside
        with naming(target):
            if place.exists():
                place.rmdir()
            replace(beside, place)


def _copy_files(
    source: Path, beside: Path, folders: Iterable[Path], config: Path, with_weights: Iterable[Path], target: Path
) -> None:
    """Copy files other than weights and `config` from the folders of a model in `source`, all from `with_weights`."""
    for folder in filter(Path.is_dir, folders):
        place = beside / folder.relative_to(source)
        with naming(target):
            place.mkdir(parents=True, exist_ok=True)
        for file in folder.iterdir():
            is_weights = file.name.endswith(".index.json") or file == config
            if file.is_file() and (folder in with_weights or (file.suffix in COPIED and not is_weights)):
                content = file.read_bytes()
                with naming(target):
                    (place / file.name).write_bytes(content)


@dataclass(frozen=True)
class Comparison:
    """A model in low precision compared with itself in float32."""

    dtype: str  # the dtype of the model
    megabytes: float  # the size of its tensors, 10^6 bytes
    speed: float  # its speed, in multiples of the speed of float32
    # cosines of embeddings with the embeddings in float32
    cosine_mean: float
    cosine_percentile_1: float
    cosine_worst: float
    worst_text: str  # the text with the worst cosine
    # the share of texts whose nearest other text is the same; None for fewer than three texts
    nearest_agreement: float | None
    hidden_error: float  # the norm of the difference of all hidden states, relative to their norm
    # the share of tokens for which the masked-LM head predicts the same word; None without a head
    word_agreement: float | None


def compare_precision(folder: Path, texts: list[str], dtypes: list[str]) -> tuple[float, list[Comparison]]:
    """Return the size of a model in float32, in megabytes, and its comparison with each of `dtypes` on the texts."""
    exact = SentenceEncoder(folder, dtype="float32")
    found = [_comparison(folder, exact, dtype, texts) for dtype in dtypes]
    return _megabytes(exact.model), found


def _comparison(folder: Path, exact: SentenceEncoder, dtype: str, texts: list[str]) -> Comparison:
    low = SentenceEncoder(folder, dtype=dtype)
    speed, expected, found = _embed_in_turns(exact, low, texts)
    cosines = pairwise_cos_sim(expected, found)
    worst = int(cosines.argmin())
    return Comparison(
        dtype=dtype,
        megabytes=_megabytes(low.model),
        speed=speed,
        cosine_mean=float(cosines.mean()),
        cosine_percentile_1=float(np.percentile(cosines, 1)),
        cosine_worst=float(cosines[worst]),
        worst_text=texts[worst],
        nearest_agreement=float((_nearest(expected) == _nearest(found)).mean()) if len(texts) > 2 else None,
        hidden_error=_hidden_error(exact, low, texts),
        word_agreement=_word_agreement(exact, dtype, texts),
    )


def _megabytes(model: Model) -> float:
    return sum(array.nbytes for parameter in model.parameters() for _, array in parameter.tensors()) / 1e6


def _embed_in_turns(exact: SentenceEncoder, low: SentenceEncoder, texts: list[str]) -> tuple[float, Any, Any]:
    """Return the speed of `low` in multiples of the speed of `exact`, and the embeddings of both in float64."""
    for encoder in (exact, low):
        encoder.encode(texts[:GROUP], show_progress_bar=False)  # preparation and compilation are not timed
    embeddings: tuple[list, list] = ([], [])
    ratios = []
    for group in _grouped(texts):
        seconds = []
        for encoder, found in zip((exact, low), embeddings, strict=True):
            start = time.perf_counter()
            found.append(encoder.encode(group, show_progress_bar=False))
            seconds.append(time.perf_counter() - start)
        ratios.append(seconds[0] / seconds[1])
    return statistics.median(ratios), *(np.concatenate(found).astype(np.float64) for found in embeddings)


def _grouped(texts: list[str]) -> Iterator[list[str]]:
    return (texts[first : first + GROUP] for first in range(0, len(texts), GROUP))


def _nearest(embeddings: np.ndarray) -> np.ndarray:
    """Return the index of the nearest other row (by cosine) to each row."""
    found = semantic_search(embeddings, embeddings, top_k=2)  # one of the two may be the row itself
    return np.array(
        [next(each["corpus_id"] for each in two if each["corpus_id"] != row) for row, two in enumerate(found)]
    )


def _ids(encoder: SentenceEncoder, texts: list[str]) -> list[Any]:
    return [ids for ids, _ in encoder.token_rows(texts)]


def _hidden_error(exact: SentenceEncoder, low: SentenceEncoder, texts: list[str]) -> float:
    difference = length = 0.0
    for group in _grouped(texts):
        ids = _ids(exact, group)
        expected, found = (
            kernels.to_host(each.model.encode_packed(ids)[0]).astype(np.float64) for each in (exact, low)
        )
        difference += np.square(found - expected).sum()
        length += np.square(expected).sum()
    return float(np.sqrt(difference / length)) if length else 0.0


def _word_agreement(exact: SentenceEncoder, dtype: str, texts: list[str]) -> float | None:
    model_folder = exact.settings.model_folder
    if "masked_lm" not in head_specs(exact.model.config):
        return None
    with warnings.catch_warnings():  # a missing head is one of the answers
        warnings.simplefilter("ignore", NewlyInitialisedWarning)
        models = [AutoModelForMaskedLM.from_pretrained(model_folder, dtype=each) for each in ("float32", dtype)]
    if models[0].newly_initialised:
        return None
    same = tokens = 0
    for text in texts:  # one by one: the scores of all words at each token take memory
        expected, found = (kernels.to_host(model(_ids(exact, [text])).logits)[0].argmax(axis=-1) for model in models)
        same += int((expected == found).sum())
        tokens += len(expected)
    return same / tokens
