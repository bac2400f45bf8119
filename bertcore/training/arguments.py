"""The settings of a training run, its state, and the switches of its next actions, under the names of transformers."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import KW_ONLY, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from bertcore.arguments import check_count, check_number, naming_nearest
from bertcore.checkpoint.files import read_json_object, write_json
from bertcore.kernels import checks
from bertcore.passes import autocast
from bertcore.training.eight_bits import AdamW8bit
from bertcore.training.optimizers import LAMB, SGD, AdamW, Muon, StableAdamW
from bertcore.training.schedules import BY_METRICS, ENDLESS, SCHEDULES, STEPS_OF_SCHEDULES

OPTIMIZERS = {"adamw": AdamW, "adamw_8bit": AdamW8bit, "stable_adamw": StableAdamW, "lamb": LAMB}
OPTIMIZERS |= {"muon": Muon, "sgd": SGD}
SPELLINGS = {"adamw_torch": "adamw", "adamw_torch_fused": "adamw"}  # of transformers
SPELLINGS |= {"adamw_torch_8bit": "adamw_8bit", "adamw_bnb_8bit": "adamw_8bit"}
STRATEGIES = "no", "steps", "epoch"
REPORTS = "plot", "tensorboard", "wandb", "mlflow"
LOCAL_REPORTS = REPORTS[:2]  # those of "all": the others may ask for a login
MOST_SEED = 2**32 - 1


@dataclass
class TrainingArguments:
    """Settings of a `Trainer`; an unknown name raises TypeError.

    Attributes:
        output_dir: the folder of checkpoints and logs; created if missing.
        per_device_train_batch_size, per_device_eval_batch_size: the maximum number of examples per batch.
        max_tokens_per_batch: the maximum number of tokens per batch; no limit by default.
        gradient_accumulation_steps: the number of batches per step. The result equals one batch of all their examples:
            each summand of a loss is weighted by its own number of labels.
        learning_rate, weight_decay, adam_beta1, adam_beta2, adam_epsilon: options of the optimiser.
        optim: "adamw", "adamw_8bit", "stable_adamw", "lamb", "muon" or "sgd".
        optim_in_backward: update each parameter in the backward pass, once its gradient is complete, and free the
            gradient, so that the gradients of the whole model are never in memory together. Their joint norm is then
            unknown: `max_grad_norm` clips by the norm of the previous step, and does not clip the first step of a run,
            or a step with suddenly large gradients. Without `max_grad_norm`, steps are bit-identical to the default. If
            a step diverges, some parameters have already changed. Only on the CPU, in one process, with one batch per
            step, and for objectives with one pass (no sums, no embeddings).
        max_grad_norm: the maximum joint norm of all gradients; 0 for no limit.
        num_train_epochs: the number of passes over the dataset.
        max_steps: the number of steps, instead of epochs; -1 for no limit.
        max_seconds: instead of epochs, end the run (and its schedule) after this many seconds, including evaluations
            and checkpoints; `max_steps` may end it earlier.
        lr_scheduler_type, lr_scheduler_kwargs: the schedule and its options, see `get_scheduler`;
            "reduce_lr_on_plateau" and "greedy" follow `metric_for_best_model` at each evaluation.
        warmup_steps: the steps of the warm-up; a number below 1 is a fraction of the run, rounded up to whole steps.
            With `max_seconds`, only a fraction is allowed.
        label_smoothing_factor: the probability that is spread evenly over all classes.
        eval_on_start: also evaluate before the first step.
        eval_strategy, eval_steps: "no", "steps" or "epoch": when to evaluate; every `eval_steps` (by default
            `logging_steps`).
        save_strategy, save_steps: when to write a checkpoint, with the same values.
        save_total_limit: the number of checkpoints to keep, including the latest and the best; all by default.
        load_best_model_at_end: load the weights of the best evaluation at the end.
        metric_for_best_model: the metric that decides, "loss" by default; any metric of the evaluation.
        greater_is_better: whether a greater value is better; by default true unless the metric's name ends with "loss".
        logging_steps: the number of steps between two log entries.
        logging_first_step: also log the first step.
        report_to: "plot" (loss.png, by matplotlib), "tensorboard", "wandb", "mlflow", a list of these, "none", or "all"
            for the installed ones of the first two.
        run_name: the name of the run in wandb, mlflow and TensorBoard's folder.
        disable_tqdm: show no progress bar; None shows one on a terminal.
        seed: the seed of dropout, masking and, without `data_seed`, of the order of examples.
        data_seed: the seed of the order of examples; by default `seed`.
        bf16: multiply by weights in bfloat16, forward and backward, and compute the rest in float32; on a GPU,
            everything except parameters and losses is in bfloat16. `bertcore.autocast` says on which CPUs it is faster.
        fp16: the same in float16, only on GPUs. Losses are scaled (`LossScale`) so that gradients do not vanish; a
            step whose gradients overflow is skipped, and the log counts them.
        gradient_checkpointing: recompute layers in the backward pass, which takes less memory and more time.
        group_by_length: make batches of examples of similar lengths.
        dataloader_drop_last: leave out an epoch's last batch if it is not full.
        remove_unused_columns: leave out columns of a dataset that neither model nor objective takes.

    Raises:
        TypeError, ValueError: for a wrong setting; the message names it and the expected values.
    """

    output_dir: str | os.PathLike[str]
    _: KW_ONLY
    per_device_train_batch_size: int = 8
    per_device_eval_batch_size: int = 8
    max_tokens_per_batch: int | None = None
    gradient_accumulation_steps: int = 1
    learning_rate: float = 5e-5
    weight_decay: float = 0.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-8
    optim: str = "adamw"
    optim_in_backward: bool = False
    max_grad_norm: float = 1.0
    num_train_epochs: float = 3.0
    max_steps: int = -1
    max_seconds: float | None = None
    lr_scheduler_type: str = "linear"
    lr_scheduler_kwargs: Mapping[str, Any] = field(default_factory=dict)
    warmup_steps: float = 0
    label_smoothing_factor: float = 0.0
    eval_strategy: str = "no"
    eval_steps: int | None = None
    eval_on_start: bool = False
    save_strategy: str = "steps"
    save_steps: int = 500
    save_total_limit: int | None = None
    load_best_model_at_end: bool = False
    metric_for_best_model: str | None = None
    greater_is_better: bool | None = None
    logging_steps: int = 500
    logging_first_step: bool = False
    report_to: str | Sequence[str] = "all"
    run_name: str | None = None
    disable_tqdm: bool | None = None
    seed: int = 42
    data_seed: int | None = None
    bf16: bool = False
    fp16: bool = False
    gradient_checkpointing: bool = False
    group_by_length: bool = False
    dataloader_drop_last: bool = False
    remove_unused_columns: bool = True

    def __post_init__(self) -> None:
        self.optim = SPELLINGS.get(self.optim, self.optim) if isinstance(self.optim, str) else self.optim
        for name in _TYPES:
            self._check_type(name)
        for name in ("seed",) if self.data_seed is None else ("seed", "data_seed"):
            setattr(self, name, check_count(name, getattr(self, name), 0, MOST_SEED))
        if self.num_train_epochs == 0:
            raise ValueError("num_train_epochs is 0, expected more")
        if not isinstance(self.output_dir, str | os.PathLike):
            raise TypeError(f"output_dir is {self.output_dir!r}, expected a folder's path")
        if not os.fspath(self.output_dir) or os.path.isfile(self.output_dir):
            what = "a file" if self.output_dir else "empty"
            raise ValueError(f"output_dir {os.fspath(self.output_dir)!r} is {what}, expected a folder's path")
        for name in ("metric_for_best_model", "run_name"):
            if not isinstance(getattr(self, name), str | None):
                raise TypeError(f"{name} is {getattr(self, name)!r}, expected a name or None")
        if not isinstance(self.lr_scheduler_kwargs, Mapping):
            raise TypeError(f"lr_scheduler_kwargs is {self.lr_scheduler_kwargs!r}, expected {{option: value}}")
        if self.bf16 and self.fp16:
            raise ValueError("bf16 and fp16 are both set, expected one of them at most")
        if self.optim_in_backward and self.fp16:
            raise ValueError("optim_in_backward and fp16 are both set, expected one of them at most")
        if self.optim_in_backward and self.gradient_accumulation_steps != 1:
            steps = self.gradient_accumulation_steps
            raise ValueError(f"gradient_accumulation_steps is {steps}, expected 1, as optim_in_backward is set")
        self._check_choices()
        self._check_length()
        self._check_best()

    def _check_type(self, name: str) -> None:
        """Raise TypeError or ValueError unless a setting is of its declared type."""
        value, (kind, _, may_be_none) = getattr(self, name), _TYPES[name].partition(" | ")
        if value is None and may_be_none:
            return
        if kind == "int" and name not in _OTHER_INTEGERS:
            setattr(self, name, check_count(name, value))
        elif kind == "float":
            setattr(self, name, check_number(name, value))
        elif kind == "bool" and not isinstance(value, bool):
            raise TypeError(f"{name} is {value!r}, expected True{', False or None' if may_be_none else ' or False'}")

    def _check_choices(self) -> None:
        choices = {"optim": OPTIMIZERS, "lr_scheduler_type": SCHEDULES}
        choices |= {"eval_strategy": STRATEGIES, "save_strategy": STRATEGIES}
        for name, known in choices.items():
            checks.choice(name, getattr(self, name), known)
        if not isinstance(self.report_to, str | list | tuple):
            raise TypeError(f"report_to is {self.report_to!r}, expected a string or a list of strings")
        if list(self.reports) in (["all"], ["none"]):
            self.report_to = self.reports[0]
        for report in [] if self.report_to in ("all", "none") else self.reports:
            if report not in REPORTS:
                raise ValueError(f"report_to has {report!r}, expected all, none, or some of {', '.join(REPORTS)}")
        for name in ("label_smoothing_factor", "adam_beta1", "adam_beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, expected from 0 to below 1")

    def _check_length(self) -> None:
        if self.max_steps != -1:
            self.max_steps = check_count("max_steps", self.max_steps)
        if self.max_seconds == 0:
            raise ValueError("max_seconds is 0.0, expected more")
        counts: dict[str, Any] = {"warmup_steps": 0 if self.lr_scheduler_type == "constant" else self.warmup_steps}
        counts |= {name: self.lr_scheduler_kwargs.get(name) for name in STEPS_OF_SCHEDULES}
        for name, count in counts.items() if self.max_seconds is not None else ():
            if isinstance(count, int | float) and count >= 1:
                raise ValueError(f"{name} is {count}, expected a share of the run, below 1, as max_seconds is given")
        if self.warmup_steps >= 1 and self.warmup_steps != int(self.warmup_steps):
            expected = "a number of steps, or a share of the run below 1"
            raise ValueError(f"warmup_steps is {self.warmup_steps}, expected {expected}")

    def _check_best(self) -> None:
        if self.lr_scheduler_type in BY_METRICS and self.eval_strategy == "no":
            raise ValueError(
                f"lr_scheduler_type is {self.lr_scheduler_type!r}, which needs an eval_strategy other than 'no'"
            )
        if not self.load_best_model_at_end:
            return
        if self.eval_strategy == "no" or self.save_strategy != self.eval_strategy:
            raise ValueError(
                "load_best_model_at_end needs an eval_strategy, and the same save_strategy; "
                f"they are {self.eval_strategy!r} and {self.save_strategy!r}"
            )
        if self.save_strategy == "steps" and self.save_steps % self.steps_between_evaluations:
            raise ValueError(
                f"save_steps is {self.save_steps}, expected a multiple of the {self.steps_between_evaluations} steps "
                "between evaluations, as load_best_model_at_end is set"
            )

    def precision(self) -> AbstractContextManager[None]:
        """Return the autocast context for `bf16` and `fp16`."""
        return autocast("bfloat16" if self.bf16 else "float16") if self.bf16 or self.fp16 else nullcontext()

    @property
    def reports(self) -> Sequence[str]:
        """`report_to` as a list, unless it is "all" or "none"."""
        return [self.report_to] if isinstance(self.report_to, str) else self.report_to

    @property
    def steps_between_evaluations(self) -> int:
        """`eval_steps`, or else `logging_steps`."""
        return self.eval_steps or self.logging_steps

    @property
    def rates_depend_on_length(self) -> bool:
        """Return whether the learning rate of a step depends on the total number of steps."""
        has_share = 0 < self.warmup_steps < 1 and self.lr_scheduler_type not in ("constant", *BY_METRICS)
        return has_share or self.lr_scheduler_type not in ENDLESS

    @property
    def best_metric(self) -> str:
        """`metric_for_best_model` with the prefix of evaluations: eval_loss by default."""
        name = self.metric_for_best_model or "loss"
        return name if name.startswith("eval_") else f"eval_{name}"

    @property
    def more_is_better(self) -> bool:
        """`greater_is_better`, or the direction that the metric's name implies."""
        return not self.best_metric.endswith("loss") if self.greater_is_better is None else self.greater_is_better

    def deciding_value(self, metrics: Mapping[str, float]) -> float:
        """Return the metric that decides which evaluation is the best. Raises ValueError if it is missing."""
        if self.best_metric not in metrics:
            found = ", ".join(metrics)
            raise ValueError(f"metric_for_best_model is {self.best_metric}, which the evaluation lacks: it has {found}")
        return metrics[self.best_metric]

    def gain(self, value: float, best: float | None) -> float:
        """Return the improvement of `value` over the best so far: inf if there is no best yet, -inf for NaN."""
        if math.isnan(value):
            return -math.inf
        if best is None:
            return math.inf
        return value - best if self.more_is_better else best - value

    def to_dict(self) -> dict[str, Any]:
        """Return all settings as JSON values."""
        return {**asdict(self), "output_dir": os.fspath(self.output_dir)}


_OTHER_INTEGERS = ("max_steps", "seed", "data_seed")  # they may be 0 or -1
_TYPES = {each.name: str(each.type) for each in fields(TrainingArguments)}


TrainingArguments.__init__ = naming_nearest()(TrainingArguments.__init__)  # type: ignore[method-assign]


SETTINGS = "max_steps", "num_train_epochs", "logging_steps", "eval_steps", "save_steps", "train_batch_size"
_KINDS: dict[str, Any] = {
    "bool": bool,
    "int": int,
    "float": int | float,
    "str": str,
    "dict[str, Any]": dict,
    "list[dict[str, Any]]": list,
}
_PEERS = {"epoch", "global_step", "num_input_tokens_seen", "best_metric", "best_global_step", "best_model_checkpoint"}
_PEERS |= {*SETTINGS, "log_history"}  # in the JSON as in transformers' TrainerState; the others are nested
MOST_BATCHES = 2**48  # beyond any run


@dataclass
class TrainerState:
    """Progress of a run; a checkpoint stores it as JSON, which transformers' TrainerState can load.

    Attributes:
        global_step: the number of steps made.
        max_steps, num_train_epochs: the total number of steps, and of the epochs they begin; None if not known.
        logging_steps, eval_steps, save_steps: the steps between two log entries, evaluations, checkpoints.
        train_batch_size: `per_device_train_batch_size`.
        num_examples: the number of examples of the dataset; None for a stream.
        num_processes: the number of processes that train together.
        data: a fingerprint of the dataset; None without a length or if it changes between reads.
        masking: the settings of masking; None without masking.
        frozen: a fingerprint of the frozen weights that a checkpoint of adapters lacks; None without adapters.
        teacher: a fingerprint of the weights of the objective's teacher; None without a teacher.
        objective: the name of the objective's class.
        epoch: the number of epochs made, with the fraction of the current one if its number of batches is known.
        epochs_done, batches_of_epoch: the position in the data: whole epochs, and batches of the next one.
        is_epoch_stopped: whether a callback has ended the current epoch.
        batches_done: the number of all batches so far; they number the random choices.
        seconds: the training time, over all parts of a resumed run.
        num_input_tokens_seen: the number of tokens without padding.
        total_loss: the sum of the losses of all steps.
        unlogged_loss, unlogged_steps: the sum and number of the losses since the last log entry.
        grad_norm: the norm of the last step's gradients; None before the first.
        best_metric, best_global_step, best_model_checkpoint: of the best evaluation.
        log_history: the log entries.
        loss_scale: the state of `LossScale` in float16; otherwise None.
        callbacks: the states of callbacks with a `state_dict`, by class.
        is_world_process_zero, is_local_process_zero: whether this is the first process; not in the JSON.
    """

    is_world_process_zero = True
    is_local_process_zero = True
    global_step: int = 0
    max_steps: int | None = None
    num_train_epochs: int | None = None
    logging_steps: int = 500
    eval_steps: int = 500
    save_steps: int = 500
    train_batch_size: int = 8
    num_examples: int | None = None
    num_processes: int = 1
    data: str | None = None
    masking: dict[str, Any] | None = None
    frozen: str | None = None
    teacher: str | None = None
    objective: str | None = None
    epoch: float = 0.0
    epochs_done: int = 0
    batches_of_epoch: int = 0
    is_epoch_stopped: bool = False
    batches_done: int = 0
    seconds: float = 0.0
    num_input_tokens_seen: int = 0
    total_loss: float = 0.0
    unlogged_loss: float = 0.0
    unlogged_steps: int = 0
    grad_norm: float | None = None
    best_metric: float | None = None
    best_global_step: int | None = None
    best_model_checkpoint: str | None = None
    log_history: list[dict[str, Any]] = field(default_factory=list)
    loss_scale: dict[str, Any] | None = None
    callbacks: dict[str, Any] = field(default_factory=dict)

    def save_to_json(self, file: str | Path) -> None:
        """Write the state to a file."""
        values = asdict(self)
        own = {name: values.pop(name) for name in sorted(values.keys() - _PEERS)}
        write_json(Path(file), values | {"stateful_callbacks": {"bertcore": own}})

    @classmethod
    def load_from_json(cls, file: str | Path) -> TrainerState:
        """Read what `save_to_json` wrote. Raises ValueError, naming the file, for anything else."""
        values, names = read_json_object(Path(file)), {field.name for field in fields(cls)}
        nested = values.pop("stateful_callbacks", None)
        own = nested.get("bertcore") if isinstance(nested, dict) else None
        if not isinstance(own, dict) or values.keys() != _PEERS or values.keys() | own.keys() != names:
            raise ValueError(f"{file} is not the state of a run: expected an object with {', '.join(sorted(names))}")
        values |= own
        for each in fields(cls):
            if not _is_of(values[each.name], each.type):
                raise ValueError(f"{file}: {each.name} is {values[each.name]!r:.80}, expected {each.type}")
        for index, line in enumerate(values["log_history"]):
            if not isinstance(line, dict) or not _is_of(line.get("step"), "int"):
                raise ValueError(f"{file}: log_history[{index}] is {line!r:.80}, expected an object with a step")
        limits = {"batches_done": MOST_BATCHES, "global_step": values["batches_done"]}  # a step takes a batch
        for name, limit in limits.items():
            if not 0 <= values[name] <= limit:
                raise ValueError(f"{file}: {name} is {values[name]}, expected a number from 0 to {limit}")
        return cls(**values)


def _is_of(value: object, kind: str) -> bool:
    """Return whether a JSON value is of the kind that an annotation names."""
    name = kind.removesuffix(" | None")
    if value is None:
        return name != kind
    return isinstance(value, _KINDS[name]) and isinstance(value, bool) == (name == "bool")


@dataclass(slots=True)
class TrainerControl:
    """Switches for the next actions of a run; callbacks may turn them on and off."""

    should_training_stop: bool = False
    should_epoch_stop: bool = False
    should_log: bool = False
    should_evaluate: bool = False
    should_save: bool = False

    def join(self, others: Iterable[TrainerControl]) -> None:
        """Set every switch that any of `others` sets."""
        for other in others:
            for each in fields(self):
                setattr(self, each.name, getattr(self, each.name) or getattr(other, each.name))
