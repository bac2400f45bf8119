"""Training adapters of low rank instead of a model's own weights, from the command line."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from bertcore.cli.common import CommandError, positive

ADAPTER = "adapter"  # in the --out folder: what was trained; the model beside it has that in its weights
TASK_TYPES = {"sequence": "SEQ_CLS", "token": "TOKEN_CLS", "qa": "QUESTION_ANS"}


def add_lora_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    group = parser.add_argument_group("adapters")
    group.add_argument(
        "--lora",
        type=positive,
        metavar="RANK",
        help=f"train adapters of this rank, and a new head; FOLDER/{ADAPTER} has them, the model is merged with them",
    )
    group.add_argument(
        "--lora-targets", nargs="+", metavar="NAME", help="the maps that get one: query value (default: all of layers)"
    )


def with_adapters(model: Any, args: argparse.Namespace, task: str | None = None) -> Any:
    """`model` with the adapters of --lora, or as it is without that."""
    if args.lora is None:
        if args.lora_targets:
            raise CommandError("--lora-targets is about adapters: give their rank by --lora")
        return model
    from bertcore.lora import LoraConfig, get_peft_model

    options = {"r": args.lora, "lora_alpha": args.lora, "task_type": TASK_TYPES.get(task)}
    config = LoraConfig(target_modules=args.lora_targets or "all-linear", **options)
    new = dict.fromkeys(name.rpartition(".")[0] for name in model.newly_initialised)
    config.modules_to_save = [module for module in new if module.rpartition(".")[2] not in config.heads]
    return get_peft_model(model, config, seed=args.seed)


def merged(model: Any, folder: Path, *, is_first: bool) -> Any:
    """The model with its adapters in its weights; the first process writes these into `folder` before."""
    from bertcore.lora import PeftModel

    if not isinstance(model, PeftModel):
        return model
    if is_first:
        model.save_pretrained(folder / ADAPTER)
    return model.merge_and_unload()
