"""`bertcore finetune` for sentence encoders: what pairs of texts tell of their embeddings."""

import argparse
from pathlib import Path
from typing import Any

from bertcore.cli.common import CommandError, model_folder
from bertcore.cli.lora import with_adapters
from bertcore.cli.training import callbacks_of, example_length, train_and_tell, training_arguments

RATE = 5e-5
LONGEST = 128  # tokens, where the model takes more
TEXT, TEXT_PAIR, LABEL = "text", "text_pair", "label"  # names of columns


def finetune_embeddings(args: argparse.Namespace, folder: Path, rows: list[Any], held_out: list[Any]) -> None:
    """Train a sentence encoder, and tell what came of it."""
    from bertcore import AutoModel, AutoTokenizer
    from bertcore.arguments import required
    from bertcore.tasks.sentence_encoder import save_sentence_encoder
    from bertcore.tasks.sentence_encoder.settings import read_settings
    from bertcore.training import Trainer, objectives
    from bertcore.training.data import TextColumns

    settings = read_settings(model_folder(args.model))
    if settings.pooling not in (("mean",), ("cls",)):
        raise CommandError(f"{args.model} pools by {', '.join(settings.pooling)}, supported is mean or cls")
    if settings.is_static or settings.maps or not settings.include_prompt:
        raise CommandError(f"{args.model} is no Transformer with Pooling and Normalize alone, which can be trained")
    is_scored = args.task == "similarity"
    label = (args.label or LABEL) if is_scored else None
    if is_scored:
        required("scipy.stats")  # before the work, and not after it
    columns = TextColumns((args.text or TEXT, args.text_pair or TEXT_PAIR), label)
    train, measured = (list(columns.examples(some)) for some in (rows, held_out))
    if is_scored and len({example["label"] for example in train}) == 1:
        raise CommandError(f"all pairs have the {label} {train[0]['label']:g}: there is nothing to order them by")
    model = with_adapters(AutoModel.from_pretrained(settings.model_folder, add_pooling_layer=False), args)
    tokenizer = AutoTokenizer.from_pretrained(settings.model_folder)
    kind = objectives.CoSENT if is_scored else objectives.MultipleNegativesRanking
    length = example_length(args, args.model, model, LONGEST, tokenizer)
    trainer = Trainer(
        model=model,
        args=training_arguments(args, folder, RATE),
        train_dataset=train,
        eval_dataset=measured or None,
        processing_class=tokenizer,
        objective=kind(pooling=settings.pooling[0], max_length=length),
        callbacks=callbacks_of(args, measured),
    )
    print(f"data      {len(train):,} pairs, {len(measured):,} held out")

    def measure(out: Path) -> dict[str, float]:
        options = {name: getattr(settings, name) for name in ("pooling", "normalize", "do_lower_case")}
        options |= {"prompts": settings.prompts.by_name, "default_prompt_name": settings.prompts.default}
        save_sentence_encoder(out, trainer.model, tokenizer, max_seq_length=length, **options)
        return figures(out, measured, columns) if measured else {}

    train_and_tell(trainer, args, measure)


def figures(folder: Path, examples: list[Any], columns: Any) -> dict[str, float]:
    """How good the embeddings are: for scored pairs how their cosines go with the scores, for others the share of first
    texts whose own second text is the nearest of all."""
    import numpy as np

    from bertcore import SentenceEncoder
    from bertcore.training import metrics

    encoder = SentenceEncoder(folder)
    first, second = (
        encoder.encode([example[name] for example in examples], normalize=True) for name in columns.columns
    )
    if columns.label is None:
        nearest = (first @ second.T).argmax(axis=1)
        return {"first_of_all": float((nearest == np.arange(len(examples))).mean())}
    scores = np.array([example["label"] for example in examples])
    return metrics.combined(metrics.pearson, metrics.spearman)(((first * second).sum(axis=1), scores))
