"""Compile every kernel that a model needs ahead of its first use, into the folder of compiled kernels.

For container images: set BERTCORE_CACHE_DIR to a folder of the image, run this when the image is built and keep the
variable set in it. The folder may be read-only when the container runs, and belong to another user. Compiled kernels
are for one kind of CPU: on another they are compiled again, in each process where the folder is read-only.

Without MODEL a small BERT with random weights is run: the same kernels serve models of all sizes. Those with relative
positions (DeBERTa, XLNet) have some of their own: give such a MODEL."""

import argparse
import time
import warnings
from pathlib import Path
from typing import Any

from bertcore.cli.common import MODEL_HELP, CommandError, add_dtype_argument, chosen_backend, model_folder
from bertcore.kernels import get_backend

HELP = "compile a model's kernels ahead"
EXAMPLES = """\
examples:
  bertcore warmup
  bertcore warmup all-MiniLM-L6-v2/ --dtype int8
  BERTCORE_CACHE_DIR=/opt/kernels bertcore warmup bert-base-uncased/ --gradients    (in a Dockerfile's RUN)"""

LONGEST = 512  # tokens: kernels that longer sequences need are the same
RANDOM_BERT = {
    "model_type": "bert",
    "vocab_size": 1000,
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 512,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("model", metavar="MODEL", nargs="?", help=MODEL_HELP)
    add_dtype_argument(parser)
    parser.add_argument(
        "--gradients", action="store_true", help="the kernels of training, too; for a model with a head and a loss"
    )


def run(args: argparse.Namespace) -> None:
    """Run the command."""
    with chosen_backend(args):
        if get_backend() != "numba":
            raise CommandError(f"only the backend numba keeps compiled kernels, and {get_backend()} is in force")
        from bertcore.kernels._numba.compile.cache import cache_folder, compilations

        start = time.perf_counter()
        with compilations() as compiled:
            encoder, with_head = _models(args.model, args.dtype)
            if args.gradients and with_head is None:
                raise CommandError(f"{args.model} has no head with a loss, so there are no gradients")
            warm_up(encoder)
            if with_head is not None:
                warm_up(with_head, gradients=args.gradients)
    seconds = time.perf_counter() - start
    print(f"compiled  {len(compiled)} kernels in {seconds:.1f} s{'' if compiled else ' (they were there already)'}")
    print(f"cache     {cache_folder()}")


def _models(name: str | None, dtype: str | None) -> tuple[Any, Any]:
    """The model with its pooler, and with its head if it has one, else None."""
    from bertcore import AutoModel, AutoModelForMaskedLM, checkpoint
    from bertcore.models.architectures import class_for

    if name is None:
        return tuple(
            kind.from_config(RANDOM_BERT, dtype=dtype or "float32") for kind in (AutoModel, AutoModelForMaskedLM)
        )
    from bertcore.models.model import NewlyInitialisedWarning
    from bertcore.tasks.sentence_encoder.settings import read_settings

    folder: Path = read_settings(model_folder(name)).model_folder
    with checkpoint.naming_config(folder):
        kind = class_for(checkpoint.read_config(folder))
    with warnings.catch_warnings():  # what the checkpoint lacks is compiled for all the same
        warnings.simplefilter("ignore", NewlyInitialisedWarning)
        encoder = AutoModel.from_pretrained(folder, dtype=dtype)
        return encoder, None if kind is AutoModel else _with_head(kind, folder, encoder)


def _with_head(kind: type, folder: Path, encoder: Any) -> Any:
    """The model with its own head where that takes a label for each token; with a classifier of tokens in place of
    other heads, or of sequences where the family has none of tokens (Transformer-XL): they run the same kernels."""
    from bertcore import (
        AutoModelForCausalLM,
        AutoModelForMaskedLM,
        AutoModelForSequenceClassification,
        AutoModelForTokenClassification,
    )
    from bertcore.models.with_heads import head_specs

    if kind in (AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForTokenClassification):
        return kind.from_pretrained(folder, dtype=encoder.dtype)
    if "token_classification" in head_specs(encoder.config):
        return AutoModelForTokenClassification.from_config(encoder.config, dtype=encoder.dtype)
    classes = {"num_labels": 2, "problem_type": "single_label_classification"}
    return AutoModelForSequenceClassification.from_config(encoder.config, dtype=encoder.dtype, **classes)


def warm_up(model: Any, *, gradients: bool = False) -> None:
    """Run `model` on batches that reach every kernel of its forward pass, and of its backward pass if asked for."""
    import numpy as np

    from bertcore import AutoModelForSequenceClassification, value_and_grad

    longest = min(model.spec.longest_sequence or LONGEST, LONGEST)
    ragged = np.arange(longest) < np.array([[longest], [1], [longest // 2]])
    model([[1]])
    model(np.ones((3, longest), np.int64), attention_mask=ragged.astype(np.int64))
    model(np.ones((2, 7), np.int64), output_hidden_states=True, output_attentions=True)
    model.encode_packed([np.ones(longest, np.int32), np.ones(3, np.int32)])
    if gradients:
        labels = np.where(ragged, 1, -100)
        if isinstance(model, AutoModelForSequenceClassification):
            labels = labels[:, 0]
        value_and_grad(model)(np.ones(ragged.shape, np.int64), attention_mask=ragged.astype(np.int64), labels=labels)
