"""Trainers of encoders, with the interface of sentence-transformers: texts by columns, and losses of an encoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np

from bertcore.arguments import check_list, check_share, check_strings, naming_nearest
from bertcore.evaluation import SequentialEvaluator
from bertcore.gradients import Gradients, TrainedModel, zero_gradients
from bertcore.kernels import checks
from bertcore.nn.parameter import Parameter
from bertcore.tasks.cross_encoder import CrossEncoder
from bertcore.tasks.encoders import Encoder
from bertcore.tasks.multi_vector import MultiVectorEncoder
from bertcore.tasks.sentence_encoder import SentenceEncoder
from bertcore.tasks.sparse_encoder import SparseEncoder
from bertcore.training.arguments import TrainerControl, TrainerState, TrainingArguments
from bertcore.training.callbacks import TrainerCallback
from bertcore.training.data.batches import APART, DATASET, SAMPLERS, Batches, MixedBatches, Named
from bertcore.training.objectives import cross_encoder, embeddings, multi_vector, pairs_and_triplets, sparse
from bertcore.training.objectives.objective import Batch, Objective
from bertcore.training.objectives.text_examples import split_names
from bertcore.training.optimizers import Optimizer
from bertcore.training.schedules import Schedule
from bertcore.training.trainer import Trainer, checked_metrics


class BatchSamplers:
    """The values of `batch_sampler`."""

    BATCH_SAMPLER, NO_DUPLICATES, GROUP_BY_LABEL = "batch_sampler", "no_duplicates", "group_by_label"
    NO_DUPLICATES_HASHED = "no_duplicates_hashed"


class MultiDatasetBatchSamplers:
    """The values of `multi_dataset_batch_sampler`."""

    PROPORTIONAL, ROUND_ROBIN = "proportional", "round_robin"


@dataclass(kw_only=True)
class SentenceTransformerTrainingArguments(TrainingArguments):
    """Settings of a trainer of encoders.

    Attributes:
        prompts: text before the texts of all columns, or {column: text}; with several datasets also {dataset: text} or
            {dataset: {column: text}}. `SparseEncoder` and `MultiVectorEncoder` take their own prompts.
        batch_sampler: the batches of training: "batch_sampler" for random ones, "no_duplicates" (or its faster form in
            sentence-transformers, "no_duplicates_hashed") for batches in which no text occurs twice, "group_by_label"
            for batches with at least two examples of each label.
        multi_dataset_batch_sampler: with several datasets, "proportional" takes all batches of all in random order,
            "round_robin" one of each in turn until one of them ends.
        router_mapping: {column: route} of a `SparseEncoder` with a Router: "query" for the first column, "document" for
            the others.
        warmup_ratio: an older name of `warmup_steps` below 1.
    """

    prompts: str | Mapping[str, Any] | None = None
    batch_sampler: str = "batch_sampler"
    multi_dataset_batch_sampler: str = "proportional"
    router_mapping: Mapping[str, Any] | None = None
    warmup_ratio: float | None = None

    def __post_init__(self) -> None:
        if self.warmup_ratio is not None:
            self.warmup_steps = self.warmup_steps or check_share("warmup_ratio", self.warmup_ratio)
        super().__post_init__()
        checks.choice("batch_sampler", self.batch_sampler, SAMPLERS)
        checks.choice("multi_dataset_batch_sampler", self.multi_dataset_batch_sampler, ("proportional", "round_robin"))
        for name, other in {"prompts": "a string or ", "router_mapping": ""}.items():
            value = getattr(self, name)
            if not (value is None or (are_strings(value) and (other or isinstance(value, Mapping)))):
                raise TypeError(f"{name} is {value!r:.60}, expected {other}a mapping of columns to strings")


def are_strings(value: object) -> bool:
    """Return whether a value is a string, or a mapping of such values."""
    return all(map(are_strings, value.values())) if isinstance(value, Mapping) else isinstance(value, str)


SentenceTransformerTrainingArguments.__init__ = naming_nearest()(  # type: ignore[method-assign]
    SentenceTransformerTrainingArguments.__init__
)


class CrossEncoderTrainingArguments(SentenceTransformerTrainingArguments):
    """The settings of a `CrossEncoderTrainer`."""


class SparseEncoderTrainingArguments(SentenceTransformerTrainingArguments):
    """The settings of a `SparseEncoderTrainer`."""


class MultiVectorEncoderTrainingArguments(SentenceTransformerTrainingArguments):
    """The settings of a `MultiVectorEncoderTrainer`."""


class OfDatasets(Objective):
    """The loss of each batch's dataset, which the batch names."""

    def __init__(self, losses: Mapping[str, Objective]):
        self.losses = losses

    @property
    def kind(self) -> str:
        return ", ".join(f"{name}: {loss.kind}" for name, loss in self.losses.items())

    def _of(self, batch: Batch) -> tuple[Objective, Batch]:
        return self.losses[str(batch[DATASET])], {name: value for name, value in batch.items() if name != DATASET}

    def parameters(self, model: TrainedModel) -> Sequence[Parameter]:
        every = dict.fromkeys(each for loss in self.losses.values() for each in loss.parameters(model))
        names = [name for parameter in every for name in parameter.names]
        if len(names) > len(set(names)):
            raise ValueError("loss has two losses with parameters of their own and of the same names, expected one")
        return list(every)

    def weight(self, batch: Batch) -> float:
        loss, rest = self._of(batch)
        return loss.weight(rest)

    def loss(self, model: TrainedModel, batch: Batch) -> Any:
        loss, rest = self._of(batch)
        return loss.loss(model, rest)

    def value_and_grad(self, model: TrainedModel, batch: Batch) -> tuple[Any, Gradients]:
        """Differentiate the loss; parameters of the others have gradients of zero."""
        loss, rest = self._of(batch)
        out, grads = loss.value_and_grad(model, rest)
        others = [each for each in self.parameters(model) if each.names[0] not in grads]
        grads.accumulate(zero_gradients(SimpleNamespace(parameters=lambda: others)))
        return out, grads


class ColumnsCollator:
    """Batches of the texts of one dataset with their prompts, by the collator of the dataset's loss.

    Args:
        collators: the collator of each dataset's loss; under None that of all datasets.
        args: the settings, with prompts and routes.
        datasets: datasets by name, under None without a name; their columns limit those of prompts and routes.
    """

    def __init__(
        self,
        collators: Mapping[str | None, Any],
        args: SentenceTransformerTrainingArguments,
        datasets: Sequence[Mapping[str | None, Any]],
    ):
        self.collators, self.args = collators, args
        self.rng: np.random.Generator | None = None
        found: dict[str | None, list[Any]] = {}
        for name, part in (pair for each in datasets for pair in each.items()):
            found.setdefault(name, []).append(columns_of(part))
        self.columns = {name: [*chain(*some)] for name, some in found.items() if None not in some}
        if self.columns and len(self.columns) == len(found):
            check_columns(args, self.columns)

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the batch of examples of one dataset."""
        for example in examples:
            if not isinstance(example, Mapping):
                raise TypeError(f"an example is {type(example).__name__}, expected a mapping of columns")
        name = examples[0].get(DATASET)
        collate = self.collators.get(name) or self.collators.get(None)
        if collate is None:
            raise ValueError(f"an example is of dataset {name!r}, expected {', '.join(map(str, self.collators))}")
        rows = [{key: value for key, value in example.items() if key != DATASET} for example in examples]
        for row in rows:
            if list(row) != list(rows[0]):
                raise ValueError(f"an example has {', '.join(row)}, expected {', '.join(rows[0])}, as another has")
        columns = split_names(rows[0])[0]
        if name not in self.columns:
            check_columns(self.args, {**self.columns, name: columns})
        prompts, routes = (of_dataset(getattr(self.args, each), name) for each in ("prompts", "router_mapping"))
        for place, column in enumerate(columns):
            wanted = "document" if place else "query"
            if (found := (routes or {}).get(column, wanted)) != wanted:
                raise ValueError(f"router_mapping has {found!r} for {column!r}, expected {wanted!r}")
            prompt = prompts.get(column, "") if isinstance(prompts, Mapping) else prompts or ""
            for row in rows:
                row[column] = with_prompt(row[column], prompt)
        if hasattr(collate, "rng"):
            collate.rng = self.rng
        return {**collate(rows), **({} if None in self.collators else {DATASET: np.array(name)})}


def with_prompt(value: object, prompt: str) -> object:
    """Return a text, or each text of a list, after its prompt; the loss's collator names other values."""
    if isinstance(value, list | tuple):
        return [with_prompt(each, prompt) for each in value]
    return prompt + value if isinstance(value, str) else value


def columns_of(dataset: object) -> list[str] | None:
    """Return the names of a dataset's columns of texts; None if only reading a batch shows them."""
    names = getattr(dataset, "column_names", None)
    if names is None and isinstance(dataset, Sequence) and len(dataset) and isinstance(dataset[0], Mapping):
        names = list(dataset[0])
    return None if names is None else [each for each in check_strings("the columns", names) if each not in APART]


def check_columns(args: SentenceTransformerTrainingArguments, columns: Mapping[str | None, Sequence[str]]) -> None:
    """Raise ValueError for a key of `prompts` or `router_mapping` that is not a column or dataset of `columns`."""
    for argument in ("prompts", "router_mapping"):
        given = getattr(args, argument)
        given = given if isinstance(given, Mapping) else {}
        is_nested, names = any(isinstance(each, Mapping) for each in given.values()), [*filter(None, columns)]
        if is_nested and None in columns:
            expected = "expected columns: the dataset has no name"
            raise ValueError(f"{argument} is for datasets {', '.join(map(str, given))}, {expected}")
        known = dict.fromkeys([*names, *(() if is_nested else chain(*columns.values()))])
        for key, each in given.items():
            checks.choice(f"a key of {argument}", key, known)
            for column in each if isinstance(each, Mapping) else ():
                checks.choice(f"a key of {argument}[{key!r}]", column, columns[key])


def of_dataset(given: object, name: str | None) -> Any:
    """Return the part of `prompts` or `router_mapping` for a dataset: its entry, or all of it."""
    if isinstance(given, Mapping) and name in given:
        return given[name]
    is_nested = isinstance(given, Mapping) and any(isinstance(each, Mapping) for each in given.values())
    return {} if is_nested else given


class SentenceTransformerTrainer(Trainer):
    """Train a `SentenceEncoder` in place, with the arguments of sentence-transformers' trainer.

    Checkpoints and saved models are whole encoders, which `SentenceEncoder` and sentence-transformers load.

    Args:
        model: the encoder.
        args: the settings; by default those of the folder "tmp_trainer".
        train_dataset: mappings of texts, with columns as the loss expects (a list, a Hugging Face Dataset); or a
            mapping of names to such datasets (a DatasetDict): each batch is of one of them.
        eval_dataset: the same, for the loss of an evaluation.
        loss: a loss made for the encoder, or a function that makes it; or a mapping of the datasets' names to these.
            `CoSENTLoss(model)` by default.
        evaluator: one of `bertcore.evaluation`, or a list of them, called at each evaluation.
        callbacks, optimizers: as for `Trainer`.

    Attributes:
        model: the encoder.
        state: the progress of the run.

    Raises:
        TypeError, ValueError: for arguments that contradict each other, and losses of another encoder.
    """

    encoder_class: ClassVar[Any] = SentenceEncoder
    loss_class: ClassVar[Any] = embeddings.EmbeddingObjective
    takes_prompts: ClassVar[bool] = True

    @naming_nearest()
    def __init__(
        self,
        model: Encoder,
        args: SentenceTransformerTrainingArguments | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        loss: Any = None,
        evaluator: Callable[..., Any] | list[Callable[..., Any]] | None = None,
        *,
        callbacks: Sequence[TrainerCallback | type[TrainerCallback]] | None = None,
        optimizers: tuple[Optimizer | None, Schedule | None] = (None, None),
    ):
        if not isinstance(model, self.encoder_class):
            raise TypeError(f"model is {type(model).__name__}, expected a {self.encoder_class.__name__}")
        args = SentenceTransformerTrainingArguments("tmp_trainer") if args is None else args
        if not isinstance(args, SentenceTransformerTrainingArguments):
            raise TypeError(f"args is {type(args).__name__}, expected SentenceTransformerTrainingArguments")
        if args.prompts and not self.takes_prompts:
            raise ValueError(f"prompts is {args.prompts!r:.60}, expected None: set the prompts of model")
        if args.router_mapping and getattr(model, "routes", None) is None:
            raise ValueError(f"router_mapping is {args.router_mapping!r:.60}, expected None: model has no Router")
        if not (evaluator is None or isinstance(evaluator, list | tuple) or callable(evaluator)):
            raise TypeError(f"evaluator is {type(evaluator).__name__}, expected an evaluator or a list of them")
        losses = self._losses(model, loss, {"train_dataset": train_dataset, "eval_dataset": eval_dataset})
        collators = {name: each.collator(model.tokenizer, seed=args.seed) for name, each in losses.items()}
        self.evaluator = SequentialEvaluator(evaluator) if isinstance(evaluator, list | tuple) else evaluator
        given = named("train_dataset", train_dataset), named("eval_dataset", eval_dataset)
        datasets = [each if isinstance(each, Mapping) else {None: each} for each in given if each is not None]
        super().__init__(
            model.model,
            args,
            ColumnsCollator(collators, args, datasets),
            given[0],
            {} if eval_dataset is None and evaluator is not None else given[1],
            model.tokenizer,
            callbacks=self._callbacks(check_list("callbacks", callbacks or (), "callbacks"), list(losses.values())),
            optimizers=optimizers,
            objective=losses[None] if None in losses else OfDatasets(losses),
        )
        self.model = self.callbacks.details["model"] = model

    @property
    def network(self) -> TrainedModel:
        """The encoder's model."""
        return self.model.model

    def _losses(self, model: Any, loss: Any, datasets: Mapping[str, Any]) -> dict[Any, Any]:
        """Return the loss of each dataset by its name, or that of all under None."""
        if isinstance(loss, Mapping):
            for argument, dataset in datasets.items():
                if dataset is not None and not (isinstance(dataset, Mapping) and dataset.keys() <= loss.keys()):
                    found = ", ".join(map(str, dataset)) if isinstance(dataset, Mapping) else "one dataset"
                    raise ValueError(f"loss is for {', '.join(map(str, loss)) or 'none'}, and {argument} has {found}")
        given, made = loss if isinstance(loss, Mapping) else {None: loss}, {}
        for name, each in given.items():
            each = self.default_loss(model) if each is None else each
            made[name] = each = each if isinstance(each, Objective) or not callable(each) else each(model)
            if not isinstance(each, self.loss_class):
                expected = f"{self.encoder_class.__name__}, such as {type(self.default_loss(model)).__name__}"
                raise TypeError(f"loss is {type(each).__name__}, expected a loss of {expected}")
            if each.encoder is not model:
                raise ValueError(f"loss is a {type(each).__name__} of {each.encoder!r}, expected one of model")
        return made

    def _callbacks(self, given: Sequence[Any], losses: Sequence[Any]) -> list[Any]:
        """Return the given callbacks and those of the losses."""
        return list(given)

    def default_loss(self, model: Any) -> Objective:
        """Return the loss of a trainer without one."""
        return pairs_and_triplets.CoSENTLoss(model)

    def evaluate(self, eval_dataset: Any = None, metric_key_prefix: str = "eval") -> dict[str, float]:
        """Log and return the loss on a dataset, as `Trainer.evaluate`, and the evaluator's metrics."""
        return super().evaluate(named("eval_dataset", eval_dataset), metric_key_prefix)

    def _batches(self, **options: Any) -> Batches:
        kind = SAMPLERS[self.args.batch_sampler]
        if not isinstance(self.train_dataset, Mapping):
            return kind(self.train_dataset, **options)
        parts = [kind(part, **options) for part in self.train_dataset.values()]
        return MixedBatches(parts, self.args.multi_dataset_batch_sampler == "proportional")

    def _further_metrics(self, prefix: str) -> dict[str, float]:
        if self.evaluator is None:
            return {}
        folder, state = Path(self.args.output_dir, "eval"), self.state
        folder.mkdir(parents=True, exist_ok=True)
        self.network.eval()
        found = self.evaluator(self.model, str(folder), state.epoch, state.global_step)
        found = checked_metrics("evaluator", found if isinstance(found, Mapping) else {"evaluator": found})
        if not found:
            raise ValueError("evaluator returned no metrics, expected at least one")
        start = f"{prefix}_"
        return {name if name.startswith(start) else start + name: value for name, value in found.items()}

    def write_into(self, folder: Path) -> None:
        self.model.save_pretrained(folder)

    def read_from(self, folder: Path) -> None:
        self.model.load_weights(folder)


def named(argument: str, datasets: Any) -> Any:
    """Return datasets in a mapping with their names in their examples; another dataset as it is."""
    if not isinstance(datasets, Mapping):
        return datasets
    if not datasets:
        raise ValueError(f"{argument} is an empty mapping, expected at least one dataset")
    return {name: part if isinstance(part, Named) else Named(name, part) for name, part in datasets.items()}


class CrossEncoderTrainer(SentenceTransformerTrainer):
    """Train a `CrossEncoder` in place; see `SentenceTransformerTrainer`.

    The default loss is `BinaryCrossEntropyLoss`, for several labels `CrossEntropyLoss`.
    """

    encoder_class = CrossEncoder
    loss_class = cross_encoder.CrossEncoderObjective

    def default_loss(self, model: Any) -> Objective:
        kind = cross_encoder.BinaryCrossEntropyLoss if model.num_labels == 1 else cross_encoder.CrossEntropyLoss
        return kind(model)


class SpladeRegularizerWeightSchedulerCallback(TrainerCallback):
    """Raise the regularizer weights of a `SpladeLoss` from 0 over the first steps of a run.

    Args:
        loss: the loss.
        scheduler_type: "linear" or "quadratic".
        warmup_ratio: the share of the steps until the weights are full.
    """

    def __init__(self, loss: sparse.SpladeLoss, scheduler_type: str = "quadratic", warmup_ratio: float = 1 / 3):
        if not isinstance(loss, sparse.SpladeLoss):
            raise TypeError(f"loss is {type(loss).__name__}, expected a SpladeLoss")
        checks.choice("scheduler_type", scheduler_type, ("linear", "quadratic"))
        self.loss, self.scheduler_type = loss, scheduler_type
        self.warmup_ratio = check_share("warmup_ratio", warmup_ratio)

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **event: Any):
        """Set the weights of the next step."""
        whole = max(1, int((state.max_steps or 0) * self.warmup_ratio))
        share = min(1.0, state.global_step / whole)
        self.loss.regularizer_share = share if self.scheduler_type == "linear" else share**2

    on_step_end = on_train_begin


class SparseEncoderTrainer(SentenceTransformerTrainer):
    """Train a `SparseEncoder` in place; see `SentenceTransformerTrainer`.

    The default loss is `SpladeLoss` of `SparseMultipleNegativesRankingLoss`, with the weights 3e-5 of documents and
    5e-5 of queries. A `SpladeLoss` gets a `SpladeRegularizerWeightSchedulerCallback`, unless there is one.
    """

    encoder_class = SparseEncoder
    loss_class = sparse.SparseObjective
    takes_prompts = False

    def _callbacks(self, given: Sequence[Any], losses: Sequence[Any]) -> list[Any]:
        kind = SpladeRegularizerWeightSchedulerCallback
        scheduled = [each.loss for each in given if isinstance(each, kind)]
        others = [each for each in losses if isinstance(each, sparse.SpladeLoss) and each not in scheduled]
        return [*given, *map(kind, others)]

    def default_loss(self, model: Any) -> Objective:
        return sparse.SpladeLoss(model, sparse.SparseMultipleNegativesRankingLoss(model), 3e-5, 5e-5)


class MultiVectorEncoderTrainer(SentenceTransformerTrainer):
    """Train a `MultiVectorEncoder` in place; see `SentenceTransformerTrainer`.

    The default loss is `MultiVectorMultipleNegativesRankingLoss`.
    """

    encoder_class = MultiVectorEncoder
    loss_class = multi_vector.MultiVectorObjective
    takes_prompts = False

    def default_loss(self, model: Any) -> Objective:
        return multi_vector.MultiVectorMultipleNegativesRankingLoss(model)
