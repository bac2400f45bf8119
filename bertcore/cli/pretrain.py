"""Pretrain a model on raw texts: from random weights, or on from those of a checkpoint.

CORPUS is files or folders of text (.txt, .md: an empty line ends a document), JSON lines (.jsonl, .json) or tables
(.csv, .tsv), whose documents stand in a column, each also with .gz; or - for lines of text on stdin. It is read as a
stream and kept as tokens in FOLDER/examples, which may be deleted afterwards. A part of it is held out to measure
the model.

MODEL is a preset (`bertcore info` lists them) or a config file (.json), with random weights; or a checkpoint's folder
or id on the hub, whose weights and tokenizer are trained on. A model with random weights gets the --tokenizer, or one
learnt from CORPUS.

Ctrl-C ends a run when its checkpoint is written; the same command with --resume goes on to the same result.

`mpirun -n 2 bertcore pretrain ...` trains in two processes (needs mpi4py): a step has a batch of each."""

import argparse
import itertools
from pathlib import Path
from typing import Any

from bertcore.cli.common import CommandError, chosen_backend, model_folder, positive, positive_number, share
from bertcore.cli.lora import add_lora_arguments, with_adapters
from bertcore.cli.training import (
    STORED,
    add_training_arguments,
    callbacks_of,
    check_once,
    example_length,
    from_first,
    one_of_processes,
    out_folder,
    records_of,
    train_and_tell,
    training_arguments,
)
from bertcore.cli.training_examples import documents_of, examples_of_mentions, held_out_parts, stored_examples

HELP = "pretrain a model on raw texts"
EXAMPLES = """\
examples:
  bertcore pretrain corpus/ --out my-bert/ --max-seconds 480
  bertcore pretrain *.jsonl.gz --column body --model roberta-base --tokenizer roberta-base/ --out my-roberta/
  bertcore pretrain law.txt --model bert-base-uncased/ --out law-bert/ --max-steps 10000"""

RATES = {"new": 5e-4, "known": 5e-5}
LONGEST = 128  # tokens, where the model takes more


# The objectives by name, and the class of what is learnt of pairs of segments beside words.
OBJECTIVES = {
    "mlm": None,
    "mlm+sbo": None,
    "mlm+entities": None,
    "clm": None,
    "plm": None,
    "tlm": None,
    "rtd": None,
    "mlm+nsp": "NextSentence",
    "mlm+sop": "SentenceOrder",
}
UNITS = ("token", "word", "span")
EMBEDDINGS = ("tied", "separate", "gradient_disentangled")  # those of bertcore.ReplacedTokenModel
MASKED = tuple(name for name in OBJECTIVES if name not in ("clm", "plm"))
OBJECTIVES_OF_OPTIONS = {  # those that have a use for an option
    "mask": MASKED,
    "mask_share": (*MASKED, "plm"),
    "pair_column": ("tlm",),
    "language": ("mlm+nsp", "mlm+sop"),
    "generator_size": ("rtd",),
    "embeddings": ("rtd",),
    "generator": ("rtd",),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("corpus", metavar="CORPUS", nargs="+", help="files or folders of texts, or - for stdin")
    parser.add_argument("--model", default="mini-bert", metavar="MODEL", help="see above (default: mini-bert)")
    parser.add_argument(
        "--objective",
        choices=OBJECTIVES,
        default="mlm",
        help="mlm: masked words (the default); mlm+sbo: and masked spans from the tokens beside them (SpanBERT); "
        "mlm+entities: and masked entities (LUKE), of JSON lines with text, entity_spans and entities; "
        "mlm+nsp: and whether one segment follows another (BERT); mlm+sop: and their order (ALBERT); "
        "clm: the next word; plm: the last words of a random order (XLNet); rtd: which words were replaced by "
        "another model, which learns masked words meanwhile (ELECTRA); "
        "tlm: masked words of texts and their translations, in two columns of JSON or tables (XLM)",
    )
    parser.add_argument("--mask", choices=UNITS, help="what is masked as one (default: token; span for mlm+sbo)")
    parser.add_argument(
        "--mask-share",
        type=share,
        metavar="SHARE",
        help="of tokens (default: 0.15; for plm a sixth, that are predicted)",
    )
    add_training_arguments(
        parser, lr="5e-4; 5e-5 for a checkpoint", epochs=1, batch=32, length=f"the model's, at most {LONGEST}"
    )
    rtd = parser.add_argument_group("rtd")
    rtd.add_argument(
        "--generator-size",
        type=positive_number,
        metavar="SHARE",
        help="of the model's widths (ELECTRA, default: 0.25) or of its layers (others, default: 0.5)",
    )
    rtd.add_argument("--embeddings", choices=EMBEDDINGS, help="of both models (default: tied)")
    rtd.add_argument(
        "--generator", metavar="FOLDER", help="a published generator to go on with beside MODEL, its discriminator"
    )
    add_lora_arguments(parser)
    data = parser.add_argument_group("data")
    data.add_argument("--column", default="text", metavar="NAME", help="of the texts in JSON or tables (default: text)")
    data.add_argument("--pair-column", metavar="NAME", help="of the translations for tlm (default: text_pair)")
    data.add_argument("--language", metavar="CODE", help="whose sentences mlm+nsp and mlm+sop are about (default: en)")
    data.add_argument("--tokenizer", metavar="FOLDER", help="of a new model (default: learnt from CORPUS)")
    data.add_argument("--vocab-size", type=positive, metavar="N", help="of a learnt one (default: the model's)")
    data.add_argument(
        "--held-out", type=share, default=0.01, metavar="SHARE", help="of CORPUS, for measuring (default: 0.01)"
    )


def run(args: argparse.Namespace) -> None:
    """Run the command."""
    with one_of_processes(args), chosen_backend(args):
        pretrain(args, from_first(lambda: out_folder(args)))


def pretrain(args: argparse.Namespace, folder: Path) -> None:
    """Train, and tell what came of it."""
    from bertcore.training import Trainer, metrics

    _check_options(args)
    objective, is_causal = objective_of(args), args.objective == "clm"
    model, tokenizer, kind = model_and_tokenizer(args, objective)
    if args.objective == "plm" and "perm_mask" not in model.arguments:
        raise CommandError(f"--objective plm needs the two streams of XLNet, which {args.model} has not")
    _prepare_pairs(args, model, tokenizer)
    _check_entities(args, model, tokenizer)
    model = with_adapters(model, args)
    length = example_length(args, args.model, model, LONGEST)
    examples = from_first(lambda: _examples(args, folder, objective, tokenizer, length))
    train, held_out = held_out_parts(examples, args.held_out)
    measures = [metrics.next_word_accuracy if is_causal else metrics.masked_accuracy, metrics.perplexity]
    measures += [metrics.pair_accuracy] if OBJECTIVES[args.objective] else []
    measures += [metrics.commonest_word, metrics.replaced_tokens] if args.objective == "rtd" else []
    trainer = Trainer(
        model=model,
        args=training_arguments(args, folder, RATES[kind]),
        train_dataset=train,
        eval_dataset=held_out,
        processing_class=tokenizer,
        objective=objective,
        compute_metrics=metrics.combined(*measures),
        preprocess_logits_for_metrics=metrics.predicted_next_words if is_causal else metrics.predicted_words,
        callbacks=callbacks_of(args, held_out),
    )
    train_and_tell(trainer, args)
    if args.objective == "rtd":
        from_first(lambda: [tokenizer.save_pretrained(folder / part) for part in ("generator", "discriminator")])


def _examples(args: argparse.Namespace, folder: Path, objective: Any, tokenizer: Any, length: int) -> Any:
    """What is learnt of the corpus."""
    if args.objective == "mlm+entities":
        return examples_of_mentions(args, args.corpus, objective, tokenizer, length)
    given = args, folder / STORED, args.corpus, objective, tokenizer, length, {"objective": args.objective}
    language = args.language or "en" if OBJECTIVES[args.objective] else None
    return stored_examples(*given, language=language, pair_column=_pair_column(args))


def _check_options(args: argparse.Namespace) -> None:
    """CommandError for options that the objective has no use for, no tokens to mask, and pairs of one column."""
    for name, objectives in OBJECTIVES_OF_OPTIONS.items():
        if getattr(args, name) is not None and args.objective not in objectives:
            option = "--" + name.replace("_", "-")
            raise CommandError(f"{option} is for --objective {', '.join(objectives)}, not for {args.objective}")
    if args.mask_share == 0:
        raise CommandError("--mask-share is 0, expected more: nothing would be asked for")
    if _pair_column(args) == args.column:
        raise CommandError(f"--column and --pair-column are both {args.column}, expected a text and its translation")


def objective_of(args: argparse.Namespace) -> Any:
    """The objective of --objective."""
    from bertcore.training import Masking, objectives

    if args.objective == "clm":
        return objectives.CausalLM()
    if args.objective == "plm":
        return objectives.PermutationLM(1 / 6 if args.mask_share is None else args.mask_share)
    masked = 0.15 if args.mask_share is None else args.mask_share
    if args.objective == "mlm+sbo":
        return objectives.SpanBoundary(Masking(masked, unit=args.mask or "span"))
    if args.objective == "rtd":
        return objectives.ReplacedToken(Masking(masked, 1.0, 0.0, unit=args.mask or "token"))
    kinds = {"tlm": objectives.TranslationLM, "mlm+entities": objectives.EntityMaskedLM}
    kind = kinds.get(args.objective, objectives.MaskedLM)
    words = kind(Masking(masked, unit=args.mask or "token"))
    pairs = OBJECTIVES[args.objective]
    return words if pairs is None else words + getattr(objectives, pairs)()


def _pair_column(args: argparse.Namespace) -> str | None:
    """The column of translations, where the objective takes them."""
    return args.pair_column or "text_pair" if args.objective == "tlm" else None


def _prepare_pairs(args: argparse.Namespace, model: Any, tokenizer: Any) -> None:
    """Have the tokenizer tell the segments of pairs apart; CommandError for a model without the head."""
    from bertcore.training import objectives

    pairs = OBJECTIVES[args.objective]
    if pairs is None and args.objective != "tlm":
        return
    if pairs is not None and getattr(objectives, pairs).label not in model.label_names:
        raise CommandError(f"--objective {args.objective} needs a head that {args.model} was not pretrained with")
    if "token_type_ids" not in tokenizer.model_input_names and model.spec.type_vocab_size > 1:
        tokenizer.model_input_names.append("token_type_ids")


def _check_entities(args: argparse.Namespace, model: Any, tokenizer: Any) -> None:
    """CommandError for a model or a tokenizer without the entities that the objective is about."""
    if args.objective != "mlm+entities":
        return
    if "entity_ids" not in model.arguments:
        raise CommandError(f"--objective mlm+entities is for LUKE, whose entities {args.model} has not")
    if not getattr(tokenizer, "entity_vocab", None):
        raise CommandError("--objective mlm+entities needs entity_vocab.json beside the tokenizer, which has none")


def model_and_tokenizer(args: argparse.Namespace, objective: Any) -> tuple[Any, Any, str]:
    """The model with the objective's head, its tokenizer, and whether it is "new" or "known"."""
    import bertcore
    from bertcore.checkpoint.files import read_json_object
    from bertcore.presets import preset_config
    from bertcore.training.checkpoints import checkpoints_in

    kind = getattr(bertcore, objective.model_class)
    if args.lora and args.objective == "rtd":
        raise CommandError("--lora trains adapters of one model, and --objective rtd has two")
    if args.lora and kind_of(args.model) == "new":
        raise CommandError(f"--lora trains adapters beside known weights, and {args.model} has none")
    if args.resume:
        saved = checkpoints_in(args.out)[-1]
        weights = model_folder(args.model) if args.lora else saved  # with adapters, a checkpoint has these alone
        return kind.from_pretrained(weights), bertcore.AutoTokenizer.from_pretrained(saved), kind_of(args.model)
    if kind_of(args.model) == "known":
        if args.tokenizer or args.vocab_size:
            raise CommandError(f"{args.model} has a tokenizer of its own: leave out --tokenizer and --vocab-size")
        source = model_folder(args.model)
        model = _known_pair(args, source) if args.objective == "rtd" else kind.from_pretrained(source)
        return model, bertcore.AutoTokenizer.from_pretrained(_tokenizer_of(source, args)), "known"
    if args.generator:
        raise CommandError(f"--generator is beside a checkpoint, and {args.model} has none: take --generator-size")
    config = read_json_object(Path(args.model)) if args.model.endswith(".json") else preset_config(args.model)
    tokenizer = from_first(lambda: _tokenizer(args, config))
    config = with_ids_of(tokenizer, config) | {"vocab_size": len(tokenizer)}
    if getattr(tokenizer, "entity_vocab", None):
        config["entity_vocab_size"] = 1 + max(tokenizer.entity_vocab.values())
    return kind.from_config(config, seed=args.seed, **_beside(args, config)), tokenizer, "new"


def _known_pair(args: argparse.Namespace, source: Any) -> Any:
    """The generator and the discriminator of checkpoints: of one folder that `bertcore pretrain` wrote, or of two."""
    import bertcore

    if args.generator_size:
        raise CommandError(f"{args.model} is a checkpoint, whose generator has its size: leave out --generator-size")
    if (Path(source) / "generator").is_dir():
        if args.generator or args.embeddings:
            raise CommandError(f"{args.model} has a generator: leave out --generator and --embeddings")
        return bertcore.ReplacedTokenModel.from_pretrained(source)
    if not args.generator:
        raise CommandError(
            f"{args.model} has no generator beside it: give --generator, the one that it was trained with"
        )
    discriminator = bertcore.AutoModelForPreTraining.from_pretrained(source)
    generator = bertcore.AutoModelForMaskedLM.from_pretrained(model_folder(args.generator))
    return bertcore.ReplacedTokenModel(generator, discriminator, embeddings=args.embeddings or "tied")


def _tokenizer_of(source: Any, args: argparse.Namespace) -> Any:
    """Where the tokenizer of a checkpoint is: beside each of a pair, where the folder has both."""
    is_pair = args.objective == "rtd" and (Path(source) / "discriminator").is_dir()
    return Path(source) / "discriminator" if is_pair else source


def with_ids_of(tokenizer: Any, config: dict[str, Any]) -> dict[str, Any]:
    """A new model's config with the tokenizer's special tokens."""
    ids = {key: getattr(tokenizer, key) for key in ("pad_token_id", "bos_token_id", "eos_token_id")}
    return config | {key: value for key, value in ids.items() if value is not None}


def _beside(args: argparse.Namespace, config: dict[str, Any]) -> dict[str, Any]:
    """The options of a model that a generator stands beside."""
    from bertcore.models.replaced_tokens import generator_config

    if args.objective != "rtd":
        return {}
    return {"generator": generator_config(config, args.generator_size), "embeddings": args.embeddings or "tied"}


def kind_of(model: str) -> str:
    """Whether a model of this name is "new", a preset or a config file, or "known", a checkpoint."""
    from bertcore.presets import PRESETS

    is_checkpoint = Path(model).is_dir() or (model not in PRESETS and "/" in model) or model == "demo"
    return "new" if model.endswith(".json") or not is_checkpoint else "known"


def _tokenizer(args: argparse.Namespace, config: dict[str, Any]) -> Any:
    """The tokenizer of --tokenizer, or one of the model's kind that is learnt from the corpus."""
    from bertcore.tokenization import AutoTokenizer, train_tokenizer
    from bertcore.tokenization.families import CLASS_OF_MODEL_TYPE

    if args.tokenizer:
        if args.vocab_size:
            raise CommandError("--vocab-size is of a tokenizer that is learnt: leave it out beside --tokenizer")
        return AutoTokenizer.from_pretrained(model_folder(args.tokenizer, "tokenizer"))
    if args.objective == "mlm+entities":
        raise CommandError("--objective mlm+entities needs --tokenizer: LUKE's, with entity_vocab.json beside it")
    check_once(args.corpus, "a tokenizer is learnt from it first: give --tokenizer")
    documents = iter(documents_of(records_of(args.corpus, args), args.column, pair_column=_pair_column(args)))
    first = next(documents, None)
    if first is None:
        raise CommandError(f"{', '.join(args.corpus)} holds no texts to learn from")
    return train_tokenizer(
        (line for document in itertools.chain([first], documents) for line in document),
        tokenizer_class=CLASS_OF_MODEL_TYPE.get(config["model_type"], "BertTokenizer"),
        vocab_size=args.vocab_size or config["vocab_size"],
        model_max_length=config.get("max_position_embeddings", LONGEST),
    )
