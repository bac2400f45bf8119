"""The Trainer, with the interface of transformers: trains a model with arguments and datasets."""

from __future__ import annotations

import math
import operator
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bertcore import kernels
from bertcore.arguments import check_list, naming_nearest
from bertcore.checkpoint.files import read_json_object, write_json
from bertcore.gradients import TrainedModel
from bertcore.nn.parameter import Block
from bertcore.tokenization.tokenizer import Tokenizer
from bertcore.training import checkpoints, objectives
from bertcore.training.arguments import OPTIMIZERS, TrainerControl, TrainerState, TrainingArguments
from bertcore.training.callbacks import Callbacks, TrainerCallback, reports_of
from bertcore.training.collators import LABELS, LEFT_OUT, DataCollatorWithPadding, NumberedCollator
from bertcore.training.data import Batches
from bertcore.training.metrics import EvalPrediction, PredictionOutput, Reduce, run_through
from bertcore.training.objectives.language_modeling import NextWords
from bertcore.training.objectives.objective import OwnLoss
from bertcore.training.optimizers import Optimizer
from bertcore.training.processes import started_together
from bertcore.training.run import Run, rates
from bertcore.training.safeguards import held_back
from bertcore.training.schedules import BY_METRICS, Schedule, make_schedule, steps_of


class TrainOutput(NamedTuple):
    """The result of `Trainer.train`: the number of steps, their mean loss, and timings."""

    global_step: int
    training_loss: float
    metrics: dict[str, float]


class Trainer:
    """Train a model, evaluate it, and write checkpoints from which a run resumes bit for bit.

    Args:
        model: a model with the head that the objective needs.
        args: the settings.
        data_collator: turns a list of examples into a batch; by default the objective's, else padding to the longest.
        train_dataset: a sequence of examples (a list, a Hugging Face Dataset) or an iterable of them.
        eval_dataset: a dataset of the same kinds, or a mapping of names to datasets.
        processing_class: the tokenizer, which is saved beside the model.
        compute_metrics: a function from an `EvalPrediction` to {name: number}.
        callbacks: TrainerCallbacks.
        optimizers: (an optimiser, a schedule) instead of those described by `args`; each may be None.
        preprocess_logits_for_metrics: a function of (logits, labels) of a batch that returns the predictions to keep
            for `compute_metrics`.
        objective: the training objective; by default the model's own loss for the labels of the batch.

    Attributes:
        state: the progress of the run.

    Raises:
        TypeError, ValueError: for arguments that contradict each other.
    """

    model: Any

    @naming_nearest()
    def __init__(
        self,
        model: Any,
        args: TrainingArguments,
        data_collator: Callable[[list[Any]], Mapping[str, Any]] | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Tokenizer | None = None,
        compute_metrics: Callable[[EvalPrediction], Mapping[str, float]] | None = None,
        callbacks: Sequence[TrainerCallback | type[TrainerCallback]] | None = None,
        optimizers: tuple[Optimizer | None, Schedule | None] = (None, None),
        preprocess_logits_for_metrics: Reduce | None = None,
        *,
        objective: objectives.Objective | None = None,
    ):
        if not isinstance(model, Block):
            raise TypeError(f"model is {type(model).__name__}, expected one of bertcore's models")
        if not isinstance(args, TrainingArguments):
            raise TypeError(f"args is {type(args).__name__}, expected TrainingArguments")
        for name, value in ("eval_strategy", args.eval_strategy), ("eval_on_start", args.eval_on_start):
            if value not in ("no", False) and eval_dataset is None:
                raise ValueError(f"{name} is {value!r}, and there is no eval_dataset")
        for name in ("bf16", "fp16"):
            if getattr(args, name) and model.dtype != "float32":
                raise ValueError(f"{name} is for models in float32, model has dtype {model.dtype!r}")
        if args.max_seconds is not None and optimizers[1] is not None:
            raise ValueError("optimizers has a schedule by steps, and max_seconds is set: leave one of them out")
        smoothing = getattr(objective, "label_smoothing", None)
        if args.label_smoothing_factor and objective is not None and smoothing != args.label_smoothing_factor:
            raise ValueError("label_smoothing_factor and objective are both given: smooth the labels in the objective")
        self.model, self.args, self.processing_class = model, args, processing_class
        self.train_dataset, self.eval_dataset = train_dataset, eval_dataset
        self.compute_metrics, self.reduce = compute_metrics, preprocess_logits_for_metrics
        self.objective = _weighed_for(self.model, objective or objectives.Supervised(args.label_smoothing_factor))
        if type(self).compute_loss is not Trainer.compute_loss:
            self.objective = OwnLoss(self.compute_loss, self.objective)
        if args.optim_in_backward and not self.objective.is_one_pass:
            name = type(self.objective).__name__
            raise ValueError(f"optim_in_backward is set, and {name} computes gradients in several passes, expected one")
        self.data_collator = data_collator or self._default_collator()
        self.optimizer, self.schedule = _checked_optimizers(optimizers)
        self.processes = started_together()
        reports = reports_of(args) if self.processes.is_first else ()
        details = {"model": model, "optimizer": self.optimizer, "lr_scheduler": self.schedule}
        own = check_list("callbacks", callbacks or (), "TrainerCallbacks")
        self.callbacks = Callbacks([*reports, *own], **details, processing_class=processing_class)
        self.state, self.control = TrainerState(), TrainerControl()

    def __repr__(self) -> str:
        learns, step = type(self.objective).__name__, self.state.global_step
        return f"<{type(self).__name__} of {self.model!r}, {learns}, step {step}, output_dir {self.args.output_dir}>"

    @property
    def network(self) -> TrainedModel:
        """The model that learns."""
        return self.model

    def train(self, resume_from_checkpoint: bool | str | os.PathLike[str] | None = None) -> TrainOutput:
        """Train for the epochs, steps or seconds of the arguments.

        Ctrl-C and SIGTERM take effect after the current step, once a checkpoint is written; a second one at once.

        Args:
            resume_from_checkpoint: True for the latest undamaged checkpoint in `output_dir` (a new run without any;
                with a warning if later ones are damaged), or a checkpoint's folder.

        Raises:
            TrainingDiverged: if the loss or a gradient is inf or NaN; the step's batches and model are saved.
            NotSaved: if a checkpoint cannot be written; the previous one remains.
            ValueError: without data or an end of the run; for an `output_dir` with checkpoints unless the run is
                resumed; for a damaged checkpoint, or one of other data or another model.
        """
        if self.train_dataset is None:
            raise ValueError("train_dataset is missing")
        is_on_gpu = kernels.resolve_backend(None, on_gpu=False) == "cupy"
        if is_on_gpu:
            self.processes.use_own_gpu()
        if self.args.fp16 and not is_on_gpu:
            raise ValueError("fp16 is for GPUs, with the backend 'cupy' in force: on the CPU use bf16")
        for name, value in ("optim_in_backward", True), ("optim", "adamw_8bit"):
            if getattr(self.args, name) == value and is_on_gpu:
                raise ValueError(f"{name} is {value!r}, which is for the CPU, and the backend 'cupy' is in force")
        start = self.processes.from_first(lambda: self._start(resume_from_checkpoint))
        run = self._run()
        if start is not None:
            run.resume(start)
        self.state, self.control = run.state, run.control
        if self.args.gradient_checkpointing:
            self.network.gradient_checkpointing_enable()
        details = self.callbacks.details
        self.callbacks.details = details | {"optimizer": run.optimizer, "lr_scheduler": run.schedule}
        try:
            with held_back() as ending:
                metrics = run.train(ending)
        finally:
            self.callbacks.details = details  # the moments do not outlive the run
        if self.args.load_best_model_at_end and self.state.best_model_checkpoint:
            best = Path(self.state.best_model_checkpoint)
            self.read_from(best)
            checkpoints.load_beside(best, self.objective.parameters(self.network))
        return TrainOutput(self.state.global_step, metrics["train_loss"], metrics)

    def evaluate(self, eval_dataset: Any = None, metric_key_prefix: str = "eval") -> dict[str, float]:
        """Log and return the loss and the metrics on a dataset, by default `eval_dataset`; on each of several, by name.

        Returns:
            {"eval_loss": ..., the results of `compute_metrics` (each name with the prefix), "eval_runtime": seconds,
            "eval_samples_per_second": ..., "eval_steps_per_second": ..., "epoch": the epochs trained}.
        """
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        if dataset is None:
            raise ValueError("eval_dataset is missing")
        parts = {metric_key_prefix: dataset}
        if isinstance(dataset, Mapping):
            parts = {f"{metric_key_prefix}_{name}": part for name, part in dataset.items()}
        metrics: dict[str, float] = {}
        for prefix, part in parts.items():
            found, kept = self._evaluated(part, prefix, keep=self.compute_metrics is not None)
            if kept is not None and kept.label_ids is None:
                raise ValueError("compute_metrics is given, and the evaluation's batches have no labels for it")
            metrics |= found
        return self._reported(metrics | self._further_metrics(metric_key_prefix))

    def predict(self, test_dataset: Any, metric_key_prefix: str = "test") -> PredictionOutput:
        """Return the predictions on a dataset, and the labels and metrics if it has labels."""
        metrics, kept = self._evaluated(test_dataset, metric_key_prefix, keep=True)
        return PredictionOutput(*(kept or (None, None)), metrics)

    def save_model(self, output_dir: str | os.PathLike[str] | None = None) -> None:
        """Write the model and the tokenizer to a folder, by default that of the run.

        Of several processes the first writes; the others do not wait for it.
        """
        if self.processes.is_first:
            self.write_into(Path(self.args.output_dir if output_dir is None else output_dir))

    def save_state(self) -> None:
        """Write `state`, with all of its log, to trainer_state.json in `output_dir`."""
        if self.processes.is_first:
            self.state.save_to_json(Path(self.args.output_dir) / checkpoints.STATE)

    def log_metrics(self, split: str, metrics: Mapping[str, float]) -> None:
        """Print metrics under the name of a split, "train" or "eval"."""
        if self.processes.is_first:
            values = ((name, metrics[name]) for name in sorted(metrics))
            shown = {name: str(round(value, 4) if isinstance(value, float) else value) for name, value in values}
            first, second = (max(map(len, column), default=0) for column in (shown, shown.values()))
            rows = [f"  {name:<{first}} = {value:>{second}}" for name, value in shown.items()]
            print(f"***** {split} metrics *****", *rows, sep="\n")

    def save_metrics(self, split: str, metrics: Mapping[str, float], combined: bool = True) -> None:
        """Write metrics to {split}_results.json in `output_dir`; with `combined` add them to all_results.json, too."""
        if not self.processes.is_first:
            return
        folder = Path(self.args.output_dir)
        write_json(folder / f"{split}_results.json", dict(metrics))
        if combined:
            every = folder / "all_results.json"
            write_json(every, {**(read_json_object(every) if every.is_file() else {}), **metrics})

    def is_world_process_zero(self) -> bool:
        """Return whether this is the first process of the run, which writes and reports for all."""
        return self.processes.is_first

    def add_callback(self, callback: TrainerCallback | type[TrainerCallback]) -> None:
        """Add a callback after the others; a class is instantiated."""
        self.callbacks.add(callback)

    def pop_callback(self, callback: TrainerCallback | type[TrainerCallback]) -> TrainerCallback | None:
        """Remove a callback, or the first of a class, and return it; None if there is none."""
        return self.callbacks.pop(callback)

    def remove_callback(self, callback: TrainerCallback | type[TrainerCallback]) -> None:
        """Remove a callback, or the first of a class."""
        self.callbacks.pop(callback)

    def log(self, logs: Mapping[str, float]) -> None:
        """Add a line to the log, with the epoch and the step, and call `on_log`."""
        line = {**logs, "epoch": self.state.epoch, "step": self.state.global_step}
        self.state.log_history.append(line)
        self.callbacks.call("on_log", self.args, self.state, self.control, logs=line)

    def compute_loss(self, model: TrainedModel, inputs: dict[str, Any], return_outputs: bool = False) -> Any:
        """Return the loss of a batch, or (loss, the model's output); a subclass may have another loss.

        An override computes by operations that have gradients (`bertcore.nn.functional`), and takes its loss as a mean
        over the labels that the objective counts.
        """
        own = self.objective
        out = (own.source if isinstance(own, OwnLoss) else own).loss(model, inputs)
        return (out.loss, out) if return_outputs else out.loss

    # --- the parts of a run ---------------------------------------------------------------------------

    def write_into(self, folder: Path) -> None:
        """Write the model and the tokenizer."""
        self.network.save_pretrained(folder)
        if self.processing_class is not None:
            self.processing_class.save_pretrained(folder)

    def read_from(self, folder: Path) -> None:
        """Load the weights that `write_into` wrote."""
        self.network.load_weights(folder)

    def _batches(self, **options: Any) -> Batches:
        """Return the batches of the training data."""
        return Batches(self.train_dataset, **options)

    def _further_metrics(self, prefix: str) -> dict[str, float]:
        """Return the metrics of an evaluation beside those of a dataset."""
        return {}

    def _default_collator(self) -> Callable[[list[Any]], Mapping[str, Any]]:
        if self.processing_class is None:
            raise ValueError("data_collator is missing; without one processing_class, the tokenizer, is needed")
        made = self.objective.collator(self.processing_class, seed=self.args.seed)
        return made or DataCollatorWithPadding(self.processing_class)

    def _start(self, resume: bool | str | os.PathLike[str] | None) -> Path | None:
        """Return the checkpoint to start from; the run's folder is created or cleaned."""
        checkpoints.recover_checkpoints(self.args.output_dir)
        Path(self.args.output_dir).mkdir(parents=True, exist_ok=True)
        if resume not in (None, False, True):
            if not isinstance(resume, str | os.PathLike):
                raise TypeError(f"resume_from_checkpoint is {resume!r:.60}, expected True or a folder")
            checkpoints.check_whole(Path(resume))
            return Path(resume)
        found = checkpoints.checkpoints_in(self.args.output_dir)
        if found and not resume:
            advice = "resume with resume_from_checkpoint=True, or choose another folder"
            raise ValueError(f"output_dir has {found[-1].name} already: {advice}")
        return checkpoints.latest_checkpoint(self.args.output_dir)

    def _run(self) -> Run:
        args = self.args
        batches = self._batches(
            batch_size=args.per_device_train_batch_size,
            max_tokens=args.max_tokens_per_batch,
            shuffle=True,
            group_by_length=args.group_by_length,
            drop_last=args.dataloader_drop_last,
            seed=args.seed if args.data_seed is None else args.data_seed,
        )
        length = self._length(batches)
        trained = self.objective.trained(self.network)
        known = set(trained.parameters())
        if self.optimizer and not all(known.issuperset(group.parameters) for group in self.optimizer.groups):
            raise ValueError("optimizers[0] was made for another model: it trains parameters that model does not have")
        optimizer = self.optimizer or OPTIMIZERS[args.optim](
            trained,
            lr=args.learning_rate,
            betas=(args.adam_beta1, args.adam_beta2),
            eps=args.adam_epsilon,
            weight_decay=args.weight_decay,
        )
        return Run(self, optimizer, self.schedule or self._made_schedule(optimizer, length), batches, length)

    def _made_schedule(self, optimizer: Optimizer, length: int | None) -> Schedule:
        args = self.args
        total = length if args.max_seconds is None else float(args.max_seconds)
        options = dict(args.lr_scheduler_kwargs)
        if args.lr_scheduler_type in BY_METRICS:
            options.setdefault("mode", "max" if args.more_is_better else "min")
        return make_schedule(args.lr_scheduler_type, optimizer, steps_of(args.warmup_steps, total), total, options)

    def _length(self, batches: Batches) -> int | None:
        """Return the number of steps of a run; None if it is limited only by time."""
        if self.args.max_steps != -1:
            return self.args.max_steps
        if self.args.max_seconds is not None:
            return None
        if (count := operator.length_hint(batches, -1)) < 0:
            why = "train_dataset has no length, or max_tokens_per_batch is set"
            raise ValueError(f"max_steps or max_seconds is needed: {why}, so that the number of steps is not known")
        steps = -(-count // (self.args.gradient_accumulation_steps * self.processes.count))
        return max(1, math.ceil(self.args.num_train_epochs * steps))

    def numbered_collator(self) -> NumberedCollator:
        """Return the collator; bertcore's own do not see columns that neither model nor objective takes."""
        is_ours = self.args.remove_unused_columns and isinstance(self.data_collator, DataCollatorWithPadding)
        columns = {*self.network.arguments, *self.objective.targets, *LABELS, *LEFT_OUT} if is_ours else None
        return NumberedCollator(self.data_collator, self.args.seed, columns)

    # --- results ----------------------------------------------------------------------------------------

    def _reported(self, metrics: dict[str, float]) -> dict[str, float]:
        metrics = {**metrics, "epoch": self.state.epoch}
        self.log(metrics)
        self.callbacks.call("on_evaluate", self.args, self.state, self.control, metrics=metrics)
        return metrics

    def evaluated_together(self) -> dict[str, float]:
        """Evaluate in the first process, and report in all."""
        metrics = self.processes.from_first(self.evaluate)
        return metrics if self.processes.is_first else self._reported(metrics)

    def _evaluated(self, dataset: Any, prefix: str, *, keep: bool) -> tuple[dict[str, float], EvalPrediction | None]:
        started, was_training = time.monotonic(), self.network.training
        batches = Batches(dataset, batch_size=self.args.per_device_eval_batch_size, shuffle=False)
        collate = self.numbered_collator()
        collated = (collate(examples, number) for number, examples in enumerate(batches.epoch(0)))
        self.network.eval()
        try:
            with self.args.precision():
                found = run_through(self.objective, self.network, collated, keep=keep, reduce=self.reduce)
        finally:
            self.network.training = was_training
        if not found.examples:
            raise ValueError(f"the dataset for {prefix} gave no examples; an iterator can be read once")
        metrics = {} if found.loss is None else {"loss": found.loss}
        if self.compute_metrics is not None and found.predictions and found.predictions.label_ids is not None:
            metrics |= checked_metrics("compute_metrics", self.compute_metrics(found.predictions))
        seconds = time.monotonic() - started
        steps = -(-found.examples // self.args.per_device_eval_batch_size)
        metrics |= {"runtime": seconds, **rates(seconds, samples=found.examples, steps=steps)}
        start = f"{prefix}_"
        metrics = {name if name.startswith(start) else start + name: value for name, value in metrics.items()}
        return metrics, found.predictions


def _weighed_for(model: Any, objective: objectives.Objective) -> objectives.Objective:
    """Return `objective` with a weight that counts the labels that the loss of `model` is a mean over."""
    if type(objective) is not objectives.Supervised:
        return objective
    if not hasattr(model, "predicts_next_words"):  # a ReplacedTokenModel has no loss of its own
        raise ValueError(f"objective is Supervised, expected one that trains a {type(model).__name__}")
    if model.predicts_next_words:
        return NextWords(objective.label_smoothing, objective.class_weights)
    return objective


def _checked_optimizers(optimizers: Any) -> tuple[Optimizer | None, Schedule | None]:
    """Return the pair. Raises TypeError for anything else."""
    is_pair = isinstance(optimizers, tuple | list) and len(optimizers) == 2
    if not is_pair or not isinstance(optimizers[0], Optimizer | None) or not isinstance(optimizers[1], Schedule | None):
        expected = "(an Optimizer or None, a Schedule or None)"
        raise TypeError(f"optimizers is {optimizers!r:.200}, expected {expected} of bertcore.training")
    return optimizers[0], optimizers[1]


def checked_metrics(source: str, metrics: object) -> dict[str, Any]:
    """Return {name: Python number}, which the log and checkpoints can hold. Raises TypeError for other values."""
    if not isinstance(metrics, Mapping):
        raise TypeError(f"{source} returned {type(metrics).__name__}, expected {{name: number}}")
    plain = {name: value.item() if getattr(value, "size", 0) == 1 else value for name, value in metrics.items()}
    for name, value in plain.items():
        if not isinstance(name, str):
            raise TypeError(f"{source} returned the name {name!r}, expected a string")
        if not isinstance(value, int | float):
            raise TypeError(f"{source} returned {name!r} as {type(value).__name__}, expected a number")
    return plain
