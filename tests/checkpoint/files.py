"""Build safetensors files, valid and broken ones, byte by byte."""

import json
from pathlib import Path

import numpy as np


def entry(dtype: str, shape, start: int, end: int) -> dict:
    """Return one tensor's entry in a safetensors header."""
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}


def safetensors_bytes(header, data: bytes) -> bytes:
    """Return a safetensors file with exactly this header and data, fitting or not."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def write_tensors(file: Path, arrays: dict) -> None:
    """Write a valid file by the library's own writer."""
    from safetensors.numpy import save_file

    save_file({name: np.require(array, requirements="C") for name, array in arrays.items()}, file, {"format": "pt"})


def write_shards(folder: Path, shards: dict[str, dict], **changes) -> dict[str, str]:
    """Write shards (file name -> arrays) and their index, and return its weight_map, with `changes`."""
    for name, arrays in shards.items():
        write_tensors(folder / name, arrays)
    weight_map = {tensor: name for name, arrays in shards.items() for tensor in arrays} | changes
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return weight_map
