"""PyTorch on the same GPU: the same inputs without a copy, compiled by torch.compile, timed by CUDA graphs like ours.

This class has all use of PyTorch's CUDA: tests replace it by PyTorch on the CPU.
"""

import importlib
import importlib.util
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from bench.gpu.timings import EVENTS, GRAPH, Calls, Timed
from bench.measure import Variant
from bench.ops.torch_operations import torch_function
from bench.peers.cases import Batch
from bench.peers.checkpoint import load_torch, quiet

WARM_UP = 3  # calls before a capture, as torch.cuda.graph requires


def torch_unavailable_reason() -> str | None:
    """Return why PyTorch cannot be compared with, or None."""
    if importlib.util.find_spec("torch") is None:
        return "PyTorch is not installed"
    if not importlib.import_module("torch").cuda.is_available():
        return "PyTorch sees no GPU"
    return None


class Torch:
    """PyTorch as a peer."""

    device = "cuda"

    def __init__(self) -> None:
        self.torch = importlib.import_module("torch")
        self.torch.set_float32_matmul_precision("high")

    def has_transformers(self) -> bool:
        """Return whether transformers' models can be compared with."""
        return importlib.util.find_spec("transformers") is not None

    def tensor(self, array: Any) -> Any:
        """Return a tensor over the memory of an array on the GPU."""
        from_dlpack = self.torch.from_dlpack
        if array.dtype.name == "bfloat16":  # missing in older versions of DLPack
            return from_dlpack(array.view(np.int16)).view(self.torch.bfloat16)
        return from_dlpack(array)

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function compiled by torch.compile."""
        return self.torch.compile(function, dynamic=False)

    def call(self, operation: str, inputs: dict[str, Any], compile: bool = True) -> Callable[[], Any]:
        """Return the call of an operation (bench/ops) on arrays on the GPU, without gradients."""
        arguments = {name: self.tensor(it) if hasattr(it, "dtype") else it for name, it in inputs.items()}
        function = torch_function(operation)
        function = self.compiled(function) if compile else function

        def call() -> Any:
            with self.torch.inference_mode():
                return function(**arguments)

        return call

    def flash_attention(self) -> AbstractContextManager:
        """Within the block, scaled_dot_product_attention is FlashAttention-2, or fails."""
        attention = importlib.import_module("torch.nn.attention")
        return attention.sdpa_kernel(attention.SDPBackend.FLASH_ATTENTION)

    def on_device(self, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
        """Return tensors with the values of host arrays."""
        return {name: self.torch.from_numpy(array).to(self.device) for name, array in arrays.items()}

    def encoder(self, folder: Path, dtype: str) -> Any:
        """Return the compiled encoder of a checkpoint, with scaled_dot_product_attention."""
        module = load_torch(folder, dtype=getattr(self.torch, dtype), attn_implementation="sdpa")
        return self.compiled(module.to(self.device))

    def encode(self, module: Any, batch: Batch) -> Callable[[], Any]:
        """Return the call for the last hidden state of a batch; a mask is passed only if there is padding."""
        tensors = self.on_device(batch._asdict())
        if batch.is_real.all():
            del tensors["attention_mask"]

        def call() -> Any:
            with self.torch.inference_mode():
                return module(**tensors).last_hidden_state

        return call

    def training_step(self, folder: Path, dtype: str, lr: float, most_norm: float) -> Callable[[dict[str, Any]], Any]:
        """Return a compiled training step of masked language modelling: from tensors to the loss, without dropout."""
        transformers = importlib.import_module("transformers")
        with quiet():
            model = transformers.AutoModelForMaskedLM.from_pretrained(folder, dtype=self.torch.float32)
        model = model.eval().to(self.device)
        parameters, compiled = list(model.parameters()), self.compiled(model)
        optimizer = self.torch.optim.AdamW(parameters, lr=lr, fused=True)

        def step(tensors: dict[str, Any]) -> Any:
            optimizer.zero_grad()
            with self.torch.autocast(self.device, self.torch.bfloat16, enabled=dtype == "bfloat16"):
                loss = compiled(**tensors).loss
            loss.backward()
            self.torch.nn.utils.clip_grad_norm_(parameters, most_norm)
            optimizer.step()
            return loss.detach()

        return step

    def by_graph(self, calls: Calls) -> Timed:
        """Do as bench.gpu.timings.by_graph."""
        cuda = self.torch.cuda
        stream = cuda.Stream()
        stream.wait_stream(cuda.current_stream())
        with cuda.stream(stream):
            for call in [*calls] * WARM_UP:
                call()
        cuda.current_stream().wait_stream(stream)
        graph = cuda.CUDAGraph()
        try:
            with cuda.graph(graph):
                results = [call() for call in calls]
        except Exception as error:  # anything that a capture refuses
            return self.by_events(calls, f"no graph: {type(error).__name__}")
        graph.uses = results
        return Timed(Variant(graph.replay, self.clock), len(calls), GRAPH)

    def by_events(self, calls: Calls, reason: str = "") -> Timed:
        """Do as bench.gpu.timings.by_events."""

        def call() -> None:
            for one in calls:
                one()

        return Timed(Variant(call, self.clock), len(calls), f"{EVENTS}; {reason}" if reason else EVENTS)

    def clock(self, call: Callable[[], Any], repeats: int) -> float:
        """Return the seconds between two events on PyTorch's stream."""
        start, stop = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(repeats):
            call()
        stop.record()
        stop.synchronize()
        return start.elapsed_time(stop) / 1e3

    def free(self) -> None:
        """Free memory that no tensor uses."""
        self.torch.cuda.empty_cache()
