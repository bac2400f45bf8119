"""Building safetensors files, right and wrong ones, byte by byte."""

import json
from pathlib import Path

import numpy as np


def entry(dtype: str, shape, start: int, end: int) -> dict:
    """One tensor's entry in a safetensors header."""
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}


def safetensors_bytes(header, data: bytes) -> bytes:
    """A safetensors file with exactly this header and data, whether or not they fit."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def write_tensors(file: Path, arrays: dict) -> None:
    """A well-formed file by the library's own writer."""
    from safetensors.numpy import save_file

    save_file({name: np.require(array, requirements="C") for name, array in arrays.items()}, file, {"format": "pt"})


def write_shards(folder: Path, shards: dict[str, dict], **changes) -> dict[str, str]:
    """Shards (file name -> arrays) and their index; `changes` go over the index's weight_map, which is returned."""
    for name, arrays in shards.items():
        write_tensors(folder / name, arrays)
    weight_map = {tensor: name for name, arrays in shards.items() for tensor in arrays} | changes
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return weight_map
