"""Models written for other programs: GGUF for llama.cpp, and sentence encoders as ONNX models, pooling inside."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from bertcore.arguments import check_path, required
from bertcore.checkpoint.files import naming, sync, temporary_beside
from bertcore.formats import gguf_model
from bertcore.formats.gguf_file import BLOCK, quantized, write_gguf
from bertcore.formats.gguf_tokenizer import tokenizer_metadata
from bertcore.formats.onnx_operations import MASKED, Graph
from bertcore.kernels import checks, rotary_tables
from bertcore.kernels.arrays import Array
from bertcore.passes import Pass
from bertcore.system import replace
from bertcore.tasks.cross_encoder import CrossEncoder
from bertcore.tasks.loading import kind_of
from bertcore.tasks.low_precision import check_target, written_beside
from bertcore.tasks.sentence_encoder import SentenceEncoder

PRECISIONS = {"f32": ("F32", 0), "f16": ("F16", 1), "q8_0": ("Q8_0", 7)}  # and the number of general.file_type
EXACT = ("position_embd", "token_types", "ffn_gate_inp")  # not in blocks: llama.cpp adds them to others, or compares


def export_gguf(folder: str | os.PathLike[str], target: str | os.PathLike[str], precision: str = "q8_0") -> None:
    """Write the encoder or reranker in `folder` to the file `target`, which appears complete.

    Args:
        folder: of a sentence encoder, a plain model or a sequence classifier.
        target: the file.
        precision: "q8_0": 8-bit blocks of 32 weights with a scale; "f16"; "f32". Vectors are float32.

    Raises:
        ValueError: for a kind of model, a pooling, modules or a tokenizer that llama.cpp does not have.
    """
    folder, target = check_path("folder", folder), check_path("target", target)
    checks.choice("precision", precision, PRECISIONS)
    kind = kind_of(folder)
    if kind not in ("dense", "classifier"):
        raise ValueError(f"{folder} is a {kind} encoder, expected one of texts to vectors, or a reranker")
    encoder: Any = (CrossEncoder if kind == "classifier" else SentenceEncoder)(folder, dtype="float32")
    pooling = gguf_model.RANK if kind == "classifier" else _pooling(encoder)
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
    kinds = {mode: number for number, mode in gguf_model.POOLINGS.items()}
    if settings.is_static or settings.maps or len(settings.pooling) != 1 or settings.pooling[0] not in kinds:
        found = [*settings.pooling, *(module.kind for module in settings.maps)]
        raise ValueError(f"the encoder pools by {', '.join(found)}, expected one of {', '.join(kinds)} alone")
    return kinds[settings.pooling[0]]


def _metadata(folder: Path, model: Any, pooling: int, precision: str) -> dict[str, Any]:
    spec, layer = model.spec, model.spec.layers[0]
    name = gguf_model.written_as(model.family, spec)
    architecture = gguf_model.ARCHITECTURES[name]
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
    if pooling == gguf_model.RANK:
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
    parts, found = gguf_model.parts_of(family, spec), {}
    architecture = gguf_model.ARCHITECTURES[gguf_model.written_as(family, spec)]
    own = gguf_model.WRITTEN_HEADS.get(family.model_type, architecture.heads)
    heads = {name: to for to, name in own.items()} if pooling == gguf_model.RANK else {}
    for name, array in (pair for parameter in model.parameters() for pair in parameter.tensors()):
        module, end = gguf_model.split_name(rules.without_prefix(name), parts)
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
        found[gguf_model.tensor_name(part, layer, spec.layers[layer or 0].norm_first) + (end or ".weight")] = array
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


OPSET, IR = 17, 8
MOST_BYTES = 2_000_000_000  # of one file of Protocol Buffers
WITH_MEMORIES = ("xlnet", "transfo-xl")
AXES = ["batch", "sequence"]


def export_onnx(
    folder: str | os.PathLike[str], target: str | os.PathLike[str], *, most_bytes: int = MOST_BYTES
) -> None:
    """Write the sentence encoder, or plain model, in `folder` as a new folder `target`.

    It has onnx/model.onnx, config.json, the tokenizer and the settings of a sentence encoder, where FastEmbed,
    sentence-transformers and transformers.js look. Inputs: input_ids, attention_mask, and token_type_ids of a family
    with several. Outputs: last_hidden_state (batch, sequence, hidden), whose padding means nothing, and
    sentence_embedding (batch, hidden), pooled and, if published so, of length 1.

    Weights beyond `most_bytes` stand beside the model in model.onnx_data.

    Raises:
        ValueError: for a family with memories, operations of its own, or modules after the pooling; a target that
            holds files.
        ImportError: without the package onnx.
    """
    onnx = required("onnx")
    folder, target = check_path("folder", folder), check_path("target", target)
    check_target(target, (folder,))
    if (kind := kind_of(folder)) != "dense":
        raise ValueError(f"{folder} is a {kind} model, expected a sentence encoder")
    encoder = SentenceEncoder(folder, dtype="float32")
    model = _model(onnx, encoder)
    with written_beside(target) as beside:
        encoder.save_pretrained(beside)
        for file in beside.rglob("*.safetensors"):
            file.unlink()
        special = encoder.tokenizer.special_tokens_map  # FastEmbed reads it from its own file
        (beside / "special_tokens_map.json").write_text(json.dumps(special), encoding="utf-8")
        place = beside / "onnx" / "model.onnx"
        place.parent.mkdir()
        size = sum(len(constant.raw_data) for constant in model.graph.initializer)
        beyond = {"save_as_external_data": True, "location": f"{place.name}_data"} if size > most_bytes else {}
        onnx.save_model(model, place, **beyond)
        onnx.checker.check_model(place)


def _model(onnx: Any, encoder: SentenceEncoder) -> Any:
    model, settings = encoder.model, encoder.settings
    if settings.is_static or model.family.model_type in WITH_MEMORIES:
        what = "static embeddings" if settings.is_static else model.family.model_type
        raise ValueError(
            f"the model is {what}, expected a family without memories: {', '.join(WITH_MEMORIES)} have some"
        )
    if settings.maps or not settings.include_prompt:
        found = ", ".join(module.kind for module in settings.maps) or "a pooling without the prompt"
        raise ValueError(f"the encoder has {found}, expected pooling, and perhaps Normalize, alone")
    spec, inner = model.spec, model.encoder
    graph = Graph(onnx, spec.longest_sequence)
    run = Pass("numpy", is_deferred=True, graph=graph)
    rows = np.array([[1, 2, 3], [1, 2, 0]], np.int64) % spec.vocab_size
    mask = np.array([[1, 1, 1], [1, 1, 0]], np.int64)
    inputs = inner.adapter.pack(run, rows, mask, np.zeros_like(rows) if spec.type_vocab_size else None)
    names = ["input_ids", "attention_mask"] + ["token_type_ids"] * (spec.type_vocab_size > 1)
    _name_integers(graph, spec, inputs)
    state, context = inner.adapter.begin(run, inputs, inner.embeddings)
    for rotary, angles in context.rotary.items():
        longest = (rotary.trained_length if rotary.scaling == "dynamic" else None) or spec.longest_sequence or 8192
        scaling = None if rotary.scaling == "dynamic" else rotary.scaling
        options = {"theta": rotary.theta, "scaling": scaling, "factor": rotary.factor}
        graph.rotary.append((angles.cos, rotary_tables(longest, rotary.rotary_dim, **options)))
    hidden = graph.node("Identity", inner.run_layers(run, state, context), name="last_hidden_state")
    pooled = [_pooled(graph, hidden, mode) for mode in settings.pooling]
    vector = pooled[0] if len(pooled) == 1 else graph.node("Concat", *pooled, axis=-1)
    if settings.normalize:
        norm = graph.node("ReduceL2", vector, axes=[-1])
        vector = graph.node("Div", vector, graph.node("Max", norm, np.float32(1e-12)))
    graph.node("Identity", vector, name="sentence_embedding")
    return _proto(onnx, graph, names, spec.hidden_size, spec.hidden_size * len(pooled))


def _name_integers(graph: Graph, spec: Any, inputs: Any) -> None:
    """Note which tensors of the graph the integers of the batch are."""
    graph.integers.append((inputs.input_ids, "input_ids"))
    if inputs.token_type_ids is not None:
        types = "token_type_ids" if spec.type_vocab_size > 1 else graph.named(np.zeros((1, 1), np.int64))
        graph.integers.append((inputs.token_type_ids, types))
    if inputs.position_ids is None:
        return
    if not spec.positions_after_padding:
        positions = graph.node("Unsqueeze", graph.positions(), np.array([0]))
    else:
        differs = graph.node("Not", graph.node("Equal", "input_ids", np.int64(spec.pad_token_id)))
        real = graph.node("Cast", differs, to=7)
        counted = graph.node("Mul", graph.node("CumSum", real, np.int64(1)), real)
        positions = graph.node("Add", counted, np.int64(spec.pad_token_id))
    graph.integers.append((inputs.position_ids, positions))


def _pooled(graph: Graph, hidden: str, mode: str) -> str:
    """Return the pooled vectors, (batch, hidden)."""
    mask = graph.node("Unsqueeze", graph.node("Cast", "attention_mask", to=1), np.array([2]))
    if mode == "cls":
        first = (np.array([each]) for each in (0, 1, 1))
        return graph.node("Squeeze", graph.node("Slice", hidden, *first), np.array([1]))
    if mode == "max":
        hidden_or_less = graph.node("Add", hidden, graph.node("Mul", graph.node("Sub", np.float32(1), mask), MASKED))
        return graph.node("ReduceMax", hidden_or_less, axes=[1], keepdims=0)
    if mode in ("lasttoken", "weightedmean"):
        places = graph.node("Add", graph.node("Cast", graph.positions(), to=1), np.float32(1))
        mask = graph.node("Mul", mask, graph.node("Unsqueeze", places, np.array([0, 2])))
        if mode == "lasttoken":
            last = graph.node("ReduceMax", mask, axes=[1])
            mask = graph.node("Cast", graph.node("Equal", mask, last), to=1)
    total = graph.node("ReduceSum", graph.node("Mul", hidden, mask), np.array([1]), keepdims=0)
    count = graph.node("Max", graph.node("ReduceSum", mask, np.array([1]), keepdims=0), np.float32(1e-9))
    return graph.node("Div", total, graph.node("Sqrt", count) if mode == "mean_sqrt_len_tokens" else count)


def _proto(onnx: Any, graph: Graph, names: list[str], hidden: int, width: int) -> Any:
    helper, kinds = onnx.helper, onnx.TensorProto
    inputs = [helper.make_tensor_value_info(name, kinds.INT64, AXES) for name in names]
    outputs = [
        helper.make_tensor_value_info("last_hidden_state", kinds.FLOAT, [*AXES, hidden]),
        helper.make_tensor_value_info("sentence_embedding", kinds.FLOAT, ["batch", width]),
    ]
    made = helper.make_graph(graph.nodes, "bertcore", inputs, outputs, list(graph.constants.values()))
    return helper.make_model(
        made, producer_name="bertcore", opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR
    )
