"""Fit the tensors of a checkpoint to the parameters of a model.

Users see the parameter names that transformers gives the same model class today
("bert.encoder.layer.0.attention.self.query.weight"). Files differ from them in a few regular ways, which a family
states as `NameRules`. The rules go one way only, from a model's name to every spelling that a file may use; reading
inverts them, so the two directions cannot disagree.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from .config import INPUT_SCALE, SCALE
from .files import CheckpointError, listed
from .safetensors_file import TensorInfo
from .weights import Checkpoint, RenamedCheckpoint

Problems = dict[str, list[str]]  # by the kinds of PROBLEMS
FLOATING = ("F64", "F32", "F16", "BF16")

# TensorFlow's names of layer norm parameters, in checkpoints converted before 2020.
LAYER_NORM_ENDINGS = ((".LayerNorm.weight", ".LayerNorm.gamma"), (".LayerNorm.bias", ".LayerNorm.beta"))

# Index buffers that earlier versions of transformers stored with the weights.
INDEX_BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")


# Modules of transformers 5, and their names in the published code of these families.
LATER_MODULES = (
    (".post_attention_layernorm.", ".norm1."),
    (".post_mlp_layernorm.", ".norm2."),
    (".embeddings.LayerNorm.", ".emb_ln."),
    (".layers.", ".encoder.layers."),
)


@dataclass(frozen=True)
class NameRules:
    """The spellings of one family's checkpoints. All names but `prefix` itself are bare: without `prefix`.

    Attributes:
        heads: beginnings of the names that belong to a head, or to the pooler; a model may leave whole heads of a file
            unused.
        tied: pairs (copy, original) of parameters that are one array if config.json ties them; a file may hold either
            or both.
        untied: pairs (name, original) of separate parameters that were one array in files of earlier versions, which
            may hold only the original (LUKE's decoder of words before transformers 5).
        anchor: the end of a name that every checkpoint of the family has; in a file it follows the file's own prefix,
            which wrappers such as DataParallel leave ("module.bert.").
        buffers: ends of names (whole parts of them) of tensors that are not parameters and are skipped.
        modules: pairs (transformers' own module, or several in order; the published module that they form), as parts of
            names, for families whose files and this library have the published names.
    """

    prefix: str  # precedes the names of the encoder in a model with a head ("bert."); not in files of encoders alone
    heads: tuple[str, ...] = ()
    tied: tuple[tuple[str, str], ...] = ()
    untied: tuple[tuple[str, str], ...] = ()
    anchor: str = "embeddings.word_embeddings.weight"
    endings: tuple[tuple[str, str], ...] = LAYER_NORM_ENDINGS  # pairs (ending of a name, its spelling in old files)
    buffers: tuple[str, ...] = INDEX_BUFFERS
    modules: tuple[tuple[str | tuple[str, ...], str], ...] = ()

    def published(self, checkpoint: Checkpoint) -> Checkpoint:
        """Return the checkpoint under its published names, if it has those of transformers' own modules."""
        pairs = [((own,) if isinstance(own, str) else own, published) for own, published in self.modules]
        joined = tuple(part for own, _ in pairs if len(own) > 1 for part in own)
        if not any(part in name for name in checkpoint for part in joined):
            return checkpoint
        parts: dict[str, dict[int, str]] = {}
        for name in checkpoint:
            renamed, place = f".{name}", 0
            for own, published in pairs:
                for index, part in enumerate(own):
                    if part in renamed:
                        renamed, place = renamed.replace(part, published), index if len(own) > 1 else place
            parts.setdefault(renamed[1:], {})[place] = name
        return RenamedCheckpoint(checkpoint, {name: [some[at] for at in sorted(some)] for name, some in parts.items()})

    def without_prefix(self, name: str) -> str:
        """Return `name` without the family's prefix."""
        return name.removeprefix(self.prefix)

    def spellings(self, name: str) -> list[str]:
        """Return every spelling of a model's parameter `name` in files; the first is the bare name."""
        bare = self.without_prefix(name)
        old = [bare.removesuffix(ending) + old for ending, old in self.endings if bare.endswith(ending)]
        return [prefix + spelling for spelling in (bare, *old) for prefix in ("", self.prefix)]

    def wrappers(self, names: Iterable[str]) -> list[str]:
        """Return the prefixes of a file's tensor names: usually [""], for some files ["module."].

        Several entries mean several encoders in one file; an empty list means that the anchor is missing.
        """
        before = {name.removesuffix(self.anchor) for name in names if name.endswith(self.anchor)}
        return sorted({prefix.removesuffix(self.prefix) for prefix in before})

    def is_buffer(self, name: str) -> bool:
        """Return whether the tensor `name` is not a parameter."""
        return any(f".{name}".endswith(f".{buffer}") for buffer in self.buffers)

    def head_of(self, name: str) -> str | None:
        """Return the head (an entry of `heads`) of the parameter `name`; None for one of the encoder itself."""
        return next((head for head in self.heads if self.without_prefix(name).startswith(head)), None)


def load_parameters(
    checkpoint: Checkpoint,
    expected: Mapping[str, tuple[int, ...]],
    rules: NameRules,
    *,
    optional: Iterable[str] = (),
    scales: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
    scale_dtype: Any = np.float32,
    keeps_float16: bool = False,
) -> dict[str, np.ndarray]:
    """Read the arrays of a model's parameters from `checkpoint`.

    Args:
        checkpoint: an open checkpoint (`open_checkpoint`).
        expected: the model's parameters: name -> shape. Names are the model's own, with or without `rules.prefix`.
        rules: the spellings of names in files. A head of `rules.heads` that the file has and the model does not expect
            is skipped; so are index buffers, and copies of tied parameters if they equal the original.
        optional: beginnings of names ("classifier."), each of a part that the file may lack as a whole; the result then
            lacks it too, for the caller to initialise. A part that is only partly there is an error like any other.
        scales: name -> the shape of the scales of an int8 tensor; by default (rows, 1) for a matrix.
        scale_dtype: the dtype that those scales are converted to.
        keeps_float16: keep float16 scales in float16.

    Returns name -> array in the order of `expected`, in the stored dtype. A matrix may be stored in int8 with its
    scales; name + SCALE -> scales then follow it, and name + INPUT_SCALE if the file has them. Arrays may be read-only
    views of the mapped file.

    Raises one CheckpointError that names every problem: missing tensors, tensors the model does not have, wrong shapes
    (name, expected, found), tensors that are not floating point, int8 without scales, parameters stored twice, tied
    parameters that differ; and one for a scale that is below 0, inf or NaN.
    """
    sources = find_parameters(checkpoint, expected, rules, optional=optional, scales=scales)
    arrays = {}
    for name in filter(sources.__contains__, expected):
        arrays[name] = checkpoint[sources[name]]
        if arrays[name].dtype == np.int8:
            for end, dtype in ((SCALE, scale_dtype), (INPUT_SCALE, np.float32)):
                if sources[name] + end in checkpoint:
                    scale = _scale(checkpoint, sources[name] + end)
                    keeps = keeps_float16 and scale.dtype == np.float16
                    arrays[name + end] = scale if keeps else scale.astype(dtype, copy=False)
    return arrays


def _scale(checkpoint: Checkpoint, name: str) -> np.ndarray:
    scale = checkpoint[name]
    wrong = np.argwhere(~(np.isfinite(scale) & (scale >= 0))).tolist()
    if wrong:
        found = f"{name}{wrong[0]} is {scale[tuple(wrong[0])]}"
        raise CheckpointError(f"{checkpoint.source}: {found}, expected finite numbers of at least 0")
    return scale


def find_parameters(
    checkpoint: Checkpoint,
    expected: Mapping[str, tuple[int, ...]],
    rules: NameRules,
    *,
    optional: Iterable[str] = (),
    scales: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
) -> dict[str, str]:
    """Find each parameter's tensor in `checkpoint`, name -> the file's name; arguments as in `load_parameters`."""
    problems: Problems = {kind: [] for kind in PROBLEMS}
    sources = _match(checkpoint, expected, rules, problems)
    present = [rules.without_prefix(name) for name in sources]
    starts = [rules.without_prefix(start) for start in optional]
    absent_parts = tuple(start for start in starts if not any(name.startswith(start) for name in present))
    for name, shape in expected.items():
        if name in sources:
            scale_shape = scales.get(name, (shape[0], 1) if len(shape) == 2 else None)
            _check_tensor(problems, checkpoint.info, name, shape, sources[name], scale_shape)
        elif not rules.without_prefix(name).startswith(absent_parts):
            problems["missing"].append(name)
    if any(problems.values()):
        found = (f"  {PROBLEMS[kind]} ({len(some)}): {listed(some)}" for kind, some in problems.items() if some)
        raise CheckpointError("\n".join([f"{checkpoint.source} does not fit the model:", *found]))
    return sources


def _match(checkpoint: Checkpoint, expected: Iterable[str], rules: NameRules, problems: Problems) -> dict[str, str]:
    """Return the file's name of every expected parameter that the file has; misfits go to `problems`."""
    wrappers = rules.wrappers(checkpoint)
    if len(wrappers) > 1:
        found = listed([f"{wrapper}*" for wrapper in wrappers])
        raise CheckpointError(f"{checkpoint.source} holds {len(wrappers)} encoders, expected one: {found}")
    wrapper = wrappers[0] if wrappers else ""
    by_spelling = {spelling: name for name in expected for spelling in rules.spellings(name)}
    sources: dict[str, str] = {}
    left_over: dict[str, str] = {}  # bare name -> the file's name
    integers = (name for name, info in checkpoint.info.items() if info.dtype == "I8")
    scales = {name + end for name in integers for end in (SCALE, INPUT_SCALE)}
    for file_name in (name for name in checkpoint if name not in scales):
        plain = file_name.removeprefix(wrapper)
        name = by_spelling.get(plain)
        if name is None:
            left_over[rules.without_prefix(plain)] = file_name
        elif name in sources:
            problems["twice"].append(f"{name} (as {sources[name]} and as {file_name})")
        else:
            sources[name] = file_name
    expected_heads = {rules.head_of(name) for name in expected}
    tied = [pair for pair in rules.tied if rules.head_of(pair[0]) in expected_heads]
    _use_tied(checkpoint, by_spelling, tied, sources, left_over, problems)
    heads = {rules.head_of(name) for name in sources}
    for bare, original in rules.untied:  # the original stands in for a parameter that a file of its head lacks
        name, origin = by_spelling.get(bare), by_spelling.get(original)
        if name is not None and name not in sources and origin in sources and rules.head_of(bare) in heads:
            sources[name] = sources[origin]
    read_heads = {rules.head_of(name) for name in sources}  # equal beginnings in other heads mean nothing
    for bare, file_name in left_over.items():
        head = rules.head_of(bare)
        if not rules.is_buffer(bare) and (head is None or head in read_heads):
            problems["unknown"].append(file_name)
    return sources


def _use_tied(checkpoint, by_spelling, tied, sources, left_over, problems) -> None:
    """Remove tied tensors from `left_over`: one of a pair replaces the other, or repeats it."""
    for copy, original in tied:
        for wanted, spare in ((original, copy), (copy, original)):
            name = by_spelling.get(wanted)
            if name is None or spare not in left_over:
                continue
            stand_in = left_over.pop(spare)
            if name not in sources:
                sources[name] = stand_in
            elif wanted == original and not np.array_equal(checkpoint[sources[name]], checkpoint[stand_in]):
                problems["untied"].append(f"{stand_in} and {sources[name]}")
            # transformers 5 saves a spare original, unused, beside the copy of an untied decoder's bias.


# All problems of a checkpoint, for one error that names them.
PROBLEMS = {
    "missing": "missing tensors",
    "unknown": "tensors the model does not have",
    "wrong_shape": "tensors of the wrong shape",
    "not_floating": "tensors that are neither floating point nor int8 matrices",
    "scales": f"int8 tensors whose scales (their names with {SCALE}) are missing or wrong",
    "twice": "parameters stored twice",
    "untied": "parameters that config.json ties but that differ (set tie_word_embeddings to false to use both)",
}


def _check_tensor(problems: Problems, info: Mapping[str, TensorInfo], name, shape, source, scales) -> None:
    found = info[source]
    alias = name if source == name else f"{name} (as {source})"
    if found.shape != tuple(shape):
        problems["wrong_shape"].append(f"{alias}: expected {tuple(shape)}, found {found.shape}")
    if found.dtype == "I8" and scales is not None and len(shape) > 1:
        _check_scale(problems, alias, scales, info.get(source + SCALE))
        if source + INPUT_SCALE in info:
            of_input, columns = f"{name} (of its input)", math.prod(shape) // max(math.prod(scales), 1)
            _check_scale(problems, alias.replace(name, of_input, 1), (columns,), info[source + INPUT_SCALE])
    elif found.dtype not in FLOATING:
        problems["not_floating"].append(f"{alias}: {found.dtype}")


def _check_scale(problems: Problems, alias: str, shape: tuple[int, ...], scale: TensorInfo | None) -> None:
    if scale is None:
        problems["scales"].append(f"{alias}: no {SCALE.removeprefix('_')}")
    elif scale.shape != shape or scale.dtype not in FLOATING:
        problems["scales"].append(f"{alias}: expected {shape} F32, found {scale.shape} {scale.dtype}")
