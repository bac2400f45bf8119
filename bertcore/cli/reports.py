"""Measures of trained models, and the files beside them: scores, the state of the run, a model card."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bertcore import SentenceEncoder
from bertcore.arguments import required
from bertcore.checkpoint.files import write_json
from bertcore.training import metrics
from bertcore.training.checkpoints import ARGUMENTS, STATE
from bertcore.training.data import LabelledEntities, LabelledMentions, LabelledWords, Questions, answer_metrics

RESULTS, CARD = "all_results.json", "README.md"
PIPELINES = {
    "AutoModelForSequenceClassification": "text-classification",
    "AutoModelForTokenClassification": "token-classification",
    "AutoModelForQuestionAnswering": "question-answering",
    "AutoModelForMaskedLM": "fill-mask",
    "AutoModelForEntityClassification": "entity-classification",
    "AutoModelForEntityPairClassification": "relation-extraction",
    "AutoModelForEntitySpanClassification": "span-ner",
    "GLiNERModel": "zero-shot-ner",
}
SETTINGS = (
    *("optim", "learning_rate", "lr_scheduler_type", "warmup_steps", "weight_decay", "label_smoothing_factor"),
    *("per_device_train_batch_size", "gradient_accumulation_steps", "bf16", "seed"),
)


def write_reports(folder: Path, command: Any, trainer: Any, outcome: Any, scores: Mapping[str, float]) -> None:
    """Write README.md, and all_results.json, trainer_state.json, training_args.json as transformers' examples do."""
    scores = {f"eval_{name.removeprefix('eval_')}": value for name, value in scores.items()}
    trainer.state.callbacks = trainer.callbacks.state_dict()
    trainer.state.save_to_json(folder / STATE)
    for name, values in ((RESULTS, outcome.metrics | scores), (ARGUMENTS, trainer.args.to_dict())):
        write_json(folder / name, values)
    (folder / CARD).write_text(_card(folder, command, trainer, outcome, scores), encoding="utf-8")


def _card(folder: Path, command: Any, trainer: Any, outcome: Any, scores: Mapping[str, float]) -> str:
    verb, names = type(command).__name__.lower(), [kind.__name__ for kind in type(trainer.model).__mro__]
    kind = next((name for name in names if name in PIPELINES), names[0])  # of a family's own class, too
    kind = "GLiNER2" if kind == "GLiNER2Model" else kind
    source = {"pretrain": "model", "finetune": "model", "distill": "teacher"}[verb]
    aim = getattr(command, "task", None) or getattr(command, "objective", "")
    data = ", ".join(f"`{Path(each).name}`" for each in getattr(command, "data", ()) or getattr(command, "corpus", ()))
    is_encoder, is_late = (folder / "modules.json").is_file(), aim in ("late-interaction", "late-distillation")
    task = "sentence-similarity" if is_encoder else PIPELINES.get(kind)
    load, use = f'{kind}.from_pretrained("{folder.name}")', ""
    if is_encoder:
        kind = "MultiVectorEncoder" if is_late else "SentenceEncoder"
        load, use = f'{kind}("{folder.name}")', '\nmodel.encode(["a text", "another"])'
    elif task:
        kind, load = "pipeline", f'pipeline("{task}", "{folder.name}")'
    times = "_runtime", "_per_second"
    rows = [(name.removeprefix("eval_"), f"{value:.4f}") for name, value in scores.items() if not name.endswith(times)]
    settings = [(f"`{name}`", f"`{getattr(trainer.args, name)}`") for name in SETTINGS]
    held_out = len(trainer.eval_dataset or ())
    tags = [f"pipeline_tag: {task}"] if task else []
    return "\n".join(
        [
            *("---", "library_name: bertcore", *tags, "---", "", f"# {folder.name}", ""),
            f"Made by `bertcore {verb}` ({aim}) from `{Path(getattr(command, source)).name}`.",
            *("", "## Data", "", f"{data}: {len(trainer.train_dataset):,} examples, {held_out:,} held out.", ""),
            *("## Scores", "", *_table(("held out", "value"), rows or [("none", "")]), ""),
            f"## Training\n\n{outcome.global_step:,} steps, {outcome.metrics['train_tokens']:,} tokens, mean loss "
            f"{outcome.training_loss:.4f}.\n",
            *_table(("setting", "value"), settings),
            f"\n## Use\n\n```python\nfrom bertcore import {kind}\n\nmodel = {load}{use}\n```\n",
        ]
    )


def _table(head: tuple[str, str], rows: list[tuple[str, str]]) -> list[str]:
    return [f"| {first} | {second} |" for first, second in (head, ("---", "---"), *rows)]


def figures(folder: Path, examples: list[Any], columns: Any) -> dict[str, float]:
    """Return an encoder's correlations of cosines and scores; without scores, the share of nearest second texts."""
    encoder = SentenceEncoder(folder)
    texts = ([example[name] for example in examples] for name in columns.columns)
    first, second = (encoder.encode(some, normalize_embeddings=True) for some in texts)
    if columns.label is None:
        nearest = (first @ second.T).argmax(axis=1)
        return {"first_of_all": float((nearest == np.arange(len(examples))).mean())}
    scores = np.array([example["label"] for example in examples])
    return metrics.combined(metrics.pearson, metrics.spearman)(((first * second).sum(axis=1), scores))


def label_names(columns: Any) -> str:
    labels = getattr(columns, "labels", None)
    if labels is None:
        return ""
    names = f"{len(labels)} labels ({', '.join(labels[:8])}{', ...' if len(labels) > 8 else ''})"
    return f"; {names if labels else 'numbers to predict'}"


def metric_of(columns: Any, rows: list[Any], examples: list[Any]) -> Any:
    if isinstance(columns, LabelledEntities | LabelledMentions):
        return columns.metric(rows, examples)
    if isinstance(columns, Questions):
        return answer_metrics(rows, examples, columns)
    if isinstance(columns, LabelledWords):
        is_scheme = all(tag == "O" or tag[:2] in ("B-", "I-") for tag in columns.labels)
        return metrics.span_f1(columns.labels) if is_scheme else metrics.accuracy
    required("sklearn.metrics" if columns.labels else "scipy.stats")  # before the work
    if not columns.labels:
        return metrics.combined(metrics.pearson, metrics.spearman)
    average = "micro" if columns.is_multiple else "macro"
    return metrics.combined(metrics.accuracy, functools.partial(metrics.f1, average=average))
