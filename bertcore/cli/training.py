"""What the commands that train share: their options, the data's problems, the run and what it tells."""

from __future__ import annotations

import argparse
import math
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from bertcore.cli.common import CommandError, number, positive, positive_number, share, whole
from bertcore.cli.lora import merged
from bertcore.cli.tables import printable

OPTIMIZERS = "adamw", "stable_adamw", "lamb", "muon"
STORED = "examples"  # in the --out folder: the corpus as tokens; with the log, what a run without checkpoints left


def add_training_arguments(parser: argparse.ArgumentParser, *, lr: str, epochs: int, batch: int, length: str) -> None:
    """Declare the options of a run; `lr` and `length` say the defaults in words."""
    parser.add_argument("--out", metavar="FOLDER", required=True, help="where the model goes: a new or empty folder")
    until = parser.add_argument_group("how long")
    until.add_argument(
        "--epochs", type=positive_number, default=epochs, metavar="N", help=f"passes over the data (default: {epochs})"
    )
    until.add_argument("--max-steps", type=positive, metavar="N", help="end after N steps, whatever the epochs")
    until.add_argument("--max-seconds", type=positive_number, metavar="S", help="end after S seconds of training")
    until.add_argument(
        "--early-stopping",
        type=positive,
        metavar="N",
        help="measure the loss at each checkpoint, end when N in a row were no better, and keep the best model",
    )
    how = parser.add_argument_group("how")
    how.add_argument("--lr", type=positive_number, metavar="RATE", help=f"learning rate (default: {lr})")
    how.add_argument(
        "--batch",
        type=positive,
        default=batch,
        metavar="N",
        help=f"examples a step, of each process (default: {batch})",
    )
    how.add_argument("--max-length", type=positive, metavar="N", help=f"tokens of an example (default: {length})")
    how.add_argument("--warmup", type=share, default=0.06, metavar="SHARE", help="of the run (default: 0.06)")
    how.add_argument("--weight-decay", type=number, default=0.01, metavar="X", help="default: 0.01")
    how.add_argument("--optim", choices=OPTIMIZERS, default=OPTIMIZERS[0], help=f"default: {OPTIMIZERS[0]}")
    how.add_argument("--bf16", action="store_true", help="products in bfloat16 (faster on CPUs with AVX512_BF16 alone)")
    how.add_argument("--seed", type=whole, default=42, metavar="N", help="of all that is random (default: 42)")
    keeping = parser.add_argument_group("what is kept")
    keeping.add_argument("--resume", action="store_true", help="go on from the last checkpoint in the --out folder")
    keeping.add_argument(
        "--save-steps", type=positive, default=500, metavar="N", help="steps between checkpoints (default: 500)"
    )
    keeping.add_argument(
        "--log-steps", type=positive, default=50, metavar="N", help="steps between lines of the log (default: 50)"
    )
    parser.add_argument(
        "--skip-malformed", action="store_true", help="leave out lines that cannot be read, and tell which they were"
    )


@contextmanager
def one_of_processes(args: argparse.Namespace) -> Iterator[None]:
    """A block that each process started by MPI runs: the first alone prints, and an error in one ends them all."""
    from bertcore.training.processes import FirstFailed, started_together

    processes = started_together()
    if processes.count == 1:
        yield
        return
    try:
        with open(os.devnull, "w") as nowhere, redirect_stdout(sys.stdout if processes.is_first else nowhere):
            yield
    except FirstFailed:  # the first tells what it was, and ends us
        raise SystemExit(1) from None
    except Exception as error:
        if args.traceback:
            traceback.print_exc()
        where = f"bertcore {args.command}: process {processes.index} of {processes.count}"
        print(f"{where}: {printable(' '.join(str(error).split()))}", file=sys.stderr)
        processes.end_all()


def from_first(make: Callable[[], Any]) -> Any:
    """What `make` returns in the first of the processes that MPI started, in all of them."""
    from bertcore.training.processes import started_together

    return started_together().from_first(make)


def out_folder(args: argparse.Namespace) -> Path:
    """The folder of --out; CommandError if it holds something that is not to be gone on with, or nothing that is."""
    from bertcore.checkpoint.files import sweep
    from bertcore.cli.options_of_run import check_options
    from bertcore.training.callbacks import LOG_NAME, PLOT_NAME, TENSORBOARD_NAME
    from bertcore.training.checkpoints import checkpoints_in, sweep_checkpoints

    if not args.out:
        raise CommandError("--out is empty, expected a new or empty folder")
    folder = Path(args.out)
    if folder.exists() and not folder.is_dir():
        raise CommandError(f"{folder} is not a folder")
    sweep(folder / STORED)
    sweep_checkpoints(folder)
    has_run = bool(checkpoints_in(folder))
    if args.resume and not has_run:
        raise CommandError(f"{folder} has no checkpoint to go on from")
    if args.resume:
        check_options(args, checkpoints_in(folder)[-1])
    left = STORED, LOG_NAME, PLOT_NAME, TENSORBOARD_NAME  # by a run that failed before its first checkpoint
    if not args.resume and folder.is_dir() and any(path.name not in left for path in folder.iterdir()):
        hint = "go on with --resume, or give" if has_run else "give"
        raise CommandError(f"{folder} holds files: {hint} a new or empty folder")
    return folder


def example_length(args: argparse.Namespace, name: str, model: Any, most: int, tokenizer: Any = None) -> int:
    """The tokens of an example: --max-length, by default the model's longest up to `most`.

    CommandError, with the model's `name`, for more than the model, or the tokenizer's files, state.
    """
    longest = model.spec.longest_sequence or sys.maxsize
    if tokenizer is not None:
        longest = min(longest, tokenizer.model_max_length)
    if args.max_length and args.max_length > longest:
        raise CommandError(f"--max-length is {args.max_length}, and {name} takes {longest} tokens")
    return args.max_length or min(longest, most)


def records_of(paths: Sequence[str], args: argparse.Namespace) -> Any:
    """The records of files, folders or stdin."""
    from bertcore.training.data import Records

    return Records(paths, on_malformed="skip" if args.skip_malformed else "error")


def tell_malformed(records: Any) -> None:
    """Tell on stderr what was left out of the records when they were last read."""
    if not records.malformed:
        return
    for problem in records.problems:
        print(printable(problem), file=sys.stderr)
    others = records.malformed - len(records.problems)
    more = f" ({others} more than are shown)" if others else ""
    were = "record was" if records.malformed == 1 else "records were"
    print(f"malformed {records.malformed:,} {were} left out{more}", file=sys.stderr)


def check_once(paths: Sequence[str], why: str) -> None:
    """CommandError if standard input, which can be read once, is to be read again."""
    if "-" in paths:
        raise CommandError(f"- is standard input, which can be read once, and {why}")


def training_arguments(args: argparse.Namespace, folder: Path, default_lr: float, **more: Any) -> Any:
    """The TrainingArguments of a command line."""
    from bertcore.training import TrainingArguments

    if args.early_stopping:
        more |= {"eval_strategy": "steps", "eval_steps": args.save_steps, "load_best_model_at_end": True}
    return TrainingArguments(
        output_dir=folder,
        learning_rate=args.lr or default_lr,
        num_train_epochs=args.epochs,
        max_steps=args.max_steps or -1,
        max_seconds=args.max_seconds,
        per_device_train_batch_size=args.batch,
        per_device_eval_batch_size=args.batch,
        warmup_steps=args.warmup,
        weight_decay=args.weight_decay,
        optim=args.optim,
        bf16=args.bf16,
        seed=args.seed,
        save_steps=args.save_steps,
        save_total_limit=2,
        logging_steps=args.log_steps,
        **more,
    )


def callbacks_of(args: argparse.Namespace, held_out: Any) -> list[Any]:
    """What keeps the options of a run in its checkpoints, and ends it early.

    CommandError for --early-stopping without data to measure the model with.
    """
    from bertcore.cli.options_of_run import OptionsOfRun
    from bertcore.training import EarlyStoppingCallback

    if args.early_stopping and not held_out:
        raise CommandError("--early-stopping needs data to measure the model with: hold some out")
    return [OptionsOfRun(args), *([EarlyStoppingCallback(args.early_stopping)] if args.early_stopping else [])]


def train_and_tell(
    trainer: Any, args: argparse.Namespace, measure: Callable[[Path], dict[str, float]] = lambda folder: {}
) -> None:
    """Train, save the model in the --out folder, evaluate it, and print what came of it.

    `measure` gives further figures of the model in a folder. CommandError if the last step left a model whose loss on
    held-out data is inf or NaN.
    """
    from bertcore.training.checkpoints import checkpoints_in

    folder = Path(args.out)
    try:
        outcome = trainer.train(resume_from_checkpoint=args.resume)
    except KeyboardInterrupt:
        if checkpoints_in(folder):
            print(f"saved     {folder}: the same command with --resume goes on", file=sys.stderr)
        raise
    trainer.model = merged(trainer.model, folder, is_first=trainer.is_world_process_zero())
    trainer.save_model(folder)
    if not trainer.is_world_process_zero():
        return
    metrics = (trainer.evaluate() if trainer.eval_dataset is not None else {}) | measure(folder)
    seconds, tokens = outcome.metrics["train_runtime"], outcome.metrics["train_tokens"]
    print(f"steps     {outcome.global_step:,} in {seconds:,.1f} s, {tokens:,} tokens")
    print(f"loss      {outcome.training_loss:.4f} on average")
    for name, value in metrics.items():
        if not name.endswith(("_runtime", "_per_second")):
            print(f"held out  {name.removeprefix('eval_')} {value:.4f}")
    print(f"model     {folder}")
    if not math.isfinite(metrics.get("eval_loss", 0.0)):
        raise CommandError(f"the held-out loss is {metrics['eval_loss']}: the model in {folder} is of no use")
