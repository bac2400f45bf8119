"""Models in GGUF, written for llama.cpp."""

from pathlib import Path
from typing import Any

import numpy as np

from bertcore.checkpoint.files import naming, sync, temporary_beside
from bertcore.formats.gguf_file import BLOCK, quantized, write_gguf
from bertcore.formats.gguf_model import (
    ARCHITECTURES,
    POOLINGS,
    RANK,
    WRITTEN_HEADS,
    parts_of,
    split_name,
    tensor_name,
    written_as,
)
from bertcore.formats.gguf_tokenizer import tokenizer_metadata
from bertcore.kernels.arrays import Array
from bertcore.system import replace
from bertcore.tasks.cross_encoder import CrossEncoder
from bertcore.tasks.loading import kind_of
from bertcore.tasks.sentence_encoder import SentenceEncoder

PRECISIONS = {"f32": ("F32", 0), "f16": ("F16", 1), "q8_0": ("Q8_0", 7)}  # and the number of general.file_type
EXACT = ("position_embd", "token_types", "ffn_gate_inp")  # not in blocks: llama.cpp adds them to others, or compares


def export_gguf(folder: Path, target: Path, precision: str = "q8_0") -> None:
    """Write the encoder or reranker in `folder` to the file `target`, which appears complete.

    Args:
        folder: of a sentence encoder, a plain model or a sequence classifier.
        target: the file.
        precision: "q8_0": 8-bit blocks of 32 weights with a scale; "f16"; "f32". Vectors are float32.

    Raises:
        ValueError: for a kind of model, a pooling, modules or a tokenizer that llama.cpp does not have.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"precision is {precision!r}, expected {', '.join(PRECISIONS)}")
    kind = kind_of(folder)
    if kind not in ("dense", "classifier"):
        raise ValueError(f"{folder} is a {kind} encoder, expected one of texts to vectors, or a reranker")
    encoder: Any = (CrossEncoder if kind == "classifier" else SentenceEncoder)(folder, dtype="float32")
    pooling = RANK if kind == "classifier" else _pooling(encoder)
    model = encoder.model
    metadata = _metadata(folder, model, pooling, precision) | tokenizer_metadata(
        encoder.tokenizer, model.spec.vocab_size, model.spec.type_vocab_size
    )
    tensors = {name: _stored(name, array, precision) for name, array in _named(model, pooling).items()}
    place = target.resolve()
    with temporary_beside(place) as beside, naming(target):
        write_gguf(beside, metadata, tensors)
        sync(beside)
        replace(beside, place)


def _pooling(encoder: SentenceEncoder) -> int:
    settings = encoder.settings
    kinds = {mode: number for number, mode in POOLINGS.items()}
    if settings.is_static or settings.maps or len(settings.pooling) != 1 or settings.pooling[0] not in kinds:
        found = [*settings.pooling, *(module.kind for module in settings.maps)]
        raise ValueError(f"the encoder pools by {', '.join(found)}, expected one of {', '.join(kinds)} alone")
    return kinds[settings.pooling[0]]


def _metadata(folder: Path, model: Any, pooling: int, precision: str) -> dict[str, Any]:
    spec, layer = model.spec, model.spec.layers[0]
    name = written_as(model.family, spec)
    architecture = ARCHITECTURES[name]
    settings = {
        "block_count": spec.num_layers,
        "context_length": spec.longest_sequence,
        "embedding_length": spec.hidden_size,
        "feed_forward_length": layer.intermediate_size,
        "attention.head_count": layer.num_heads,
        architecture.eps[0]: layer.norm_eps,
        "attention.causal": False,
        "pooling_type": pooling,
        **architecture.settings(spec),
    }
    if pooling == RANK:
        settings["classifier.output_labels"] = list(model.config.id2label.values())
    return {
        "general.architecture": name,
        "general.type": "model",
        "general.name": folder.resolve().name,
        "general.file_type": PRECISIONS[precision][1],
        "general.quantization_version": 2,
    } | {f"{name}.{key}": value for key, value in settings.items() if value is not None}


def _named(model: Any, pooling: int) -> dict[str, Array]:
    """Return the model's tensors by GGUF's names. ValueError for one that it has no name for."""
    spec, family, rules = model.spec, model.family, model.family.name_rules
    parts, found = parts_of(family, spec), {}
    architecture = ARCHITECTURES[written_as(family, spec)]
    own = WRITTEN_HEADS.get(family.model_type, architecture.heads)
    heads = {name: to for to, name in own.items()} if pooling == RANK else {}
    for name, array in (pair for parameter in model.parameters() for pair in parameter.tensors()):
        module, end = split_name(rules.without_prefix(name), parts)
        if module in heads:
            found[heads[module] + end] = array
            continue
        if module not in parts:
            raise ValueError(f"{name} has no name in GGUF files")
        part, layer = parts[module]
        if part == "experts_bias":
            if array.any():
                raise ValueError(f"{name} is not zero, and llama.cpp's experts have no bias")
            continue
        if part == "position_embeddings":
            array = array[spec.position_offset :]
        if part.startswith("experts_"):
            array = array.reshape(spec.details.experts, -1, spec.hidden_size)
            array = array.transpose(0, 2, 1) if part == "experts_contract" else array
        found[tensor_name(part, layer, spec.layers[layer or 0].norm_first) + (end or ".weight")] = array
    return found


def _stored(name: str, array: Array, precision: str) -> tuple[str, Array]:
    """Return the kind of a tensor's blocks, and the blocks: vectors and what `EXACT` names stay float32."""
    array = np.ascontiguousarray(array, np.float32)
    kind = PRECISIONS[precision][0]
    if array.ndim < 2 or any(f"{part}." in name for part in EXACT):
        kind = "F32"
    elif kind == "Q8_0" and array.shape[-1] % BLOCK:
        kind = "F16"
    if kind == "Q8_0":
        return kind, quantized(array)
    return kind, array.astype(np.float16) if kind == "F16" else array
