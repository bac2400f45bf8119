"""Fine-tune a checkpoint on labelled data.

DATA is files or folders of JSON lines (.jsonl, .json) or tables (.csv, .tsv), each also with .gz. What is learnt
depends on --task:

  sequence  the label of a text (--text), or of two (--text-pair): classes, numbers, or lists of classes
  token     the tag of each word: columns of words and tags, or lines (.txt) of a word and its tag, as CoNLL has them
  qa        where a text answers a question: columns question, context and answers, as SQuAD has them
  similarity  how alike two texts (--text, --text-pair) are, a number (--label), from their embeddings (CoSENT)
  pair      texts that belong together: of a batch's second texts each first one is to find its own

The last two give a sentence encoder. Labels are found in the data. A tenth of it is held out to measure the model, or
--eval does that.

Ctrl-C ends a run when its checkpoint is written; the same command with --resume goes on to the same result."""

import argparse
import dataclasses
import warnings
from pathlib import Path
from typing import Any

from bertcore.cli.common import MODEL_HELP, CommandError, chosen_backend, model_folder, share
from bertcore.cli.lora import add_lora_arguments, with_adapters
from bertcore.cli.training import (
    add_training_arguments,
    callbacks_of,
    check_once,
    example_length,
    from_first,
    one_of_processes,
    out_folder,
    records_of,
    tell_malformed,
    train_and_tell,
    training_arguments,
)

EMBEDDING_TASKS = ("similarity", "pair")
HELP = "fine-tune a model on labelled data"
EXAMPLES = """\
examples:
  bertcore finetune reviews.csv --model bert-base-uncased/ --task sequence --text review --out my-classifier/
  bertcore finetune train.jsonl --eval test.jsonl --model demo --task sequence --label score --out my-regressor/
  bertcore finetune train.txt --model roberta-base/ --task token --epochs 5 --out my-tagger/
  bertcore finetune pairs.csv --model demo --task pair --text question --text-pair answer --out my-encoder/
  bertcore finetune squad.jsonl --model bert-base-uncased/ --task qa --max-seconds 3600 --out my-reader/"""

RATE = 5e-5
WORDS, TAGS = "tokens", "tags"  # names of columns
LONGEST = 512  # tokens, where the model takes more


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("data", metavar="DATA", nargs="+", help="files or folders of labelled data")
    parser.add_argument("--model", metavar="MODEL", required=True, help=MODEL_HELP)
    parser.add_argument(
        "--task", choices=("sequence", "token", "qa", *EMBEDDING_TASKS), required=True, help="see above"
    )
    add_training_arguments(parser, lr="5e-5", epochs=3, batch=16, length=f"the model's, at most {LONGEST}")
    add_lora_arguments(parser)
    add_label_kind_argument(add_data_arguments(parser))


def add_data_arguments(parser: argparse.ArgumentParser, *, held_out: float = 0.1) -> Any:
    """Declare what is about labelled data, of which `held_out` is a share; returns the group of the options."""
    data = parser.add_argument_group("data")
    data.add_argument("--eval", metavar="DATA", nargs="+", help="to measure the model with (default: a part of DATA)")
    data.add_argument(
        "--held-out",
        type=share,
        default=held_out,
        metavar="SHARE",
        help=f"of DATA, without --eval (default: {held_out})",
    )
    data.add_argument("--text", metavar="NAME", help="column of texts (default: text; of words: tokens)")
    data.add_argument("--text-pair", metavar="NAME", help="column of second texts")
    data.add_argument("--label", metavar="NAME", help="column of labels (default: label; of words: tags)")
    return data


def add_label_kind_argument(data: Any) -> None:
    """Declare --label-kind."""
    data.add_argument(
        "--label-kind", choices=["classes", "numbers"], help="what integers are (default: classes, unless many differ)"
    )


def run(args: argparse.Namespace) -> None:
    """Run the command."""
    with one_of_processes(args), chosen_backend(args):
        folder = from_first(lambda: out_folder(args))
        check_once([*args.data, *(args.eval or [])], "labels are looked up in it first: give files")
        finetune(args, folder)


def finetune(args: argparse.Namespace, folder: Path) -> None:
    """Train, and tell what came of it."""
    from bertcore.training import Trainer

    _check_label_kind(args)
    rows, held_out = labelled_rows(args)
    if args.task in EMBEDDING_TASKS:
        from bertcore.cli.finetune_embeddings import finetune_embeddings

        finetune_embeddings(args, folder, rows, held_out)
        return
    columns = columns_of(args, [*rows, *held_out])
    if len(getattr(columns, "labels", ())) == 1 and not getattr(columns, "is_multiple", False):
        raise CommandError(f"{', '.join(args.data)} has the label {columns.labels[0]} alone, expected two or more")
    model, tokenizer = _model_and_tokenizer(args, columns)
    model = with_adapters(model, args, args.task)
    length = example_length(args, args.model, model, LONGEST, tokenizer)
    if args.task == "qa":
        columns = dataclasses.replace(columns, stride=min(columns.stride, length // 4))
    train, measure = (list(columns.examples(some, tokenizer, max_length=length)) for some in (rows, held_out))
    print(f"data      {len(train):,} examples, {len(measure):,} held out{told_labels(columns)}")
    tell_longest(args, train, length)
    trainer = Trainer(
        model=model,
        args=training_arguments(args, folder, RATE),
        train_dataset=train,
        eval_dataset=measure or None,
        processing_class=tokenizer,
        compute_metrics=metric_of(columns, held_out, measure),
        callbacks=callbacks_of(args, measure),
    )
    train_and_tell(trainer, args)


def labelled_rows(args: argparse.Namespace) -> tuple[list[Any], list[Any]]:
    """The records to learn from, and those held out: of --eval, or a part of DATA."""
    import numpy as np

    rows, held_out = _rows(args.data, args), _rows(args.eval, args) if args.eval else []
    if not args.eval:
        order = np.random.default_rng(args.seed).permutation(len(rows))
        count = round(args.held_out * len(rows))
        held_out, rows = [rows[index] for index in order[:count]], [rows[index] for index in order[count:]]
    if not rows:
        left = f" beside the {len(held_out)} that are held out" if held_out and not args.eval else ""
        raise CommandError(f"{', '.join(args.data)} holds no records to learn from{left}")
    return rows, held_out


def _rows(paths: list[str], args: argparse.Namespace) -> list[Any]:
    """The records of files: all of them, with lines of words put together to texts."""
    from bertcore.training.data import LabelledWords

    records = records_of(paths, args)
    columns = LabelledWords(args.text or WORDS, args.label or TAGS)
    rows = list(columns.whole(records) if args.task == "token" else records)
    tell_malformed(records)
    return rows


def _check_label_kind(args: argparse.Namespace) -> None:
    if args.label_kind and args.task != "sequence":
        raise CommandError("--label-kind is for --task sequence")


def columns_of(args: argparse.Namespace, rows: list[Any]) -> Any:
    """What the columns of the data are, and which labels there are."""
    from bertcore.training.data import LabelledTexts, LabelledWords, Questions

    if args.task == "sequence":
        return LabelledTexts.found_in(
            rows, args.text or "text", args.text_pair, args.label or "label", kind=args.label_kind
        )
    _check_label_kind(args)
    if args.text_pair or (args.task == "qa" and (args.text or args.label)):
        raise CommandError(f"--task {args.task} has no use for --text-pair{'' if args.task == 'token' else ', --text'}")
    if args.task == "token":
        return LabelledWords.found_in(rows, args.text or WORDS, args.label or TAGS)
    return Questions()


def _model_and_tokenizer(args: argparse.Namespace, columns: Any) -> tuple[Any, Any]:
    """The model with the head of the task, new unless it has that of these labels, and its tokenizer."""
    import bertcore
    from bertcore.models.model import NewlyInitialisedWarning
    from bertcore.tasks.sentence_encoder.settings import read_settings
    from bertcore.training.data import LabelledTexts, LabelledWords, Questions

    kind, source = getattr(bertcore, columns.model_class), read_settings(model_folder(args.model)).model_folder
    options: dict[str, Any] = {}
    if not isinstance(columns, Questions):
        options["num_labels"] = len(columns.labels) or 1
    if isinstance(columns, LabelledTexts):
        options["problem_type"] = columns.problem_type
    with warnings.catch_warnings():  # a new head is what is asked for
        warnings.simplefilter("ignore", NewlyInitialisedWarning)
        model = kind.from_pretrained(source, **options)
    if not isinstance(columns, Questions) and columns.labels:
        names = dict(enumerate(columns.labels))
        model.config["id2label"] = {str(number): name for number, name in names.items()}
        model.config["label2id"] = {name: number for number, name in names.items()}
    tokenizer = bertcore.AutoTokenizer.from_pretrained(source)
    if isinstance(columns, LabelledWords) and type(tokenizer._backend.model).__name__ == "BPE":
        tokenizer = bertcore.AutoTokenizer.from_pretrained(source, add_prefix_space=True)  # words come one by one
    if isinstance(columns, Questions):
        tokenizer.padding_side = "right"  # answers stand at columns counted from the left
    return model, tokenizer


def tell_longest(args: argparse.Namespace, examples: list[Any], length: int) -> None:
    """Print how many examples have as many tokens as are read, if any: what a text has beyond them is cut.

    Questions are asked of all of a text, in windows.
    """
    full = sum(len(example["input_ids"]) >= length for example in examples)
    if full and args.task != "qa":
        print(f"length    {full:,} have {length} tokens, where longer texts are cut")


def told_labels(columns: Any) -> str:
    """The labels in words, to be printed."""
    labels = getattr(columns, "labels", None)
    if labels is None:
        return ""
    names = f"{len(labels)} labels ({', '.join(labels[:8])}{', ...' if len(labels) > 8 else ''})"
    return f"; {names if labels else 'numbers to predict'}"


def metric_of(columns: Any, rows: list[Any], examples: list[Any]) -> Any:
    """The metrics that the task is measured by."""
    import functools

    from bertcore.arguments import required
    from bertcore.training import metrics
    from bertcore.training.data import LabelledWords, Questions, answer_metrics

    if isinstance(columns, Questions):
        return answer_metrics(rows, examples, columns)
    if isinstance(columns, LabelledWords):
        is_scheme = all(tag == "O" or tag[:2] in ("B-", "I-") for tag in columns.labels)
        return metrics.span_f1(columns.labels) if is_scheme else metrics.accuracy
    required("sklearn.metrics" if columns.labels else "scipy.stats")  # before the work, and not after it
    if not columns.labels:
        return metrics.combined(metrics.pearson, metrics.spearman)
    average = "micro" if columns.is_multiple else "macro"
    return metrics.combined(metrics.accuracy, functools.partial(metrics.f1, average=average))
