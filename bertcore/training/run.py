"""One training run: its steps, and the log, evaluation and checkpoint after a step."""

from __future__ import annotations

import itertools
import operator
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.gradients import Gradients, multiplied_gradients, zero_gradients
from bertcore.kernels.arrays import Array
from bertcore.passes import mixed_seed
from bertcore.training import checkpoints, safeguards
from bertcore.training.arguments import SETTINGS, TrainerControl, TrainerState
from bertcore.training.data import Batches
from bertcore.training.optimizers import Optimizer, StepInBackward, clip_factor, grad_norm
from bertcore.training.safeguards import LossScale, PendingSteps, StepResult, TrainingDiverged
from bertcore.training.schedules import Schedule

Batch = Mapping[str, Any]
LocalBatches = list[tuple[int, Batch]]  # this process's batches of a step, each with its number


def rates(seconds: float, **counts: float) -> dict[str, float]:
    """Return {"NAME_per_second": rate} of each count; {} if a coarse clock measured no time."""
    return {f"{name}_per_second": count / seconds for name, count in counts.items()} if seconds > 0 else {}


class Run:
    """The steps of a run, from its beginning or from a checkpoint.

    A step takes `gradient_accumulation_steps` batches for each process, dealt out in turn. Batches without labels add
    nothing; if no batch has labels, the step is left out. All randomness (dropout, masking, order of the examples)
    depends only on the seeds and the position in the data, so a resumed run ends with the bits of an uninterrupted one.

    Args:
        trainer: the `Trainer`, whose model, arguments, objective and callbacks the run has.
        optimizer, schedule: update the parameters and the learning rate.
        batches: the dataset's batches.
        length: the number of steps; None if only time ends the run.
    """

    def __init__(self, trainer: Any, optimizer: Optimizer, schedule: Schedule, batches: Batches, length: int | None):
        self.trainer, self.optimizer, self.schedule = trainer, optimizer, schedule
        self.batches, self.length = batches, length
        self.model, self.objective, self.processes = trainer.network, trainer.objective, trainer.processes
        self.args, self.collate = (args := trainer.args), trainer.numbered_collator()
        whole, taken = operator.length_hint(batches), args.gradient_accumulation_steps * self.processes.count
        self.state = TrainerState(
            max_steps=length,
            num_train_epochs=-(-length // -(-whole // taken)) if whole and length else None,  # that the run begins
            logging_steps=args.logging_steps,
            eval_steps=args.steps_between_evaluations,
            save_steps=args.save_steps,
            train_batch_size=args.per_device_train_batch_size,
            num_examples=self.batches.num_examples,
            num_processes=self.processes.count,
            data=self.batches.fingerprint(),
            masking=self.collate.masking,
            frozen=checkpoints.fingerprint_beyond_checkpoints(self.model),
            teacher=checkpoints.fingerprint_of(self.objective.teacher),
            objective=self.objective.kind,
        )
        self.control = TrainerControl()
        self._saved_at = -1
        self._pending, self._is_finite = PendingSteps(), True
        self._loss_scale = LossScale() if self.args.fp16 else None

    def resume(self, folder: Path) -> None:
        """Continue from a checkpoint."""
        now = {name: getattr(self.state, name) for name in SETTINGS}
        parts, beside = (self.trainer.read_from, self.optimizer, self.schedule), self.objective.parameters(self.model)
        self.state = checkpoints.load_run(folder, *parts, self.args, self.state, beside)
        for name, value in now.items():
            setattr(self.state, name, value)
        best = self.state.best_model_checkpoint
        if best is not None:  # beside the checkpoint to resume from, wherever they were moved to
            self.state.best_model_checkpoint = str(folder.parent / Path(best).name)
        self.trainer.callbacks.load_state_dict(self.state.callbacks)
        self.control.should_epoch_stop = self.state.is_epoch_stopped
        if self._loss_scale is not None:
            self._loss_scale.load_state_dict(self.state.loss_scale)
        self._saved_at = self.state.global_step

    def train(self, ending: list[int]) -> dict[str, float]:
        """Train to the end, or until `ending` holds a signal: then a checkpoint is always written. Return metrics."""
        self._check_processes()
        before = replace(self.state)
        self._started = time.monotonic() - before.seconds
        self.state.is_world_process_zero = self.state.is_local_process_zero = self.processes.is_first
        self._call("on_train_begin")
        try:
            if self.args.eval_on_start and self.state.global_step == 0:
                self._evaluate(at_start=True)
            for part in self._steps():
                if part is not None:
                    self._step(part)
                self._after(is_epoch_end=part is None)
                if self._is_to_end(ending):
                    if part is not None and not ending:
                        self._after(is_epoch_end=True)
                    break
            metrics = self._finish(before, is_interrupted=bool(ending))
        except BaseException as error:
            self._end(error)
            raise
        self._end()
        return metrics

    def _check_processes(self) -> None:
        """Raise ValueError unless all processes begin with the same data and model."""
        if self.processes.count > 1:
            if self.args.optim_in_backward:
                raise ValueError(f"optim_in_backward is True, expected False for {self.processes.count} processes")
            self.processes.check_same("the number of examples", self.batches.num_examples)
            self.processes.check_same("the model", checkpoints.fingerprint_of(self.model))

    def _is_to_end(self, ending: list[int]) -> bool:
        """Return whether a callback or a signal in any process ends the run; copy the signal to all."""
        noted = list(itertools.chain(*self.processes.gathered(list(ending))))
        if not ending:
            ending.extend(noted[:1])
        return self.control.should_training_stop or bool(ending)

    def _end(self, error: BaseException | None = None) -> None:
        """Call `on_train_end`; a failure there does not hide the `error` that ended the run."""
        self.model.eval()
        try:
            self._call("on_train_end")
        except Exception as other:
            if error is None:
                raise
            error.add_note(f"on_train_end failed, too: {other!r}")

    # --- data -----------------------------------------------------------------------------------------

    def _steps(self) -> Iterator[LocalBatches | None]:
        """Yield this process's part of each step, and None at the end of an epoch, also if the run ends within it."""
        state = self.state
        while not self._is_over():
            if state.batches_of_epoch == 0:
                self.control.should_epoch_stop = False
                self._call("on_epoch_begin")
            parts = self._parts()
            coming = None if state.is_epoch_stopped and state.batches_of_epoch else next(parts, None)
            if coming is None and state.batches_of_epoch == 0:
                why = "; an iterator can be read once" if state.epochs_done else ""
                raise ValueError(f"train_dataset gave no batch with labels in epoch {state.epochs_done + 1}{why}")
            while coming is not None:
                part, taken = coming
                state.batches_of_epoch, state.batches_done = state.batches_of_epoch + taken, state.batches_done + taken
                yield part
                coming = None if self.control.should_epoch_stop else next(parts, None)
                if coming is not None and self._is_over():
                    yield None
                    return
            state.epochs_done, state.batches_of_epoch = state.epochs_done + 1, 0
            yield None

    def _parts(self) -> Iterator[tuple[LocalBatches, int]]:
        """Yield (this process's part of a step, number of batches taken by all) for the rest of an epoch."""
        state, index, count = self.state, self.processes.index, self.processes.count
        batches = self.batches.epoch(state.epochs_done, skip=state.batches_of_epoch + index, every=count)
        numbered = zip(itertools.count(state.batches_done + index, count), batches)
        taken = 0
        while True:
            some = itertools.islice(numbered, self.args.gradient_accumulation_steps)
            group = [(number, self.collate(examples, number)) for number, examples in some]
            part = [(number, batch) for number, batch in group if any(self.objective.counts(self.model, batch))]
            sizes = self.processes.gathered((len(group), len(part)))
            taken += sum(size for size, _ in sizes)
            if not any(size for size, _ in sizes):
                return
            if any(size for _, size in sizes):
                yield part, taken
                taken = 0

    def _is_over(self) -> bool:
        args, state = self.args, self.state
        is_complete = state.max_steps is not None and state.global_step >= state.max_steps
        if args.max_steps == -1 and args.max_seconds is None:  # batches without labels make fewer steps
            is_complete |= state.epochs_done >= args.num_train_epochs
        return is_complete or (args.max_seconds is not None and self._seconds() >= args.max_seconds)

    def _seconds(self) -> float:
        """Return the seconds of training, by the clock of the first process."""
        return self.processes.from_first(lambda: time.monotonic() - self._started)

    # --- steps ----------------------------------------------------------------------------------------

    def _step(self, part: LocalBatches) -> None:
        state = self.state
        if self.args.optim_in_backward:
            loss, norm = self._step_in_backward(*part)
        else:
            loss, grads = self._gradients(part)
            norm = grad_norm(grads)
            if self._loss_scale is not None:
                norm = norm / self._loss_scale.value
            self.optimizer.step(grads, self._factor(loss, norm, next(iter(grads.values())).dtype))
        self._pending.append(StepResult(state.global_step + 1, part, loss, norm, self._is_finite))
        if self._pending.is_due:
            self._read()
        state.global_step += 1
        state.seconds = self._seconds()
        if self.args.max_seconds is None:
            self.schedule.step()
        else:
            self.schedule.move_to(state.seconds)
        state.num_input_tokens_seen += sum(self.processes.gathered(sum(_tokens(batch) for _, batch in part)))
        whole = operator.length_hint(self.batches)
        state.epoch = state.epochs_done + (state.batches_of_epoch / whole if whole else 0.0)
        state.unlogged_steps += 1

    def _step_in_backward(self, numbered: tuple[int, Batch]) -> tuple[Any, Any]:
        """Update parameters during the backward pass; return the loss and the gradients' norm, 0-d arrays."""
        number, batch = numbered
        step = StepInBackward(self.optimizer, self.args.max_grad_norm, self.state.grad_norm)
        self.model.train(mixed_seed(self.args.seed, number))
        with self.args.precision():
            loss = self.objective.in_backward(self.model, batch, step.take)
        norm = step.finish()
        self._is_finite = np.isfinite(loss + norm)
        return loss, norm

    def _factor(self, loss: Array, norm: Array, dtype: np.dtype) -> Array:
        """Return the factor for the gradients, a 0-d array; NaN skips the step.

        Once a loss or gradient is not finite, it is NaN in that and all later steps, so that the parameters stay as
        they were. With a loss scale, gradients may overflow; then only that step is skipped.
        """
        xp, scale = kernels.array_module(norm), self._loss_scale
        factor = clip_factor(norm, self.args.max_grad_norm or np.inf, dtype)
        if scale is None:
            self._is_finite = self._is_finite & xp.isfinite(loss + norm)
        else:
            factor = factor / scale.value
            self._is_finite = self._is_finite & xp.isfinite(loss) & ~scale.is_too_small
            scale.update(xp.isfinite(norm))
        return xp.where(self._is_finite, factor, np.nan).astype(dtype, copy=False)

    def _read(self) -> None:
        """Read the losses and norms of the pending steps; fail at the first that is not finite."""
        for made in self._pending.read():
            if not made.is_finite:
                self._fail(made)
            self.state.grad_norm = made.norm
            self.state.total_loss += made.loss
            self.state.unlogged_loss += made.loss

    def _gradients(self, part: LocalBatches) -> tuple[Any, Gradients]:
        """Return the mean loss over the labels of all batches of the step, a 0-d array, and its gradients."""
        counts = [self.objective.counts(self.model, batch) for _, batch in part]
        of_all = [count for some in self.processes.gathered(counts) for count in some]
        totals = [sum(column) for column in zip(*of_all, strict=True)]
        losses, grads = [], Gradients()
        for (number, batch), own in zip(part, counts, strict=True):
            shares = [count / total if count else 0.0 for count, total in zip(own, totals, strict=True)]
            self.model.train(mixed_seed(self.args.seed, number))
            with self.args.precision(), multiplied_gradients(self._loss_scale and self._loss_scale.value):
                loss, some = self.objective.in_step(self.model, batch, shares)
            losses.append(loss)
            grads.accumulate(some)
        grads = grads or zero_gradients(self.objective.trained(self.model))
        xp = kernels.array_module(next(iter(grads.values())))
        loss = xp.asarray(sum(losses), np.float64)
        self.processes.add_up([*grads.values(), loss])
        return loss, grads

    def _fail(self, made: StepResult) -> None:
        folder = Path(self.args.output_dir) / f"diverged-{made.step}"
        facts = {"step": made.step, "loss": str(made.loss), "grad_norm": str(made.norm)}
        facts["learning_rate"], again = self.optimizer.lr, self._gradients(made.part)[1]  # from the same weights
        parts = self.processes.gathered(made.part)
        batches = [batch for _, batch in sorted(itertools.chain(*parts), key=lambda numbered: numbered[0])]
        xp = kernels.array_module(next(iter(again.values())))
        facts["non_finite_gradients"] = [name for name, array in again.items() if not xp.isfinite(array).all()]
        self.processes.from_first(lambda: safeguards.save_failed_step(folder, self.model, batches, facts))
        raise TrainingDiverged(
            f"step {made.step}: the loss is {made.loss}, the norm of the gradients {made.norm}; {folder} holds the "
            f"step's batches and the model {'partly after' if self.args.optim_in_backward else 'before'} the step",
            folder,
        )

    # --- after a step, and after an epoch ---------------------------------------------------------------

    def _after(self, *, is_epoch_end: bool) -> None:
        args, state, control = self.args, self.state, self.control
        if not is_epoch_end:
            is_first = args.logging_first_step and state.global_step == 1
            control.should_log |= is_first or state.global_step % args.logging_steps == 0
        control.should_evaluate |= self._is_due(args.eval_strategy, args.steps_between_evaluations, is_epoch_end)
        control.should_save |= self._is_due(args.save_strategy, args.save_steps, is_epoch_end)
        self._call("on_epoch_end" if is_epoch_end else "on_step_end")  # may turn the switches off
        if control.should_log or control.should_evaluate or control.should_save:
            self._read()
        if control.should_log:
            self._log()
        if control.should_evaluate:
            self._evaluate()
        if control.should_save:
            self._save()
        control.should_log = control.should_evaluate = control.should_save = False

    def _is_due(self, strategy: str, every: int, is_epoch_end: bool) -> bool:
        if is_epoch_end:
            return strategy == "epoch"
        step = self.state.global_step
        return strategy == "steps" and (step % every == 0 or step == self.state.max_steps)

    def _finish(self, before: TrainerState, *, is_interrupted: bool) -> dict[str, float]:
        """Log and save what is left, and return the metrics of the run since the state `before`."""
        self._read()
        if self.state.unlogged_steps:
            self._log()
        if self.args.save_strategy != "no" or is_interrupted:
            self._save()
        state, seconds = self.state, self._seconds() - before.seconds
        steps = state.global_step - before.global_step
        examples = steps * state.train_batch_size * self.args.gradient_accumulation_steps * state.num_processes
        if state.num_examples is not None:
            examples = (state.epoch - before.epoch) * state.num_examples
        metrics = {
            "train_runtime": seconds,
            **rates(seconds, train_samples=examples, train_steps=steps),
            "train_loss": state.total_loss / max(1, state.global_step),
            "epoch": state.epoch,
        }
        self.trainer.log(metrics)
        return {**metrics, "train_steps": steps, "train_tokens": state.num_input_tokens_seen}

    def _log(self) -> None:
        state = self.state
        logs = {
            "loss": state.unlogged_loss / max(1, state.unlogged_steps),
            "grad_norm": state.grad_norm,
            "learning_rate": self.optimizer.lr,
            "seconds": state.seconds,
            "tokens": state.num_input_tokens_seen,
        }
        if self._loss_scale is not None:
            scaled = self._loss_scale.state_dict()
            logs |= {"loss_scale": scaled["scale"], "skipped_steps": scaled["skipped_steps"]}
        state.unlogged_loss, state.unlogged_steps = 0.0, 0
        self.trainer.log(logs)
        self._join()

    def _evaluate(self, *, at_start: bool = False) -> None:
        self.model.eval()
        metrics = self.trainer.evaluated_together()
        self._join()
        self._note_best(metrics)
        if self.schedule.metrics is not None and not at_start:
            self.schedule.step(self.args.deciding_value(metrics))

    def _note_best(self, metrics: Mapping[str, float]) -> None:
        args, state = self.args, self.state
        is_asked = args.load_best_model_at_end or args.metric_for_best_model
        if not is_asked and args.best_metric not in metrics:
            return
        value = args.deciding_value(metrics)
        if args.gain(value, state.best_metric) > 0:
            state.best_metric, state.best_global_step = value, state.global_step
            if self.control.should_save:
                state.best_model_checkpoint = str(checkpoints.checkpoint_folder(args.output_dir, state.global_step))

    def _save(self) -> None:
        state, args = self.state, self.args
        if self._saved_at == state.global_step:
            return
        folder = checkpoints.checkpoint_folder(args.output_dir, state.global_step)
        state.callbacks = self.trainer.callbacks.state_dict()
        state.loss_scale = self._loss_scale and self._loss_scale.state_dict()
        beside = self.objective.parameters(self.model)
        parts = self.trainer.write_into, self.optimizer, self.schedule, state, args, beside
        fill = checkpoints.save_run
        self.processes.from_first(lambda: checkpoints.write_checkpoint(folder, lambda new: fill(new, *parts)))
        self._saved_at = state.global_step
        kept = tuple(filter(None, (folder, state.best_model_checkpoint)))
        self.processes.from_first(lambda: checkpoints.remove_beyond(args.output_dir, args.save_total_limit, kept))
        self._call("on_save", folder=folder)

    def _call(self, event: str, **details: object) -> None:
        self.trainer.callbacks.call(event, self.args, self.state, self.control, **details)
        self._join()

    def _join(self) -> None:
        """Set every switch that a callback in any process has set."""
        self.control.join(self.processes.gathered(self.control))
        self.state.is_epoch_stopped = self.control.should_epoch_stop


def _tokens(batch: Batch) -> int:
    """Return the number of tokens, without padding if there is a mask."""
    return int(np.sum(batch["attention_mask"])) if "attention_mask" in batch else int(np.size(batch["input_ids"]))
