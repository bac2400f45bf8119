"""Parameters: a model's arrays, under the names they have in a checkpoint, in the forms that computing wants.

A parameter has up to three forms:

    array           NumPy: what the CPU backends look tables up in and read vectors from
    device array    the same in the memory of the GPU
    weights         one PreparedWeight for each backend that multiplies by it

Each is made when it is first needed, and the array of what is only a weight is let go for the first prepared one, which
gives it back. Low precision on the CPU (bfloat16, int8) is a form of the weights. There they are prepared at once, one
after another, so that the model never stands in memory in float32; tables are bfloat16 arrays, vectors float32 ones.
"""

import importlib
import mmap
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.checkpoint.dtypes import SCALE
from bertcore.nn.layout import Layout
from bertcore.tape import current_tape

LOW_PRECISION = ("bfloat16", "int8")
QUANTIZED_ROWS = 2048  # of a weight at once

_preparing = threading.RLock()


class Parameter:
    """One array of a model.

    A parameter may join several tensors of a checkpoint along their first axis (query, key and value become one
    matrix); `names` are theirs, and names are what users see: in gradients, in errors, in saved files.

    Args:
        names: the name in the checkpoint, or the names of the equal parts along the first axis.
        shape: the shape of one part; that of its `layout` by default.
        use: "weight" of a linear map, "table" of embeddings, or "vector" for everything else. Who uses it in another
            way as well (a table that is the decoder's weight, too) adds that to `uses`.
        initial: "normal" (mean 0, the model's initializer range), "zeros" or "ones", for a model made from a config.
        layout: how the checkpoint stores a part, where that is not how computing wants it.
    """

    def __init__(
        self,
        *names: str,
        shape: tuple[int, ...] | None = None,
        use: str = "vector",
        initial: str = "normal",
        layout: Layout | None = None,
    ):
        self.names = names
        self.layout = layout
        self.part_shape = shape if layout is None else layout.computing_shape
        self.uses = {use}
        self.initial = initial
        self.dtype = np.dtype(np.float32)
        self._is_low = False
        self._clear()

    def _clear(self) -> None:
        self._array: np.ndarray | None = None
        self._device_array: Any = None
        self._weights: dict[str, kernels.PreparedWeight] = {}  # by backend

    @property
    def expected(self) -> dict[str, tuple[int, ...]]:
        """The shape of each checkpoint tensor of this parameter, by name."""
        return dict.fromkeys(self.names, self.part_shape if self.layout is None else self.layout.shape)

    @property
    def expected_scales(self) -> dict[str, tuple[int, ...]]:
        """The shape of each checkpoint tensor's scales where it is stored in int8, by the tensor's name."""
        return dict.fromkeys(self.names, (self.part_shape[0], 1) if self.layout is None else self.layout.scale_shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole array in computing, its parts joined."""
        return (len(self.names) * self.part_shape[0], *self.part_shape[1:])

    def parts(self, array: Any) -> Iterator[tuple[str, Any]]:
        """(name, part as the checkpoint stores it) for the tensors joined in `array`: the parameter's values, their
        gradient, or their scales."""
        rows = self.part_shape[0]
        for index, name in enumerate(self.names):
            part = array if len(self.names) == 1 else array[index * rows : (index + 1) * rows]
            yield name, part if self.layout is None else self.layout.to_stored(part)

    # --- values in ------------------------------------------------------------------------------------

    def fill(self, arrays: Mapping[str, np.ndarray], dtype: np.dtype) -> None:
        """Take the parameter's values from `arrays`, by name, for a model of `dtype`.

        An int8 array stands for itself times its scales, which are under its name and "_scale", float32 (rows, 1) or of
        the layout's `scale_shape`. An array of the right dtype is not copied.
        """
        self.dtype = np.dtype(dtype)
        self._is_low = self.dtype.name in LOW_PRECISION  # a dtype's name is made anew each time it is asked for
        array, scale = self._joined(arrays)
        stored, weights = None, {}
        if not self.is_low_on_cpu or self.uses != {"weight"}:
            array, scale = stored, _ = self._as_array(array, scale), None
        if self.is_low_on_cpu and "weight" in self.uses:
            weights[kernels.get_backend()] = self._prepared(array, scale)
        self._array, self._device_array, self._weights = stored, None, weights
        for name in self.names:
            release_pages(arrays[name])

    @property
    def is_low_on_cpu(self) -> bool:
        """Whether the backend in force multiplies float32 by a form of low precision."""
        return self._is_low and kernels.get_backend() != "cupy"

    def _joined(self, arrays: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray | None]:
        """The parts as one array, and the scales if all of them are int8."""
        parts, scales = ([arrays.get(name + end) for name in self.names] for end in ("", SCALE))
        if any(scale is None for scale in scales):
            parts = [part if scale is None else part * scale for part, scale in zip(parts, scales, strict=True)]
            return self._concatenated(parts), None
        return self._concatenated(parts), self._concatenated(scales)[:, 0]

    def _concatenated(self, parts: list[np.ndarray]) -> np.ndarray:
        if self.layout is not None:
            parts = [self.layout.to_computing(part) for part in parts]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _as_array(self, array: np.ndarray, scale: np.ndarray | None) -> np.ndarray:
        """The values in the dtype that the array form has in a model of this dtype."""
        if scale is not None:
            array = array * scale[:, None]
        dtype = self.dtype
        if self._is_low:
            dtype = np.dtype(np.float32) if self.uses == {"vector"} else bfloat16()
        return np.asarray(array, dtype)

    def _prepared(self, array: np.ndarray, scale: np.ndarray | None = None) -> kernels.PreparedWeight:
        """The weight for the backend in force."""
        if not self.is_low_on_cpu:
            return kernels.prepare_weight(kernels.to_backend(self._as_array(array, scale)))
        if scale is not None and self.dtype != np.int8:
            array, scale = array * scale[:, None], None
        if scale is None and self.dtype == np.int8:
            array, scale = self._quantized(array)
        elif scale is None and array.dtype != bfloat16():
            array = np.asarray(array, np.float32)
        return kernels.prepare_weight(array, scale, dtype=self.dtype.name)

    def _quantized(self, array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The int8 values and scales; in blocks of rows, for a vocabulary's weight is large in float32."""
        values, scale = np.empty(array.shape, np.int8), np.empty(len(array), np.float32)
        for first in range(0, len(array), QUANTIZED_ROWS):
            rows = slice(first, first + QUANTIZED_ROWS)
            try:
                values[rows], scale[rows] = kernels.quantize_weight(np.asarray(array[rows], np.float32))
            except ValueError as error:
                raise ValueError(f"{', '.join(self.names)}: {error}") from error
        return values, scale

    # --- values out -----------------------------------------------------------------------------------

    def array(self) -> np.ndarray:
        """The values in host memory, as computing has them: of an int8 weight, its integers times their scales."""
        array = self._array  # read once: another thread may let it go
        if array is None:
            array = self._any_weight().to_array()  # for which the array was let go; it comes back as it was
        return array if isinstance(array, np.ndarray) else array.get()

    def tensors(self) -> Iterator[tuple[str, np.ndarray]]:
        """(name, array) of the tensors that are kept in a checkpoint: of an int8 weight, integers and scales."""
        if self.dtype != np.int8 or self.uses != {"weight"}:
            yield from self.parts(self.array())
            return
        weight = self._any_weight()
        values, scale = weight.integers(), weight.scale
        for (name, part), (_, part_scale) in zip(self.parts(values), self.parts(scale[:, None]), strict=True):
            yield name, part
            yield name + SCALE, part_scale

    def _any_weight(self) -> kernels.PreparedWeight:
        weight = next(iter(self._weights.values()), None)
        if weight is None:
            raise RuntimeError(
                f"{self.names[0]} has no values yet: models are made by from_pretrained(folder) or from_config(config)"
            )
        return weight

    # --- values for computing -------------------------------------------------------------------------

    @property
    def value(self) -> Any:
        """The array for the backend in force; a Variable while a tape records."""
        tape = current_tape()
        return self._backend_array() if tape is None else tape.leaf(self, self._backend_array)

    def _backend_array(self) -> Any:
        if kernels.get_backend() == "cupy":
            return self._on_device()
        if current_tape() is not None and self._is_low:
            raise ValueError(
                f"this model was loaded with dtype={self.dtype.name!r}, which on the CPU is for inference alone: "
                'load it with dtype="float32" to compute gradients'
            )
        array = self._array
        if array is None:
            with _preparing:
                array = self._array = self.array()
        return array

    def _on_device(self) -> Any:
        if self.dtype == np.int8:
            raise ValueError(
                "this model was loaded with dtype='int8', which runs on the CPU alone (backends numpy and numba): "
                'load it with dtype="float16" or "bfloat16" for the GPU'
            )
        with _preparing:
            if self._device_array is None:
                self._device_array = kernels.to_backend(np.asarray(self.array(), self.dtype))
        return self._device_array

    @property
    def weight(self) -> Any:
        """The weight of a linear map, prepared once for the backend in force; a Variable while a tape records."""
        backend = kernels.get_backend()
        reads_arrays = backend == "numpy" and not self.is_low_on_cpu  # the reference has nothing to prepare
        if reads_arrays or current_tape() is not None:
            return self.value
        weight = self._weights.get(backend)
        if weight is None:
            with _preparing:
                weight = self._weights.get(backend) or self._prepare(backend)
        return weight

    def _prepare(self, backend: str) -> kernels.PreparedWeight:
        if self.dtype == np.int8 and backend == "cupy":
            return self._on_device()  # which refuses
        if self._array is None and self.dtype == np.int8:
            weight = self._prepared(self._any_weight().integers(), self._any_weight().scale)
        else:
            weight = self._prepared(self.array())
        self._weights[backend] = weight
        if self._array is not None:
            release_pages(self._array)
            if self.uses == {"weight"}:
                self._array = None
        return weight


def bfloat16() -> np.dtype:
    """NumPy's dtype for bfloat16."""
    return np.dtype(importlib.import_module("ml_dtypes").bfloat16)  # 12 ms: only for those who need it


def release_pages(array: np.ndarray) -> None:
    """Let the system take back the memory of `array` if that is a mapped file: what is read again is loaded again."""
    owner = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    mapping = owner.obj if isinstance(owner, memoryview) else None
    if not isinstance(mapping, mmap.mmap) or not owner.readonly or not array.flags.c_contiguous:
        return  # what could be written to might be nowhere else
    start = array.ctypes.data - np.frombuffer(mapping, np.uint8).ctypes.data
    first, last = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, (start + array.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if last > first and hasattr(mapping, "madvise"):  # not on Windows
        with suppress(OSError):  # locked in memory
            mapping.madvise(mmap.MADV_DONTNEED, first, last - first)


class Block:
    """A part of a model: its attributes are parameters, further blocks, or lists of blocks."""

    def parameters(self) -> Iterator[Parameter]:
        """The parameters of this block and of those within it, each once, in the order they were made."""
        return iter(dict.fromkeys(self._walk()))

    def _walk(self) -> Iterator[Parameter]:
        for attribute in vars(self).values():
            for item in attribute if isinstance(attribute, list) else [attribute]:
                if isinstance(item, Parameter):
                    yield item
                elif isinstance(item, Block):
                    yield from item._walk()
