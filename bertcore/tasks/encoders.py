"""The interface that all encoders share, with sentence-transformers' names."""

from __future__ import annotations

import functools
import inspect
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypedDict, TypeVar

import numpy as np

from bertcore.arguments import Arguments, Result, check_function, check_mapping, naming_nearest, required
from bertcore.checkpoint import CheckpointError, resolve
from bertcore.checkpoint.files import CONFIG_NAME, locked, made_folder, read_json_object, replacing
from bertcore.kernels import checks
from bertcore.tasks.encoder_pool import Device, EncoderPool, backend_of
from bertcore.tasks.folder import (
    BGE_LINEARS,
    MODULES_NAME,
    SETTINGS_NAME,
    TRANSFORMER_NAMES,
    Module,
    Prompts,
    opened_folder,
    read_modules,
    read_prompts,
    save_modules,
    update_json,
)
from bertcore.tasks.long_texts import Cutting, ReadOptions
from bertcore.tokenization.tokenizer import Tokenizer

if TYPE_CHECKING:
    from bertcore.models.spec import Config

Reading = TypeVar("Reading", bound=ReadOptions)


def locking_folder(init: Callable[Arguments, None]) -> Callable[Arguments, None]:
    """Decorate an encoder's constructor, so that saves into the folder that it reads wait until it has finished.

    The arguments are kept, to construct the same encoder in another process; an error for an unknown one names the
    nearest.
    """
    init = naming_nearest(*EncoderOptions.__annotations__)(init)
    names = list(inspect.signature(init).parameters)[1:]

    @functools.wraps(init)
    def call(self: Any, *args: Any, **given: Any) -> None:
        named = dict(zip(names, args, strict=False))
        _take_peers_arguments(self, named, given)
        folder = given.get("model_name_or_path", named.get("model_name_or_path"))
        with locked(Path(folder), shared=True) if isinstance(folder, str | os.PathLike) else nullcontext():
            init(self, *args, **given)
            self._modules_read = self._modules_file()
        self._arguments = named | given | {"model_name_or_path": self.folder}

    return call


def _take_peers_arguments(encoder: object, named: Mapping[str, Any], given: dict[str, Any]) -> None:
    """Translate sentence-transformers' arguments: `model_kwargs` with a dtype, and `modules` to a folder of them."""
    name = next((name for name in ("model_kwargs", "automodel_args") if name in given), None)
    kwargs = check_mapping(name, given.pop(name) or {}) if name else {}
    dtypes = [kwargs.pop(key) for key in ("dtype", "torch_dtype") if key in kwargs]
    if kwargs:
        raise TypeError(f"{name} has {', '.join(map(repr, kwargs))}, expected only dtype")
    if dtypes:
        if given.get("dtype") is not None:
            raise TypeError(f"dtype and {name} with a dtype are both given, expected one")
        dtype = str(dtypes[0]).removeprefix("torch.")
        given["dtype"] = None if dtype in ("auto", "None") else dtype
    modules = given.pop("modules", None)
    if modules is None:
        return
    if (named | given).get("model_name_or_path") is not None:
        raise TypeError("model_name_or_path and modules are both given, expected one of them")
    if not isinstance(modules, Iterable):
        raise TypeError(f"modules is {type(modules).__name__}, expected a list of modules of sentence-transformers")
    given["model_name_or_path"] = folder = tempfile.mkdtemp(prefix="bertcore-modules-")
    weakref.finalize(encoder, shutil.rmtree, folder, ignore_errors=True)
    save_modules(modules, Path(folder))


class EncoderOptions(TypedDict, total=False):
    """Keyword arguments that all encoders take; see `Encoder`."""

    device: str | None
    prompts: Mapping[str, str] | None
    default_prompt_name: str | None
    cache_folder: str | os.PathLike[str] | None
    revision: str | None
    token: str | bool | None
    local_files_only: bool
    trust_remote_code: bool


class WindowOptions(TypedDict, total=False):
    """Keyword arguments of all calls that read texts.

    Attributes:
        truncation: treatment of inputs longer than `max_seq_length`: "warn" cuts them and warns once, with counts; True
            cuts them; "error" rejects them; "chunk" reads all of them in overlapping windows (of a pair those of its
            longer text, each with the other text).
        stride: for "chunk", the number of tokens that two windows share; by default a quarter of a window.
        merge: for "chunk", how to merge the results of an input's windows: their "mean", weighted by tokens, or the
            "max" of each dimension or label (Dai and Callan 2019, arXiv:1905.09217). The default is "mean" for
            embeddings, "max" for sparse ones and for scores.
        batch_tokens: maximum number of tokens computed at once; bounds memory and does not change the result.
        processing_kwargs: {"text": {"max_length": 256}} cuts the inputs of this call to this many tokens.
    """

    truncation: bool | str
    stride: int | None
    merge: str
    batch_tokens: int
    processing_kwargs: Mapping[str, Any] | None


class ReadingOptions(WindowOptions, total=False):
    """Keyword arguments of most calls that read texts, in addition to `WindowOptions`.

    Attributes:
        device: "cpu" or "cuda"; by default the encoder's. With a list, `encode` and `predict` start a process for each.
        show_progress_bar: whether to show a bar; by default on a terminal, if the work takes long.
    """

    device: str | None
    show_progress_bar: bool | None


class Encoder:
    """A published model that reads texts. Several threads may use one encoder at once.

    The first call that cuts texts ends with a TextsCutWarning that counts them.

    For compatibility with sentence-transformers, `modules=[...]` with its module objects is accepted in place of
    `model_name_or_path`, and `model_kwargs={"dtype": ...}` in place of `dtype`.

    Args:
        model_name_or_path: folder of the model, or its id on the Hugging Face hub ("ORGANISATION/NAME").
        kind: name of the expected content of the folder, for errors.
        options: device: "cpu" or "cuda", where calls compute; by default the active backend decides.
            prompts: texts to put before an input, by name; by default as published.
            default_prompt_name: the name of the prompt for calls that do not choose one.
            cache_folder, revision, token, local_files_only: for an id on the hub, as in `checkpoint.resolve`.
            trust_remote_code: ignored, for compatibility with sentence-transformers. A checkpoint's own code is never
                run.

    Attributes:
        folder: the folder that was read.
        model, tokenizer: the parts.
        model_card_data: figures of evaluations.
    """

    folder: Path
    model: Any
    tokenizer: Tokenizer
    max_seq_length: int
    cut_length: Callable[[Mapping[str, Any] | None], int]
    model_card_data: ModelCardData

    _prompts: Prompts
    _device: str | None
    _modules_read: tuple[int, int, int] | None
    _arguments: dict[str, Any]  # to construct the same encoder in another process
    _method: ClassVar[str] = "encode"

    def _open(self, model_name_or_path: str | os.PathLike[str], kind: str, options: EncoderOptions) -> Path:
        """Find the folder of a `kind` of encoder and apply `options`."""
        hub: dict[str, Any] = {
            name: options[name] for name in ("revision", "token", "local_files_only") if name in options
        }
        checks.boolean("trust_remote_code", options.get("trust_remote_code", False))
        found = resolve(model_name_or_path, "sentence_encoder", cache_dir=options.get("cache_folder"), **hub)
        self.folder = opened_folder(found, kind)
        self.model_card_data = ModelCardData()
        self._device = options.get("device")
        backend_of(self._device)
        published = read_prompts(self.folder)
        prompts, default = options.get("prompts"), options.get("default_prompt_name")
        given = Prompts(published.by_name if prompts is None else prompts)  # checked
        default = published.default if default is None else default
        self._prompts = Prompts({"query": "", "document": ""} | dict(given.by_name), default)
        if default is not None or prompts is not None:
            self._prompts.resolve(None, None)
        return self.folder

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.model!r}, max_seq_length {self.max_seq_length}>"

    @property
    def device(self) -> Device:
        """The device that calls compute on, "cpu" or "cuda"."""
        return Device("cuda" if backend_of(self._device) == "cupy" else "cpu")

    def _backend(self, device: str | None) -> str:
        """Return the backend that computes on a call's device, by default the encoder's."""
        return backend_of(self._device if device is None else device)

    def prompt(self, prompt: str | None = None, prompt_name: str | None = None) -> str:
        """Return the text that a call puts before each text, given these arguments; raises as the call does."""
        return self._prompts.resolve(prompt, prompt_name)

    def _reading(self, kind: type[Reading], prompt: str, **options: Any) -> Reading:
        """Return the checked options of a call; those that are not in `ReadingOptions` are fields of `kind`."""
        length = self.cut_length(options.pop("processing_kwargs", None))
        cutting = Cutting(options.pop("truncation", "warn"), length, options.pop("stride", None))
        return kind(cutting=cutting, backend=self._backend(options.pop("device", None)), prompt=prompt, **options)

    @property
    def dtype(self) -> str:
        """The dtype of the weights."""
        return self.model.dtype

    @property
    def config(self) -> Config:
        """The model's config."""
        return self.model.config

    @property
    def prompts(self) -> Mapping[str, str]:
        """Texts to put before an input, by name."""
        return self._prompts.by_name

    @prompts.setter
    def prompts(self, prompts: Mapping[str, str]) -> None:
        self._prompts = replace(self._prompts, by_name=prompts)

    @property
    def default_prompt_name(self) -> str | None:
        """The name of the prompt for calls that do not choose one."""
        return self._prompts.default

    @default_prompt_name.setter
    def default_prompt_name(self, name: str | None) -> None:
        self._prompts = replace(self._prompts, default=name)

    @property
    def modules(self) -> list[SimpleNamespace]:
        """The published modules: each with its kind and settings; the first also has auto_model and tokenizer."""
        given = {"auto_model": self.model, "tokenizer": self.tokenizer, "max_seq_length": self.max_seq_length}
        published = read_modules(self.folder) or [Module("Transformer", "", self.folder)]
        others = [(each.kind, each.folder / CONFIG_NAME) for each in published[1:]]
        settings = [(kind, read_json_object(file) if file.is_file() else {}) for kind, file in others]
        return [SimpleNamespace(kind=published[0].kind, **given), *(SimpleNamespace(kind=k, **s) for k, s in settings)]

    def __len__(self) -> int:
        return len(self.modules)

    def __getitem__(self, index: int) -> SimpleNamespace:
        return self.modules[index]

    def get_max_seq_length(self) -> int:
        """Return the length that inputs are cut to, in tokens."""
        return self.max_seq_length

    def evaluate(self, evaluator: Callable[..., Result], output_path: str | None = None) -> Result:
        """Return evaluator(self, output_path); evaluators of sentence-transformers are accepted, too.

        They also store their figures in `model_card_data.metrics`.
        """
        check_function("evaluator", evaluator)
        if output_path is not None:
            Path(output_path).mkdir(parents=True, exist_ok=True)
        return evaluator(self, output_path)

    def eval(self) -> Self:
        """Return the encoder as it is: it computes without dropout."""
        return self

    def save_pretrained(self, path: str | os.PathLike[str], *, safe_serialization: bool = True) -> None:
        """Write the encoder into the folder `path`, in a form that sentence-transformers and this class load.

        Published modules are copied; weights, tokenizer, prompts, lengths and dimensions are written as they are now.
        `safe_serialization` must be True: weights are written as safetensors.
        """
        if safe_serialization is not True:
            raise ValueError(f"safe_serialization is {safe_serialization!r}, expected True")
        if self._modules_file() != self._modules_read:  # its pooling may not be the one that was read
            raise CheckpointError(f"{self.folder / MODULES_NAME} has changed since it was read: load the encoder again")
        where = self._saved_where()
        with replacing(made_folder(path), (where / CONFIG_NAME).as_posix()) as target:
            self._fill(target, where)
        self._modules_read = self._modules_file()  # the folder may be the encoder's own

    def load_weights(self, folder: str | os.PathLike[str]) -> None:
        """Load the model's weights from a folder that `save_pretrained` wrote."""
        self.model.load_weights(Path(folder) / self._saved_where())

    def _saved_where(self) -> Path:
        """Return the folder of the model within a saved encoder's."""
        return self._model_folder().relative_to(self.folder)

    def _modules_file(self) -> tuple[int, int, int] | None:
        """Return what tells one modules.json from the next; every save replaces it."""
        file = self.folder / MODULES_NAME
        found = file.stat() if file.is_file() else None
        return found and (found.st_ino, found.st_mtime_ns, found.st_size)

    def _fill(self, target: Path, where: Path) -> None:
        source = self.folder
        (target / where).mkdir(parents=True, exist_ok=True)
        files = map(Path, (SETTINGS_NAME, MODULES_NAME, *BGE_LINEARS, *(where / name for name in TRANSFORMER_NAMES)))
        for name in [name for name in files if (source / name).is_file()]:
            shutil.copyfile(source / name, target / name)
        for folder in self._module_folders():
            if folder not in (source, source / where) and folder.is_dir():  # Normalize has no files
                shutil.copytree(folder, target / folder.relative_to(source), dirs_exist_ok=True)
        self._save_model(target / where)
        said = {"prompts": dict(self.prompts), "default_prompt_name": self.default_prompt_name} | self._saved_settings()
        update_json(target / SETTINGS_NAME, said)
        lengths = next((name for name in TRANSFORMER_NAMES if (target / where / name).is_file()), TRANSFORMER_NAMES[0])
        update_json(target / where / lengths, {"max_seq_length": self.max_seq_length})
        if not (target / MODULES_NAME).is_file():
            self._write_modules(target)

    def _write_modules(self, target: Path) -> None:
        """Write modules.json for a plain model; without it sentence-transformers does not read the settings."""

    def _model_folder(self) -> Path:
        """Return the folder of config.json and the weights, within `folder`."""
        return self.folder

    def _module_folders(self) -> Sequence[Path]:
        """Return the folders of the modules beside the model, within `folder`."""
        return ()

    def _saved_settings(self) -> dict[str, Any]:
        """Return the entries for this encoder in the settings of the whole model."""
        return {}

    def _save_model(self, folder: Path) -> None:
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    save = save_pretrained

    def push_to_hub(
        self,
        repo_id: str,
        token: str | None = None,
        private: bool | None = None,
        *,
        commit_message: str | None = None,
        local_model_path: str | os.PathLike[str] | None = None,
        revision: str | None = None,
        create_pr: bool = False,
    ) -> str:
        """Save the encoder and upload it to a model repository of the Hugging Face hub.

        Args:
            repo_id: the model's id, which is created if it does not exist.
            token: the hub's access token.
            private: whether a new model is private.
            commit_message: message of the commit.
            local_model_path: folder to upload instead of the encoder's saved files.
            revision: branch to upload to, created if it does not exist.
            create_pr: whether to open a pull request.

        Returns:
            The address of the commit, or of the pull request.
        """
        from huggingface_hub import HfApi

        api = HfApi(token=token)
        api.create_repo(repo_id, private=private, exist_ok=True)
        if revision is not None:
            api.create_branch(repo_id, branch=revision, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            if local_model_path is None:
                self.save_pretrained(folder)
            done = api.upload_folder(
                repo_id=repo_id, folder_path=folder if local_model_path is None else local_model_path,
                commit_message=commit_message or f"Add {type(self).__name__}", revision=revision, create_pr=create_pr,
            )  # fmt: skip
        return str(done.pr_url if create_pr else done.commit_url)

    def start_multi_process_pool(self, target_devices: Sequence[str] | None = None) -> EncoderPool:
        """Start a process for each of `target_devices`, "cpu" or "cuda"; by default up to 4 on the CPU.

        Each process reads the folder again and computes with its share of the threads. Pass the result as `pool` to
        `encode` or `predict`, and to `stop_multi_process_pool`.
        """
        devices = ["cpu"] * min(4, os.cpu_count() or 1) if target_devices is None else target_devices
        return EncoderPool(type(self), self._arguments, devices)

    @staticmethod
    def stop_multi_process_pool(pool: EncoderPool) -> None:
        """End the processes of a pool."""
        pool.close()

    def _in_processes(
        self, inputs: Sequence[Any], pool: EncoderPool | None, chunk_size: int | None, options: dict[str, Any]
    ) -> list[Any] | None:
        """Return the results of chunks of the inputs from a pool, or one on this call's devices; None without both."""
        own, device = pool is None, options.get("device")
        if pool is None:
            if not isinstance(device, list | tuple):
                return None
            pool = self.start_multi_process_pool(device)
        if not isinstance(pool, EncoderPool):
            raise TypeError(f"pool is {type(pool).__name__}, expected the result of start_multi_process_pool")
        try:
            return pool.run(self._method, inputs, chunk_size, options | {"device": None, "show_progress_bar": False})
        finally:
            if own:
                pool.close()


class ModelCardData:
    """The figures of evaluations, as reported by sentence-transformers' evaluators.

    Attributes:
        metrics: the latest figures by name.
    """

    def __init__(self) -> None:
        self.metrics: dict[str, float] = {}

    def set_evaluation_metrics(self, evaluator: object, metrics: Mapping[str, float], *when: int, **steps: int) -> None:
        """Store the figures of an evaluator."""
        self.metrics |= metrics


def as_tensors(found: Any) -> Any:
    """Replace arrays in lists and dicts by PyTorch tensors."""
    if isinstance(found, list):
        return [as_tensors(each) for each in found]
    if isinstance(found, dict):
        return {name: as_tensors(each) for name, each in found.items()}
    import torch

    return torch.from_numpy(found) if isinstance(found, np.ndarray) else found


def converted(rows: np.ndarray, convert_to_numpy: bool, convert_to_tensor: bool, is_one: bool = False) -> Any:
    """Return an array in the requested form: a PyTorch tensor, the array itself, or a list of tensors.

    Returns only the first entry if the call has one input. Raises ImportError for tensors if PyTorch is missing.
    """
    checks.boolean("convert_to_numpy", convert_to_numpy)
    if convert_to_numpy and not checks.boolean("convert_to_tensor", convert_to_tensor):
        return rows[0] if is_one else rows
    tensor = required("torch").from_numpy(np.ascontiguousarray(rows))
    if is_one:
        return tensor[0]
    return tensor if convert_to_tensor else list(tensor)
