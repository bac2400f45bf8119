"""The forms of a parameter's values: arrays of a dtype, arrays on a device, weights prepared for a backend.

Low precision on the CPU (bfloat16, int8, int8_weight_only) is a form of linear maps' weights. Each is prepared when it
is loaded, so that the whole model is never in memory in float32; tables are bfloat16 arrays, vectors float32.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.arguments import INT8
from bertcore.kernels.arrays import NativeArray, bfloat16
from bertcore.kernels.linear import LOW_PRECISION
from bertcore.kernels.linear.prepared import dequantized, is_grouped
from bertcore.nn.layout import Scales
from bertcore.passes import Place

QUANTIZED_ROWS = 2048  # rows of a weight quantized at once

_preparing = threading.RLock()  # so that two threads do not prepare the same form


def _renew_lock() -> None:
    global _preparing
    _preparing = threading.RLock()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_renew_lock)  # the thread that held it does not exist in the child


Copies = dict[tuple[int, str | None], Any]


def storage_dtype(precision: str) -> np.dtype:
    """Return NumPy's dtype for the parameters of a model of `precision`, one of DTYPES."""
    return bfloat16() if precision == "bfloat16" else np.dtype("int8" if precision in INT8 else precision)


class Forms:
    """One version of a parameter's values, in the forms needed so far.

    Each is made when first needed, low-precision weights at once. The array of a parameter used only as a weight is
    freed once prepared; `on_host` restores it from the prepared weight.

    Args:
        label: the name of the values in errors.
        uses: "weight", "table" or "vector", as in `Parameter`.
        precision: the dtype that the model was loaded with, one of DTYPES.
        array: of any dtype; not copied if it has the right one. CuPy arrays stay on their device.
        scales: the scales of an int8 `array`.
    """

    def __init__(self, label: str, uses: Set[str], precision: str, array: Any, scales: Scales | None = None):
        self.label, self.uses, self.precision, self.dtype = label, uses, precision, storage_dtype(precision)
        # whether the array belongs only to the parameter and may be written to; it is then kept in addition to weights
        self.is_own = False
        self.is_low = precision in LOW_PRECISION
        self.is_grouped = precision == "int8_weight_only"  # with which activations are not rounded
        self.array: np.ndarray | None = None  # from which CPU backends look up tables and read vectors
        self.on_gpus: dict[int, Any] = {}  # the same in the memory of each GPU, by its number
        self.weights: dict[tuple[str, int], kernels.PreparedWeight] = {}  # by the backend and GPU that multiply by it
        self.rounded: dict[Place, kernels.PreparedWeight] = {}  # for `autocast`: weights in its dtype
        # for `autocast` on a GPU: the array in its dtype, by the GPU's number and dtype; alone of all forms it passes
        # to the next version, at its address (`refreshed_copies`)
        self.copies: Copies = {}
        self.reads: dict[tuple[str, bool, Place], Any] = {}  # the form that passes read, by kind and the pass's place
        is_low_on_cpu = self.is_low_on_cpu
        if kernels.array_module(array) is not np:
            self.on_gpus[array.data.device_id] = array.astype(self.dtype, copy=False)
            return
        if not is_low_on_cpu or self.uses != {"weight"}:
            array, scales = self._as_array(array, scales), None
            self.array = array
        if is_low_on_cpu and "weight" in self.uses:
            self.weights[self._backend, 0] = self._prepared(self._backend, array, scales)

    @property
    def is_low_on_cpu(self) -> bool:
        """True if the active backend multiplies float32 activations by a low-precision weight."""
        return self.is_low and self._backend != "cupy"

    def on_host(self) -> np.ndarray:
        """Return the values in host memory; an int8 weight's integers are multiplied by their scales."""
        with _preparing:  # so that no other thread frees the array or the weights
            if self.array is not None:
                return self.array
            if not self.weights:
                return next(iter(self.on_gpus.values())).get()
            array = self.any_weight().to_array()  # the array was freed for it; this restores it exactly
            return array if isinstance(array, np.ndarray) else array.get()

    @property
    def _backend(self) -> str:
        """The active backend, with "auto" resolved."""
        backend = kernels.get_backend()
        return kernels.resolve_backend(None, on_gpu=self.is_on_device) if backend == "auto" else backend

    @property
    def is_on_device(self) -> bool:
        """True if the values are only on GPUs."""
        return self.array is None and bool(self.on_gpus)

    def own_array(self) -> NativeArray:
        """Return the values in a writable array, on the GPU if they are there or used there, else in host memory.

        A parameter trained on the GPU moves there with its first change.
        """
        was_on_device = self.is_on_device
        if was_on_device or kernels.get_backend() == "cupy":
            gpu = kernels.current_gpu()
            array = self.on_gpus.get(gpu, next(iter(self.on_gpus.values()))) if self.on_gpus else self._on_device(gpu)
            return array if self.is_own or not was_on_device else array.astype(self.dtype, order="C")
        array = self.on_host()
        if self.is_own:
            return array
        own = array.astype(self.dtype, order="C")
        self.reads.clear()
        self.array, self.is_own = own, True  # set now, to free the old array before the next parameter's is copied
        release_pages(array)
        return own

    def next_version(self, own_array: Any, copies: Copies) -> Forms:
        """Return the forms of the next version, with values in `own_array`, of the same dtype, and in `copies`."""
        forms = object.__new__(Forms)
        vars(forms).update(vars(self))  # a fifth of copy.copy's time, for hundreds of parameters per step
        forms.weights, forms.rounded, forms.reads, forms.copies, forms.is_own = {}, {}, {}, copies, True
        is_on_host = isinstance(own_array, np.ndarray)
        forms.array, forms.on_gpus = (own_array, {}) if is_on_host else (None, {own_array.data.device_id: own_array})
        return forms

    def any_weight(self) -> kernels.PreparedWeight:
        """Return one of the prepared weights."""
        return next(iter(self.weights.values()))

    def read(self, kind: str, trains: bool, place: Place) -> NativeArray | kernels.PreparedWeight:
        """Return the form that a pass at `place` reads, and keep it for this version.

        `kind` is "array", or "weight" for a linear map's weight, prepared if the backend multiplies by prepared
        weights; `trains` says whether the parameter gets a gradient. Raises ValueError for training in low precision on
        the CPU, int8 on a GPU, float16 on the CPU.
        """
        if trains and self.is_low:
            self.check_trainable(place[0])
        if kind == "array":
            found = self._array(place)
        else:
            found = self._weight_to_train(place) if trains else self._weight(place)
        self.reads[kind, trains, place] = found
        return found

    def check_trainable(self, backend: str | None = None) -> None:
        """Raise ValueError for low precision on the CPU; `backend` is the active one by default."""
        if self.is_low and (backend or self._backend) != "cupy":
            raise ValueError(
                f"this model was loaded with dtype={self.precision!r}, which on the CPU is only for "
                'inference: load it with dtype="float32" to compute gradients'
            )

    def _array(self, place: Place) -> NativeArray:
        backend, gpu, dtype = place
        if backend == "cupy":
            is_rounded = dtype is not None and self.dtype == np.float32
            return self._rounded_on_device(gpu, dtype) if is_rounded else self._on_device(gpu)
        array = self.array
        if array is None:
            with _preparing:
                array = self.array = self.on_host()
        return array

    def _weight(self, place: Place) -> NativeArray | kernels.PreparedWeight:
        """Return the weight of a linear map: prepared, or the array if no preparation is needed."""
        backend, gpu, dtype = place
        if backend == "cupy" and self.dtype == np.int8:
            return self._on_device(gpu)  # which raises
        if dtype is not None and self.dtype == np.float32:
            return self._rounded_weight(place)
        if backend == "numpy" and not self.is_low:
            array = self.array  # read once, as another thread may free it
            return self._array(place) if array is None else array
        return _kept(self.weights, (backend, gpu), lambda: self._prepare(backend, gpu))

    def _weight_to_train(self, place: Place) -> NativeArray | kernels.PreparedWeight:
        """Return the weight of a linear map that changes with each step.

        The CPU's products pack the array, forward and backward, within 2 % of their time (512 tokens or more); keeping
        both packed forms would take two more copies of the model. The GPU's products use the array directly, except for
        rows that are not whole 16-byte vectors.
        """
        if place[0] == "cupy":
            return self._array(place)
        if place[2] is not None:
            return self._weight(place)
        with _preparing:
            array = self._array(place)
            self.weights.clear()
            self.reads.clear()
        return array

    def _rounded_weight(self, place: Place) -> kernels.PreparedWeight:
        backend, gpu, dtype = place
        if backend != "cupy" and dtype != "bfloat16":
            raise ValueError(f"autocast({dtype!r}) is for GPUs: on the CPU use 'bfloat16'")

        def prepare() -> kernels.PreparedWeight:
            if backend == "cupy":
                return kernels.prepare_weight(self._rounded_on_device(gpu, dtype), backend=backend)
            return kernels.prepare_weight(self.on_host(), dtype=dtype, backend=backend)

        return _kept(self.rounded, place, prepare)

    def _rounded_on_device(self, gpu: int, dtype: str) -> NativeArray:
        """Return the device array in the dtype of `autocast`."""
        wanted = bfloat16() if dtype == "bfloat16" else dtype
        return _kept(self.copies, (gpu, dtype), lambda: self._on_device(gpu).astype(wanted, order="C"))

    def _on_device(self, gpu: int) -> NativeArray:
        if self.dtype == np.int8:
            raise ValueError(
                f"this model was loaded with dtype={self.precision!r}, which runs only on the CPU (backends "
                'numpy and numba): load it with dtype="float16" or "bfloat16" for the GPU'
            )
        return _kept(
            self.on_gpus, gpu, lambda: kernels.to_backend(np.asarray(self.on_host(), self.dtype, order="C"), "cupy")
        )

    def _prepare(self, backend: str, gpu: int) -> kernels.PreparedWeight:
        if self.array is None and self.dtype == np.int8:
            known = self.any_weight()
            weight = self._prepared(backend, known.integers(), Scales(known.scale, known.input_scale))
        elif backend == "cupy" and (self.on_gpus or "table" in self.uses):
            weight = kernels.prepare_weight(self._on_device(gpu), backend=backend)  # sharing memory with the table
        else:
            weight = self._prepared(backend, self.on_host())
        self.weights[backend, gpu] = weight  # before the array is freed
        self.reads.clear()
        if self.array is not None and not self.is_own:
            release_pages(self.array)
            if self.uses == {"weight"}:
                self.array = None
        return weight

    def _as_array(self, array: np.ndarray, scales: Scales | None) -> np.ndarray:
        """Return the values in the dtype of the array form."""
        if scales is not None:
            array = dequantized(array, *scales)
        dtype = self.dtype
        if self.is_low:
            dtype = np.dtype(np.float32) if self.uses == {"vector"} else bfloat16()
        return np.asarray(array, dtype)

    def _prepared(self, backend: str, array: np.ndarray, scales: Scales | None = None) -> kernels.PreparedWeight:
        if not self.is_low or backend == "cupy":
            return kernels.prepare_weight(kernels.to_backend(self._as_array(array, scales), backend), backend=backend)
        if scales is not None and (self.dtype != np.int8 or is_grouped(scales.rows) != self.is_grouped):
            array, scales = dequantized(array, *scales), None
        if scales is None and self.dtype == np.int8:
            array, scales = self._quantized(array)
        elif scales is None and array.dtype != bfloat16():
            array = np.asarray(array, np.float32)
        return kernels.prepare_weight(array, *(scales or ()), dtype=self.precision, backend=backend)

    def _quantized(self, array: np.ndarray) -> tuple[np.ndarray, Scales]:
        """Return the int8 values and scales, computed in blocks of rows: a vocabulary's weight is large in float32."""
        values, scales = np.empty(array.shape, np.int8), []
        for first in range(0, max(len(array), 1), QUANTIZED_ROWS):
            rows = slice(first, first + QUANTIZED_ROWS)
            some = np.asarray(array[rows], np.float32)
            try:
                values[rows], scale = kernels.quantize_weight(some, per_group=self.is_grouped)
            except ValueError as error:
                raise ValueError(f"{self.label}: {error}") from error
            scales.append(scale)
        return values, Scales(np.concatenate(scales), None)


def _kept(made: dict[Any, Any], key: Any, make: Callable[[], Any]) -> Any:
    """Return made[key]; `make` computes a missing one, in one thread."""
    found = made.get(key)
    if found is None:
        with _preparing:
            found = made.get(key)
            if found is None:
                found = made[key] = make()
    return found


def refreshed_copies(forms: Sequence[Forms], arrays: Sequence[Any]) -> list[Copies]:
    """Return the 16-bit copies of each of `forms` on the GPU of its own array, refreshed from the arrays.

    They are overwritten in place, with one launch per dtype. New copies would need a launch for each parameter, and a
    graph of a training step, which reads them by address, would have to be captured again.
    """
    found, together = [], dict[Any, tuple[list[Any], list[Any]]]()
    for one, array in zip(forms, arrays, strict=True):
        if not one.copies:
            found.append({})
            continue
        gpu = None if kernels.array_module(array) is np else array.data.device_id
        known = list(one.copies.items())  # a list, as another thread may add one meanwhile
        found.append({key: copy for key, copy in known if key[0] == gpu})
        for key, copy in found[-1].items():
            changed, copies = together.setdefault(key, ([], []))
            changed.append(array)
            copies.append(copy)
    for changed, copies in together.values():
        kernels.cast(changed, copies, backend="cupy")
    return found


def release_pages(array: np.ndarray) -> None:
    """Return the memory of `array` to the system if it is mapped from a file; pages are reloaded when read again."""
    owner = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    mapping = owner.obj if isinstance(owner, memoryview) else None
    if not isinstance(mapping, mmap.mmap) or not owner.readonly or not array.flags.c_contiguous:
        return  # writable data may have no other copy
    start = array.ctypes.data - np.frombuffer(mapping, np.uint8).ctypes.data
    first, last = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, (start + array.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if last > first and hasattr(mapping, "madvise"):  # not on Windows
        with suppress(OSError):  # the pages are locked in memory
            mapping.madvise(mmap.MADV_DONTNEED, first, last - first)
