"""Read config.json and its description of low-precision weights.

A bfloat16 checkpoint holds bfloat16 tensors, with vectors (biases, layer norms) in float32: these are a thousandth of
the whole, and code that computes in bfloat16 rounds them itself. config.json has "dtype": "bfloat16" as transformers
writes it, and "bertcore_dtype" for the dtype to load it in: published bfloat16 checkpoints, which lack that key, are
loaded in float32.

An int8 checkpoint has the format "int-quantized" of compressed-tensors
(https://github.com/vllm-project/compressed-tensors): the weight X of a linear layer is the product of an int8 tensor X
and a float32 tensor X_scale, (out_features, 1); embedding tables are bfloat16, everything else is float32. Its
"quantization_config" also says that activations are quantized for each token at run time. A calibrated checkpoint adds
tensors X_input_scale, float32 (in_features,): input columns are multiplied by them before rounding, and X stands for
X * X_scale * X_input_scale. Its format is "int-quantized-smoothed", which other readers refuse.

int8_weight_only has the strategy "group" instead of "channel", and unquantized activations: X_scale is
bfloat16 (out_features, groups of 32) for every layout of X, and the last group may be shorter. With channels, where X
is not stored as (out_features, in_features), X_scale has size 1 along the input axes: (1, out_features) for GPT-2's
(in_features, out_features).
"""

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .files import CONFIG_NAME, CheckpointError, checkpoint_folder, missing_file, read_json_object


@contextlib.contextmanager
def naming_config(source: object) -> Iterator[None]:
    """Turn errors about a config in the block ("config: KEY is ...") into CheckpointError naming `source`."""
    try:
        yield
    except ValueError as error:
        if isinstance(error, CheckpointError) or not str(error).startswith("config: "):
            raise
        raise CheckpointError(f"{source}: {error}") from error


def read_config(folder: str | os.PathLike[str], name: str = CONFIG_NAME) -> dict[str, Any]:
    """Read the config.json of the model in `folder` (or beside a file of weights).

    Raises CheckpointError if the folder or its file `name` is missing, or the file is not a JSON object.
    """
    folder = checkpoint_folder(folder)
    file = folder / name
    if not file.is_file():
        raise missing_file(file, f"has no {name}")
    return read_json_object(file)


SCALE = "_scale"  # the suffix of an int8 tensor's scales
INPUT_SCALE = "_input_scale"  # the suffix of its input's scales
FORMATS = "int-quantized", "int-quantized-smoothed"  # the second, with input scales, is bertcore's own
QUANTIZATION = "quantization_config"
LOADED_AS = "bertcore_dtype"

_WEIGHTS = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
_GROUPS = {**_WEIGHTS, "strategy": "group", "group_size": 32}
_ACTIVATIONS = {"num_bits": 8, "type": "int", "symmetric": False, "strategy": "token", "dynamic": True}
_SCHEMES = {"int8": (_WEIGHTS, _ACTIVATIONS), "int8_weight_only": (_GROUPS, None)}


def split_dtype(folder: str | os.PathLike[str], config: Mapping[str, Any]) -> tuple[dict[str, Any], str | None]:
    """Split a config into one without low-precision keys and the dtype to load it in (None if ordinary).

    Raises CheckpointError for a quantization that bertcore does not read.
    """
    rest = {key: value for key, value in config.items() if key not in (QUANTIZATION, LOADED_AS)}
    if config.get(QUANTIZATION) is not None:
        return rest, _quantized_dtype(f"{folder}/{CONFIG_NAME}: {QUANTIZATION}", config[QUANTIZATION])
    dtype = config.get(LOADED_AS)
    if dtype not in (None, "bfloat16"):
        raise CheckpointError(f"{folder}/{CONFIG_NAME}: {LOADED_AS} is {dtype!r}, expected 'bfloat16'")
    if dtype is not None:
        rest.pop("dtype", None)
    return rest, dtype


def with_dtype(
    config: Mapping[str, Any], dtype: str, unquantized: Iterable[str] = (), *, smoothed: bool = False
) -> dict[str, Any]:
    """Return the config for a checkpoint of a model of `dtype`; the reverse of `split_dtype`.

    For int8, `unquantized` names the linear layers that stay in floating point, and `smoothed` says if there are input
    scales.
    """
    if dtype == "bfloat16":
        rest = {key: value for key, value in config.items() if key != "torch_dtype"}  # the older name of "dtype"
        return {**rest, "dtype": "bfloat16", LOADED_AS: "bfloat16"}
    if dtype not in _SCHEMES:
        return {key: dtype if key in ("dtype", "torch_dtype") else value for key, value in config.items()}
    weights, activations = _SCHEMES[dtype]
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations}
    quantization = {"quant_method": "compressed-tensors", "format": FORMATS[smoothed]}
    quantization |= {"quantization_status": "compressed", "config_groups": {"group_0": group}}
    return {**config, QUANTIZATION: quantization | {"ignore": sorted(unquantized)}}


def _quantized_dtype(where: str, found: object) -> str:
    """Return int8 or int8_weight_only. Raises CheckpointError for any other quantization."""
    expected = "supported is int8 with a scale for each output channel or each 32 weights: quant_method "
    expected += "'compressed-tensors', format"
    if not isinstance(found, Mapping):
        raise CheckpointError(f"{where} is {found!r}, expected an object")
    method, form, groups = (found.get(key) for key in ("quant_method", "format", "config_groups"))
    if method != "compressed-tensors" or form not in FORMATS or not isinstance(groups, Mapping):
        raise CheckpointError(f"{where} has quant_method {method!r}, format {form!r}; {expected} 'int-quantized'")
    kinds = set()
    for name, group in groups.items():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        is_grouped = isinstance(weights, Mapping) and weights.get("strategy") == "group"
        wanted = _GROUPS if is_grouped else _WEIGHTS
        for key, value in wanted.items():
            if not isinstance(weights, Mapping) or weights.get(key) != value:
                raise CheckpointError(f"{where}: the weights of {name} are {weights!r}, expected {wanted!r}")
        if is_grouped and group.get("input_activations") is not None:
            raise CheckpointError(f"{where}: {name} has weights in groups and quantized activations, not supported")
        kinds.add("int8_weight_only" if is_grouped else "int8")
    if len(kinds) > 1:
        raise CheckpointError(f"{where} has scales for channels and for groups, expected one kind")
    return kinds.pop() if kinds else "int8"
