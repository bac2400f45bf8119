"""Teach a smaller model to do as a larger one does.

The teacher is a checkpoint of the --task: a classifier of texts (sequence) or of words (token) on labelled DATA, as
`bertcore finetune` takes it; or a masked language model (mlm) on files or folders of texts, as `bertcore pretrain`
takes them. The student is the teacher with fewer --layers; or --student, a preset or a config file (.json), which
begins with layers of the teacher (--take), or a checkpoint. It has the teacher's tokenizer.

The student learns from DATA and from --terms, each NAME or NAME=WEIGHT:

  soft       the teacher's probabilities at --temperature (Hinton 2015)
  cosine     the direction of the last hidden states (DistilBERT)
  states     hidden states of all layers, through a learned map (TinyBERT)
  scores     scores of attention in all layers (TinyBERT)
  attention  probabilities of the last layer's attention (MiniLM)
  relations  relations of its queries, keys and values (MiniLMv2)

Ctrl-C ends a run when its checkpoint is written; the same command with --resume goes on to the same result."""

import argparse
import dataclasses
import warnings
from pathlib import Path
from typing import Any

from bertcore.cli.common import (
    MODEL_HELP,
    CommandError,
    chosen_backend,
    model_folder,
    number,
    positive,
    positive_number,
)
from bertcore.cli.finetune import (
    add_data_arguments,
    add_label_kind_argument,
    columns_of,
    labelled_rows,
    metric_of,
    tell_longest,
    told_labels,
)
from bertcore.cli.pretrain import kind_of, with_ids_of
from bertcore.cli.training import (
    STORED,
    add_training_arguments,
    callbacks_of,
    check_once,
    example_length,
    from_first,
    one_of_processes,
    out_folder,
    train_and_tell,
    training_arguments,
)
from bertcore.cli.training_examples import fingerprint, held_out_parts, stored_examples

HELP = "teach a smaller model to do as a larger one"
EXAMPLES = """\
examples:
  bertcore distill reviews.csv --teacher my-classifier/ --layers 3 --task sequence --out my-fast-classifier/
  bertcore distill reviews.csv --teacher my-classifier/ --student tiny.json --take none --task sequence --terms soft \\
    states=0.1 --out tiny-classifier/
  bertcore distill corpus/ --teacher bert-base-uncased/ --student distilbert-base-uncased --task mlm --terms soft=5 \\
    cosine --label-weight 2 --out my-distilbert/"""

RATE = 5e-5
LONGEST = {"sequence": 512, "token": 512, "mlm": 128}  # tokens, where the models take more
MODEL_CLASSES = {
    "sequence": "AutoModelForSequenceClassification",
    "token": "AutoModelForTokenClassification",
    "mlm": "AutoModelForMaskedLM",
}
TERMS = {
    "soft": "SoftTargets",
    "cosine": "HiddenCosine",
    "states": "HiddenStates",
    "scores": "AttentionScores",
    "attention": "AttentionDistributions",
    "relations": "Relations",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("data", metavar="DATA", nargs="+", help="files or folders of labelled data, or of texts")
    parser.add_argument("--teacher", metavar="MODEL", required=True, help=MODEL_HELP)
    student = parser.add_mutually_exclusive_group(required=True)
    student.add_argument("--student", metavar="MODEL", help="see above")
    student.add_argument("--layers", type=positive, metavar="N", help="the student is the teacher with N layers")
    parser.add_argument("--task", choices=MODEL_CLASSES, required=True, help="see above")
    parser.add_argument(
        "--take",
        type=layer_numbers,
        metavar="LAYERS",
        help="the teacher's layers that a new student begins with, from 0 on (0,2,4; default: evenly spaced), or none",
    )
    parser.add_argument(
        "--terms", type=term, nargs="+", default=[("soft", 1.0)], metavar="TERM", help="see above (default: soft)"
    )
    parser.add_argument("--temperature", type=positive_number, metavar="T", help="of soft (default: 2)")
    parser.add_argument("--labelled-only", action="store_true", help="soft, in mlm, of masked tokens alone, not of all")
    parser.add_argument(
        "--label-weight", type=number, default=1.0, metavar="X", help="of what DATA itself teaches (default: 1)"
    )
    add_training_arguments(parser, lr="5e-5", epochs=3, batch=16, length="the models', at most 512; of mlm 128")
    data = add_data_arguments(parser)
    add_label_kind_argument(data)
    data.add_argument(
        "--column", default="text", metavar="NAME", help="of mlm's texts in JSON or tables (default: text)"
    )


def term(text: str) -> tuple[str, float]:
    """An argparse type: a term, and its weight."""
    name, _, weight = text.partition("=")
    if name not in TERMS:
        raise argparse.ArgumentTypeError(f"{name!r} is no term, known are {', '.join(TERMS)}")
    return name, number(weight) if weight else 1.0


def layer_numbers(text: str) -> list[int] | str:
    """An argparse type: numbers with commas between them, or "none"."""
    parts = text.split(",")
    if text != "none" and not all(part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of layers such as 0,2,4, nor none")
    return text if text == "none" else [int(part) for part in parts]


def run(args: argparse.Namespace) -> None:
    """Run the command."""
    with one_of_processes(args), chosen_backend(args):
        _check_options(args)
        folder = from_first(lambda: out_folder(args))
        check_once([*args.data, *(args.eval or [])], "it is read more than once: give files")
        distill(args, folder)


def _check_options(args: argparse.Namespace) -> None:
    """CommandError for terms that are given twice, and options that nothing asks for."""
    if args.task == "mlm" and (args.eval or args.text or args.text_pair or args.label or args.label_kind):
        raise CommandError("--eval, --text, --text-pair, --label and --label-kind are not for --task mlm: no labels")
    names = [name for name, _ in args.terms]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise CommandError(f"--terms has {twice} twice")
    if args.temperature and "soft" not in names:
        raise CommandError("--temperature is of the term soft, which --terms does not have")
    if args.labelled_only and ("soft" not in names or args.task != "mlm"):
        raise CommandError("--labelled-only is of the term soft in --task mlm")


def distill(args: argparse.Namespace, folder: Path) -> None:
    """Train, and tell what came of it."""
    from bertcore.training import Trainer

    teacher, tokenizer = _teacher(args)
    student = _student(args, teacher, tokenizer)
    named = {args.teacher: teacher, args.student or "the student": student}
    length = min(example_length(args, name, model, LONGEST[args.task], tokenizer) for name, model in named.items())
    prepared = _masked_words if args.task == "mlm" else _labelled
    train, held_out, measure = prepared(args, folder, teacher, tokenizer, length)
    for whose, model in (("teacher", teacher), ("student", student)):
        layers = model.spec.num_layers
        print(f"{whose}   {model.num_parameters():,} parameters, {layers} layer{'s' * (layers > 1)}")
    common = {"args": training_arguments(args, folder, RATE), "eval_dataset": held_out, "processing_class": tokenizer}
    common["callbacks"] = callbacks_of(args, held_out)
    common |= measure
    objective = _objective(args, teacher)
    if held_out is not None:
        own = objective.objective
        _tell_teacher(Trainer(model=teacher, objective=own, **common).evaluate())
    train_and_tell(Trainer(model=student, train_dataset=train, objective=objective, **common), args)


def _teacher(args: argparse.Namespace) -> tuple[Any, Any]:
    """The teacher with the head of the task, and its tokenizer; CommandError if its checkpoint has no such head."""
    import bertcore
    from bertcore.models.architectures import class_for
    from bertcore.models.model import NewlyInitialisedWarning

    source, kind = model_folder(args.teacher), getattr(bertcore, MODEL_CLASSES[args.task])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NewlyInitialisedWarning)
        teacher = kind.from_pretrained(source)
    if teacher.newly_initialised:
        missing = teacher.newly_initialised[0]
        raise CommandError(f"{args.teacher} has no head for --task {args.task} ({missing} is missing): train it first")
    if args.task != "mlm" and class_for(teacher.config) not in (kind, bertcore.AutoModel):
        raise CommandError(f"{args.teacher} has a head for another task than {args.task}")
    return teacher, bertcore.AutoTokenizer.from_pretrained(source)


def _student(args: argparse.Namespace, teacher: Any, tokenizer: Any) -> Any:
    """A student of the teacher's class: new, with layers of the teacher or without, or a checkpoint."""
    import bertcore
    from bertcore.checkpoint.files import read_json_object
    from bertcore.models.model import NewlyInitialisedWarning
    from bertcore.models.student import student_from_teacher, with_labels_of, with_layers
    from bertcore.presets import preset_config

    kind = getattr(bertcore, MODEL_CLASSES[args.task])
    if args.student and kind_of(args.student) == "known":
        if args.take is not None:
            raise CommandError(f"--take is for a new student, {args.student} has weights of its own")
        source = model_folder(args.student)
        if fingerprint(bertcore.AutoTokenizer.from_pretrained(source)) != fingerprint(tokenizer):
            raise CommandError(f"{args.student} has another tokenizer than {args.teacher}")
        options = {} if args.task == "mlm" else {"num_labels": len(_labels_of(teacher))}
        with warnings.catch_warnings():  # a new head is what is asked for
            warnings.simplefilter("ignore", NewlyInitialisedWarning)
            student = kind.from_pretrained(source, **options)
        student.config = with_labels_of(teacher, student.config)
        return student
    if args.layers:
        if args.layers > teacher.spec.num_layers:
            raise CommandError(f"--layers is {args.layers}, the teacher has {teacher.spec.num_layers}")
        config = with_layers(teacher.config, args.layers)
    else:
        config = read_json_object(Path(args.student)) if args.student.endswith(".json") else preset_config(args.student)
        config = with_ids_of(tokenizer, config) | {"vocab_size": teacher.spec.vocab_size}
    if args.take == "none":
        return kind.from_config(with_labels_of(teacher, config), seed=args.seed)
    try:
        return student_from_teacher(config, teacher, args.take, seed=args.seed)
    except ValueError as error:
        raise CommandError(f"{error}: --take says which layers the student begins with, or none") from error


def _objective(args: argparse.Namespace, teacher: Any) -> Any:
    """What the student learns from."""
    from bertcore.training import objectives

    options = {"soft": {"temperature": args.temperature or 2.0, "labelled_only": args.labelled_only}}
    terms = [getattr(objectives, TERMS[name])(weight=weight, **options.get(name, {})) for name, weight in args.terms]
    own = objectives.MaskedLM() if args.task == "mlm" else objectives.Supervised()
    return objectives.Distillation(teacher, *terms, objective=own, objective_weight=args.label_weight)


def _labelled(
    args: argparse.Namespace, folder: Path, teacher: Any, tokenizer: Any, length: int
) -> tuple[Any, Any | None, dict[str, Any]]:
    """Examples of labelled data, those held out, and how they are measured."""
    rows, held_out = labelled_rows(args)
    columns = columns_of(args, [*rows, *held_out])
    if args.task == "sequence":
        _check_kind(columns.problem_type, teacher)
    if columns.labels:
        columns = dataclasses.replace(columns, labels=_labels_of(teacher))
    train, measure = (list(columns.examples(some, tokenizer, max_length=length)) for some in (rows, held_out))
    print(f"data      {len(train):,} examples, {len(measure):,} held out{told_labels(columns)}")
    tell_longest(args, train, length)
    return train, measure or None, {"compute_metrics": metric_of(columns, held_out, measure)}


def _check_kind(of_data: str, teacher: Any) -> None:
    """CommandError if the labels are of another kind than the teacher's."""
    kind = teacher.config.get("problem_type") or ("regression" if len(_labels_of(teacher)) == 1 else None)
    is_same = of_data == kind or (kind is None and of_data != "regression")
    if not is_same:
        raise CommandError(f"the labels are for {of_data}, the teacher is for {kind or 'classification'}")


def _labels_of(teacher: Any) -> tuple[str, ...]:
    """The names of the teacher's classes; their numbers where they have no names."""
    from bertcore.models.spec import ConfigReader

    names = {int(number): name for number, name in (teacher.config.get("id2label") or {}).items()}
    found = [
        (number, names.get(number, f"LABEL_{number}")) for number in range(ConfigReader(teacher.config).num_labels())
    ]
    return tuple(str(number) if name == f"LABEL_{number}" else name for number, name in found)


def _masked_words(
    args: argparse.Namespace, folder: Path, teacher: Any, tokenizer: Any, length: int
) -> tuple[Any, Any | None, dict[str, Any]]:
    """Examples of raw texts, those held out, and how they are measured."""
    from bertcore.training import metrics, objectives

    given = args, folder / STORED, args.data, objectives.MaskedLM(), tokenizer, length, {"objective": "mlm"}
    examples = from_first(lambda: stored_examples(*given))
    measured = metrics.combined(metrics.masked_accuracy, metrics.perplexity)
    return *held_out_parts(examples, args.held_out), {
        "compute_metrics": measured, "preprocess_logits_for_metrics": metrics.predicted_words,
    }  # fmt: skip


def _tell_teacher(metrics: dict[str, float]) -> None:
    for name, value in metrics.items():
        if not name.endswith(("_runtime", "_per_second")):
            print(f"teacher   {name.removeprefix('eval_')} {value:.4f}")
