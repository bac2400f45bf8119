"""The options, the data, the run and the report that pretrain, finetune and distill share."""

from __future__ import annotations

import hashlib
import math
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import click

from bertcore.arguments import printable
from bertcore.checkpoint.files import read_json_object, remove_abandoned
from bertcore.cli.options import REQUIRED, Command, CommandError, File, Positive, Words, opt, settings_options
from bertcore.cli.reports import write_reports
from bertcore.lora import LoraConfig, PeftModel, get_peft_model
from bertcore.training import EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments, checkpoints
from bertcore.training.arguments import TrainerState
from bertcore.training.callbacks import LOG_NAME, PLOT_NAME, TENSORBOARD_NAME
from bertcore.training.data import Documents, Records, StoredExamples, Subset, TextColumns, store_examples
from bertcore.training.processes import FirstProcessError, started_together

STORED = "examples"  # in the --out folder: the corpus as tokens
ADAPTER = "adapter"  # in the --out folder: trained adapters; the model beside it has them in its weights
TASK_TYPES = {"sequence": "SEQ_CLS", "token": "TOKEN_CLS", "qa": "QUESTION_ANS"}
MOST_HELD_OUT = 1000
# Settings with short names of their own, and those that follow from other options.
SPELLINGS = {
    "--epochs": "num_train_epochs", "--lr": "learning_rate", "--batch": "per_device_train_batch_size",
    "--warmup": "warmup_steps", "--log-steps": "logging_steps",
}  # fmt: skip
# Options that may change when a run goes on: its place, end and reports; and the data, which are compared themselves.
FREE = {
    *("backend", "traceback", "out", "resume", "corpus", "data", "eval", "skip_malformed", "early_stopping"),
    "checkpoint",  # found by --resume
    *("num_train_epochs", "max_steps", "max_seconds", "save_steps", "save_strategy", "save_total_limit"),
    *("logging_steps", "logging_first_step", "report_to", "disable_tqdm", "per_device_eval_batch_size"),
    *("eval_strategy", "eval_steps", "load_best_model_at_end", "metric_for_best_model", "greater_is_better"),
    *("settings", "output_dir", "keep_checkpoints"),
}
SETTINGS = "Settings of the run (bertcore.training.TrainingArguments)"
COMMON = {"weight_decay": 0.01, "warmup_steps": 0.06, "save_total_limit": 2, "logging_steps": 50}
PATHS = {"model", "generator", "teacher", "student", "tokenizer"}


class Data(Command):
    """A command that reads data to learn from."""

    title = "Data"

    skip_malformed: bool = opt("leave out lines that cannot be read, and list them", False)

    def records(self, paths: Sequence[str]) -> Records:
        return Records(list(paths), on_malformed="skip" if self.skip_malformed else "error")


class Training(Command):
    """A command that trains."""

    title = "Training"
    defaults: ClassVar[Mapping[str, Any]] = {}  # of the settings
    shown_defaults: ClassVar[Mapping[str, str]] = {}  # in the help, for those that depend on other options
    keep_checkpoints = True  # after the last step; finetune has an option

    out: File = opt("the folder to write the model to: a new or an empty one", REQUIRED)
    max_length: Positive | None = opt(
        "tokens of an example (default: the model's, but not more than is usual for the task)"
    )
    early_stopping: Positive | None = opt(
        "measure the loss at each checkpoint, stop after N without improvement, and keep the best model"
    )
    resume: bool = opt("continue from the last checkpoint in the --out folder", False)
    settings: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def parameters(cls) -> list[click.Parameter]:
        made = super().parameters()
        known = {option for each in made for option in each.opts}
        shown = COMMON | cls.defaults | cls.shown_defaults
        settings = settings_options(TrainingArguments, SPELLINGS, shown, group=SETTINGS)
        return made + [each for each in settings if known.isdisjoint(each.opts)]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.out:
            raise CommandError("--out is empty, expected a new or empty folder")
        if self.settings.get("learning_rate") == 0:
            raise CommandError("learning_rate is 0.0, expected a number above 0")
        self.arguments(Path(self.out))

    @property
    def seed(self) -> int:
        return self.settings.get("seed", 42)

    def arguments(self, folder: Path, **more: Any) -> TrainingArguments:
        """Return the TrainingArguments of the command line; `more` are defaults."""
        given = COMMON | self.defaults | more | self.settings
        given.setdefault("per_device_eval_batch_size", given["per_device_train_batch_size"])
        if self.early_stopping:
            steps = given.get("save_steps", 500)
            given |= {"eval_strategy": "steps", "eval_steps": steps, "load_best_model_at_end": True}
        return TrainingArguments(folder, **given)

    def kept(self) -> dict[str, Any]:
        """Return the options with which a run must go on, as JSON has them."""
        options = vars(self) | vars(self.arguments(Path(self.out)))
        return {name: _kept(name, value) for name, value in options.items() if name not in FREE}

    def callbacks(self, held_out: object) -> list[Any]:
        """Return the callbacks that keep the options of a run in its checkpoints, and that end it early."""
        if self.early_stopping and not held_out:
            raise CommandError("--early-stopping needs data to measure the model with: hold some out")
        return [OptionsOfRun(self), *([EarlyStoppingCallback(self.early_stopping)] if self.early_stopping else [])]

    def trainer(self, folder: Path, model: Any, train: Any, held_out: Any, tokenizer: Any, **more: Any) -> Trainer:
        options = {"args": self.arguments(folder), "processing_class": tokenizer, "callbacks": self.callbacks(held_out)}
        return Trainer(model=model, train_dataset=train, eval_dataset=held_out or None, **options, **more)

    def run(self) -> None:
        with self._one_of_processes(), self.chosen_backend():
            folder = from_first(self._folder)
            if folder is not None:
                self.train(folder)

    def train(self, folder: Path) -> None:
        raise NotImplementedError

    @contextmanager
    def _one_of_processes(self) -> Iterator[None]:
        """Return a block that each process runs: the first alone prints, and an error in one ends them all."""
        processes = started_together()
        if processes.count == 1:
            yield
            return
        try:
            with open(os.devnull, "w") as nowhere, redirect_stdout(sys.stdout if processes.is_first else nowhere):
                yield
        except FirstProcessError:  # the first process prints the error, and ends this one
            raise SystemExit(1) from None
        except Exception as error:
            if self.traceback:
                traceback.print_exc()
            where = f"bertcore {type(self).__name__.lower()}: process {processes.index} of {processes.count}"
            print(f"{where}: {printable(' '.join(str(error).split()))}", file=sys.stderr)
            processes.end_all()

    @cached_property
    def checkpoint(self) -> Path | None:
        """The checkpoint that --resume goes on from; None without that option."""
        return checkpoints.latest_checkpoint(self.out) if self.resume else None

    def _folder(self) -> Path | None:
        """Return the folder of --out; None if --resume finds a finished run in it. CommandError for other files."""
        folder = Path(self.out)
        if folder.exists() and not folder.is_dir():
            raise CommandError(f"--out is {folder}, a file, expected a folder")
        remove_abandoned(folder / STORED)
        checkpoints.recover_checkpoints(folder)
        found = checkpoints.checkpoints_in(folder)
        if self.resume:
            return folder if self._goes_on(folder) else None
        left = STORED, LOG_NAME, PLOT_NAME, TENSORBOARD_NAME  # by a run that failed before its first checkpoint
        if folder.is_dir() and any(path.name not in left for path in folder.iterdir()):
            hint = "go on with --resume, or give" if found else "give"
            raise CommandError(f"{folder} holds files: {hint} a new or empty folder")
        return folder

    def _goes_on(self, folder: Path) -> bool:
        """Return whether there is a checkpoint to go on from; if not, the run is finished, which is printed."""
        last = self.checkpoint or folder  # a finished run leaves its state in the folder itself
        if not (last / checkpoints.STATE).is_file():
            raise CommandError(f"{folder} has no checkpoint to go on from")
        state = TrainerState.load_from_json(last / checkpoints.STATE)
        kept = state.callbacks.get(OptionsOfRun.__name__)
        if kept is None:
            raise CommandError(f"{last} has no options to go on with: the command line did not make it")
        OptionsOfRun(self).load_state_dict(kept)
        if self.checkpoint:
            return True
        before, now = read_json_object(folder / checkpoints.ARGUMENTS), self.arguments(folder).to_dict()
        for name in ("max_steps", "num_train_epochs", "max_seconds"):
            if now[name] != before.get(name):
                asked, problem = _option(name, now[name]), "a finished run without checkpoints"
                raise CommandError(f"{asked} cannot go on from {folder}, {problem}: --keep-checkpoints keeps them")
        print(f"finished  no step is left to train: the run had made all {state.global_step:,} before")
        return False

    def example_length(self, name: str, model: Any, most: int, tokenizer: Any = None) -> int:
        """Return the tokens of an example: --max-length, by default the model's longest up to `most`."""
        longest = model.spec.longest_sequence or sys.maxsize
        if tokenizer is not None:
            longest = min(longest, tokenizer.model_max_length)
        if self.max_length and self.max_length > longest:
            raise CommandError(f"--max-length is {self.max_length}, expected at most the {longest} tokens of {name}")
        return self.max_length or min(longest, most)

    def train_and_report(self, trainer: Any, measure: Callable[[Path], dict[str, float]] = lambda folder: {}) -> None:
        """Train, save the model in the --out folder, evaluate it, by `measure` as well, and print the results."""
        folder = Path(self.out)
        try:
            outcome = trainer.train(resume_from_checkpoint=self.checkpoint)
        except KeyboardInterrupt:
            if checkpoints.checkpoints_in(folder):
                print(f"saved     {folder}: the same command with --resume goes on", file=sys.stderr)
            raise
        if isinstance(trainer.model, PeftModel):
            if trainer.is_world_process_zero():
                trainer.model.save_pretrained(folder / ADAPTER)
            trainer.model = trainer.model.merge_and_unload()
        trainer.save_model(folder)
        if not trainer.is_world_process_zero():
            return
        metrics = (trainer.evaluate() if trainer.eval_dataset is not None else {}) | measure(folder)
        done, total, seconds = outcome.metrics["train_steps"], outcome.global_step, outcome.metrics["train_runtime"]
        if done:
            of, in_all = ("", "") if done == total else (f" of {total:,}", " in all")
            print(f"steps     {done:,}{of} in {seconds:,.1f} s, {outcome.metrics['train_tokens']:,} tokens{in_all}")
            print(f"loss      {outcome.training_loss:.4f} on average")
        else:
            print(f"finished  no step is left to train: the run had made all {total:,} before")
        print_metrics("held out", metrics)
        print(f"model     {folder}")
        if not math.isfinite(metrics.get("eval_loss", 0.0)):
            raise CommandError(f"the held-out loss is {metrics['eval_loss']}: the model in {folder} is of no use")
        write_reports(folder, self, trainer, outcome, metrics)
        for checkpoint in [] if self.keep_checkpoints else checkpoints.checkpoints_in(folder):
            checkpoints.remove_checkpoint(checkpoint)


class Adapters(Training):
    """A command that trains a model or its adapters."""

    title = "Adapters"
    needs = ("lora_targets lora",)

    lora: Positive | None = opt(
        "train adapters of this rank, and a new head; they are saved in FOLDER/adapter and merged into the model"
    )
    lora_targets: Words = opt(
        "the linear layers that get an adapter, such as query value (default: all linear layers)", ()
    )

    def with_adapters(self, model: Any, task: str | None = None) -> Any:
        """Return `model` with the adapters of --lora, or `model` itself without that option."""
        if self.lora is None:
            return model
        options = {"r": self.lora, "lora_alpha": self.lora, "task_type": TASK_TYPES.get(task or "")}
        config = LoraConfig(target_modules=list(self.lora_targets) or "all-linear", **options)
        new = dict.fromkeys(name.rpartition(".")[0] for name in model.newly_initialised)
        config.modules_to_save = [module for module in new if module.rpartition(".")[2] not in config.heads]
        return get_peft_model(model, config, seed=self.seed)


def from_first(make: Callable[[], Any]) -> Any:
    """Return in all processes that MPI started the value of `make` in the first."""
    return started_together().from_first(make)


class OptionsOfRun(TrainerCallback):
    """The callback that keeps a command's options in the checkpoints of its run, and compares them later."""

    def __init__(self, command: Training):
        self.command = command

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: Any, **event: Any) -> None:
        if state.global_step and state.global_step != state.max_steps:
            end = "" if state.max_steps is None else f" of {state.max_steps:,}"
            print(f"resumed   after step {state.global_step:,}{end}")

    def state_dict(self) -> dict[str, Any]:
        return self.command.kept()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        options = self.command.kept()
        for name in options | state:
            if state.get(name) != options.get(name):
                now, then = (_option(name, given.get(name)) for given in (options, state))
                problem = f"{now} cannot go on from a checkpoint that was made with {then}"
                raise CommandError(f"{problem}: resume with the options of the first run")


def _kept(name: str, value: Any) -> Any:
    """Return an option as JSON has it; a folder or file that exists as an absolute path."""
    if name in PATHS and value is not None and Path(value).exists():
        return str(Path(value).resolve())
    return [_kept(name, each) for each in value] if isinstance(value, list | tuple) else value


def _option(name: str, value: object) -> str:
    """Return an option as it is given, or that it is not given."""
    flag = next((flag for flag, field in SPELLINGS.items() if field == name), "--" + name.replace("_", "-"))
    if value is None or isinstance(value, bool):
        return flag if value else f"no {flag}"
    return f"{flag} {value}"


def print_metrics(label: str, metrics: Mapping[str, float]) -> None:
    for name, value in metrics.items():
        if not name.endswith(("_runtime", "_per_second")):
            print(f"{label:<10}{name.removeprefix('eval_')} {value:.4f}")


def print_malformed(records: Records) -> None:
    """Print on stderr the records that were left out when the records were last read."""
    for problem in records.problems:
        print(printable(problem), file=sys.stderr)
    if count := records.malformed:
        others = count - len(records.problems)
        more = f" ({others} more than are shown)" if others else ""
        were = "record was" if count == 1 else "records were"
        print(f"malformed {count:,} {were} left out{more}", file=sys.stderr)


def check_once(paths: Sequence[str], why: str) -> None:
    """Check that standard input, which can be read once, is not to be read again."""
    if "-" in paths:
        raise CommandError(f"- is standard input, which can be read once, and {why}")


def stored_examples(args: Any, folder: Path, objective: Any, tokenizer: Any, length: int, facts: dict[str, Any]) -> Any:
    """Return the examples of a corpus, stored in `folder`; a run that goes on takes the stored ones.

    `facts` are further properties that the examples depend on; "corpus", "language" and "pair_column" say what is read.
    """
    corpus, language, pair_column = list(facts["corpus"]), facts.get("language"), facts.get("pair_column")
    facts = {"column": args.column, "language": None, "max_length": length, **facts, "corpus": corpus}
    facts |= {"tokenizer": fingerprint(tokenizer), "seed": args.seed}
    if args.resume and folder.exists():
        examples = StoredExamples(folder)
        changed = [name for name, value in facts.items() if examples.facts.get(name) != value]
        if changed:
            raise CommandError(f"{folder} was made with another {changed[0]}: resume with the options of the first run")
        return examples
    if (folder / "examples.json").exists():
        shutil.rmtree(folder)
    records = args.records(corpus)
    documents = documents_of(records, args.column, language=language, pair_column=pair_column)
    made = objective.examples(documents, tokenizer, max_length=length, seed=args.seed)
    examples = store_examples(folder, made, facts)
    print_malformed(records)
    return examples


def documents_of(
    records: Records, column: str, *, language: str | None = None, pair_column: str | None = None
) -> Iterable[list[str]]:
    """Return lists of texts: sentences of a language, or lines if it is None; or a text and its translation."""
    if pair_column is None:
        return Documents(records, column=column, language=language)
    return (list(texts.values()) for texts in TextColumns((column, pair_column)).examples(records))


def held_out_parts(examples: Any, held_out: float) -> tuple[Any, Any | None]:
    """Return all but the last examples, and the last ones: a share, at most 1,000."""
    count = min(MOST_HELD_OUT, max(1, round(held_out * len(examples)))) if held_out else 0
    if len(examples) <= count:
        raise CommandError(f"examples in the corpus: {len(examples)}, too few to train on")
    print(f"corpus    {len(examples):,} examples, {count:,} of them held out")
    first = Subset(examples, range(len(examples) - count))
    return first, Subset(examples, range(len(examples) - count, len(examples))) if count else None


def fingerprint(tokenizer: Any) -> str:
    """Return a digest of a tokenizer's vocabulary."""
    tokens = "\n".join(str(token) for token in tokenizer.convert_ids_to_tokens(range(len(tokenizer))))
    return hashlib.sha256(tokens.encode()).hexdigest()[:16]
