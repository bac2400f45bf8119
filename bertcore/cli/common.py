"""What several commands share."""

import argparse
import math
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertcore.arguments import DTYPES
from bertcore.kernels import get_backend, resolve_backend, use_backend

if TYPE_CHECKING:
    from bertcore.checkpoint.hub import Wanted

MODEL_HELP = (
    "folder of a model (config.json, *.safetensors, a tokenizer), its id on the Hugging Face hub, or the word demo for "
    "all-MiniLM-L6-v2"
)

TRUNCATIONS = ("warn", "error", "chunk", "cut")


class CommandError(RuntimeError):
    """A command cannot do what it was asked; the message is for the user."""


def model_folder(name: str, wanted: "Wanted" = "sentence_encoder") -> Path:
    """The folder that the argument MODEL names, fetched from the hub for an id; CommandError if there is none.

    `wanted` is what is fetched (checkpoint.resolve): weights, tokenizer and what sentence encoders have, or "tokenizer"
    for all but the weights.
    """
    if name == "demo":
        from bertcore.demo_model import demo_model_folder

        return demo_model_folder()
    from bertcore import checkpoint

    folder = checkpoint.resolve(name, wanted)
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise CommandError(f"{name} {what}, expected the folder of a model, its id on the hub, or demo")
    return folder


def chosen_backend(args: argparse.Namespace) -> AbstractContextManager[None]:
    """A block in which the backend of --backend is in force; BackendUnavailable if that cannot run here."""
    name = args.backend or get_backend()
    # The models get their input as lists in host memory: for them, auto is decided already.
    return use_backend(resolve_backend(name, on_gpu=False))


def add_dtype_argument(parser: argparse.ArgumentParser) -> None:
    """Declare --dtype for a command that loads a model."""
    parser.add_argument(
        "--dtype",
        choices=DTYPES,
        help="of the weights; bfloat16 and int8 are smaller and faster, and less exact (`bertcore precision` tells by "
        "how much); default: that of a checkpoint that `bertcore quantize` wrote, else float32",
    )


def add_reading_arguments(parser: argparse.ArgumentParser, *, length: str, truncation: str = "warn") -> None:
    """Declare what commands take that bring texts to a model: --dtype, `length` (the name of that option), and
    --truncation and --batch-tokens, which `reading_options` reads."""
    add_dtype_argument(parser)
    parser.add_argument(
        length, type=positive, metavar="N", help="tokens of a text, or of a window (default: as published)"
    )
    parser.add_argument(
        "--truncation",
        choices=TRUNCATIONS,
        default=truncation,
        help="texts longer than the model takes: cut and told, refused, read whole in overlapping windows, or cut in "
        f"silence (default: {truncation})",
    )
    parser.add_argument("--batch-tokens", type=positive, metavar="N", help="tokens computed at once; bounds the memory")


def reading_options(args: argparse.Namespace) -> dict[str, Any]:
    """What the tasks call --truncation, and --batch-tokens where it is given."""
    batches = {"batch_tokens": args.batch_tokens} if args.batch_tokens else {}
    return {"truncation": True if args.truncation == "cut" else args.truncation, **batches}


def positive(text: str) -> int:
    """An argparse type: an integer from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)


def number(text: str) -> float:
    """An argparse type: a finite number from 0 on."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return value


def positive_number(text: str) -> float:
    """An argparse type: a finite number above 0."""
    if number(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number(text)


def share(text: str) -> float:
    """An argparse type: a number from 0 to below 1."""
    if number(text) >= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share: a number from 0 to below 1")
    return number(text)


def whole(text: str) -> int:
    """An argparse type: an integer from 0 to 2**32 - 1."""
    if not text.isdecimal() or int(text) >= 1 << 32:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer from 0 to 2**32 - 1")
    return int(text)
