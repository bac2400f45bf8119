"""The command finetune: models that learn from labelled data."""

import dataclasses
import operator
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np

import bertcore
from bertcore import GLiNER, GLiNER2, MultiVectorEncoder, SentenceEncoder
from bertcore.arguments import required
from bertcore.cli.inputs import model_folder
from bertcore.cli.options import NUMBER, REQUIRED, SEVERAL, CommandError, File, Kind, Positive, Share, Words, opt
from bertcore.cli.reports import figures, label_names, metric_of
from bertcore.cli.training import Adapters, Data, check_once, print_malformed
from bertcore.models.model import NewlyInitialisedWarning
from bertcore.tasks.gliner2_records import LabelledText, read_record
from bertcore.tasks.sentence_encoder.modules import read_settings
from bertcore.tokenization.mentions import LUKE_TASKS, entities_of
from bertcore.training import data, objectives
from bertcore.training.metrics import of_counts
from bertcore.training.objectives import multi_vector

LATE_TASKS = ("late-interaction", "late-distillation")
EMBEDDING_TASKS = ("similarity", "pair", *LATE_TASKS)
MENTION_TASKS = ("entity-classification", "relation-extraction")
ENTITY_TASKS = (*MENTION_TASKS, "span-ner")
GLINER_TASKS = "zero-shot-ner", "schema"
TASKS = ("sequence", "token", "qa", *ENTITY_TASKS, *GLINER_TASKS, *EMBEDDING_TASKS)
WORDS, TAGS = "tokens", "tags"  # names of columns
LONGEST = 512  # tokens, for models that take more
LONGEST_EMBEDDED = 128
MOST_KINDS = 100  # of entities, that are looked for in held-out texts
USUAL = {"learning_rate": 5e-5, "num_train_epochs": 3.0, "per_device_train_batch_size": 16}
WEIGHT = Kind(
    lambda text: text if text == "balanced" else NUMBER.read(text),
    "balanced, or a number from 0 up for each class",
    "WEIGHT",
)
ONLY_FOR = {  # the tasks that use an option
    "label_kind": ("sequence",),
    "text": ("sequence", "token", *ENTITY_TASKS, *EMBEDDING_TASKS),
    "text_pair": ("sequence", *EMBEDDING_TASKS),
    "label": ("sequence", "token", *MENTION_TASKS, *EMBEDDING_TASKS),
    "class_weights": ("sequence", "token", *ENTITY_TASKS),
    "negative_label": MENTION_TASKS,
    "max_span_width": ("span-ner",),
}


class LabelledData(Data):
    """A command that reads labelled data."""

    task: ClassVar[str]

    data: tuple[File, ...] = opt("files or folders of labelled data", REQUIRED)
    eval: Annotated[tuple[str, ...], *Words.__metadata__] = opt(
        "files or folders of data to measure the model with (default: a part of DATA)", ()
    )
    held_out: Share = opt("share of DATA to measure the model with, without --eval", 0.1)
    text: str | None = opt("column of texts (default: text; tokens for words)")
    text_pair: str | None = opt("column of second texts")
    label: str | None = opt("column of labels (default: label; tags for words)")

    def labelled_rows(self, seed: int) -> tuple[list[Any], list[Any]]:
        """Return the records to learn from, and the records held out: those of --eval, or a part of DATA."""
        rows, held_out = self._rows(self.data), self._rows(self.eval) if self.eval else []
        if not self.eval:
            order = np.random.default_rng(seed).permutation(len(rows))
            count = round(self.held_out * len(rows))
            held_out, rows = [rows[index] for index in order[:count]], [rows[index] for index in order[count:]]
        if not rows:
            left = f" beside the {len(held_out)} that are held out" if held_out and not self.eval else ""
            raise CommandError(f"{', '.join(self.data)} holds no records to learn from{left}")
        if self.eval and not held_out:
            raise CommandError(f"{', '.join(self.eval)} (--eval) holds no records to measure the model with")
        return rows, held_out

    def _rows(self, paths: Sequence[str]) -> list[Any]:
        """Return all records of files, with lines of words joined to texts."""
        records = self.records(paths)
        columns = data.LabelledWords(self.text or WORDS, self.label or TAGS)
        rows = list(columns.whole(records) if self.task == "token" else records)
        print_malformed(records)
        return rows


class Labels(LabelledData):
    """A command that learns labels."""

    defaults: ClassVar[Mapping[str, Any]] = USUAL

    label_kind: Annotated[str | None, ("classes", "numbers")] = opt(
        "meaning of integers (default: classes, unless many differ)"
    )

    def columns(self, rows: list[Any]) -> Any:
        rows = sorted(rows, key=operator.attrgetter("file", "line"))  # so that the first wrong record is reported
        if self.task == "sequence":
            names = self.text or "text", self.text_pair, self.label or "label"
            return data.LabelledTexts.found_in(rows, *names, kind=self.label_kind)
        if self.task == "token":
            return data.LabelledWords.found_in(rows, self.text or WORDS, self.label or TAGS)
        return data.Questions()

    def examples(
        self, columns: Any, rows: list[Any], held_out: list[Any], tokenizer: Any, length: int
    ) -> tuple[list[Any], list[Any], Any]:
        """Return the examples, the examples held out, and the task's metrics; print how many there are."""
        train, measure = (list(columns.examples(some, tokenizer, max_length=length)) for some in (rows, held_out))
        print(f"data      {len(train):,} examples, {len(measure):,} held out{label_names(columns)}")
        full = sum(len(example["input_ids"]) >= length for example in train)
        if full and self.task != "qa":  # questions are asked of whole texts, in windows
            print(f"length    {full:,} have {length} tokens, where longer texts are cut")
        return train, measure, metric_of(columns, held_out, measure)


class Finetune(Labels, Adapters):
    """Fine-tune a checkpoint on labelled data.

    DATA is files or folders of JSON lines (.jsonl, .json) or tables (.csv, .tsv), each also with .gz. The --task is one
    of:

      sequence               the label of a text (--text), or of two (--text-pair): classes, lists of them, or numbers
      token                  the tag of each word: columns of words and tags, or lines (.txt) of a word and its tag
      qa                     the answer in a text: columns question, context and answers, or SQuAD's file
      relation-extraction    the relation of two entities: {"text", "spans": [head, tail], "label"} a line
      entity-classification  the type of an entity, or a list of types: {"text", "spans": [entity], "label"} a line
      span-ner               the entities of a text: {"text", "spans": [[first, last + 1, label], ...]} a line
      zero-shot-ner          the same for a GLiNER model, which still accepts any labels
      schema                 gliner2's records for a GLiNER2 model: {"input", "output": a schema with answers} a line
      similarity             the similarity of two texts (--text, --text-pair), a number (--label), by CoSENT
      pair                   texts that belong together: each first text should find its second one in the batch
      late-interaction       the same with token vectors (ColBERT); a list "negatives" has texts that do not belong
      late-distillation      a teacher's scores (--label) of the second text and of each of its "negatives"

    An entity is [first, last + 1], characters of the text. BERT reads it between markers, LUKE as an entity.
    The last four tasks give a sentence encoder or a late-interaction encoder. Labels are found in the data. A tenth of
    it is held out to measure the model, unless --eval is given. Ctrl-C ends a run when its checkpoint is written; the
    same command with --resume continues to the same result.

    Examples:
        bertcore finetune reviews.csv --model bert-base-uncased/ --task sequence --text review --out my-classifier/
        bertcore finetune train.txt --model roberta-base/ --task token --epochs 5 --out my-tagger/
        bertcore finetune pairs.csv --model demo --task pair --text question --text-pair answer --out my-encoder/
        bertcore finetune pairs.jsonl --model biobert/ --task relation-extraction --out my-relations/
        bertcore finetune entities.jsonl --model urchade/gliner_small-v2.1 --task zero-shot-ner --out my-gliner/
        bertcore finetune records.jsonl --model fastino/gliner2-base-v1 --task schema --out my-gliner2/
        bertcore finetune squad.jsonl --model bert-base-uncased/ --task qa --max-seconds 3600 --out my-reader/
    """

    positions = ("data",)
    only_for = tuple(f"{name} task {' '.join(tasks)}" for name, tasks in ONLY_FOR.items())

    model: File = opt("folder of a model, its id on the Hugging Face hub, or demo", REQUIRED)
    task: Annotated[str, TASKS] = opt("the task; see above", REQUIRED)  # type: ignore[misc]
    keep_checkpoints: bool = opt(
        "keep the checkpoints of a finished run beside the model, for a longer --resume", False
    )
    class_weights: Annotated[tuple[float | str, ...], WEIGHT, SEVERAL] = opt(
        "weights of the classes in the loss, in the order of the labels, or balanced, the inverse of their counts "
        "(default: all equal)",
        (),
    )
    negative_label: str | None = opt(
        "label for no relation or no type, which F1 ignores (default: no_relation if it occurs)"
    )
    max_span_width: Positive | None = opt("words of the longest entity, for span-ner (default: 8)")

    def __post_init__(self) -> None:
        super().__post_init__()
        if "balanced" in self.class_weights and len(self.class_weights) > 1:
            raise CommandError("--class-weights has balanced beside other weights, expected it alone")
        check_once([*self.data, *self.eval], "labels are looked up in it first: give files")

    def columns(self, rows: list[Any]) -> Any:
        if self.task not in ENTITY_TASKS:
            return super().columns(rows)
        rows = sorted(rows, key=operator.attrgetter("file", "line"))
        if self.task == "span-ner":
            width = {"width": self.max_span_width} if self.max_span_width else {}
            return data.LabelledEntities.found_in(rows, self.text or "text", **width)
        names = self.text or "text", self.label or "label"
        return data.LabelledMentions.found_in(rows, self.task, *names, negative=self.negative_label)

    def train(self, folder: Path) -> None:
        rows, held_out = self.labelled_rows(self.seed)
        gliner = dict(zip(GLINER_TASKS, (self._train_gliner, self._train_gliner2), strict=True))
        other = gliner | dict.fromkeys(LATE_TASKS, self._train_late)
        if self.task in (*GLINER_TASKS, *EMBEDDING_TASKS):
            other.get(self.task, self._train_encoder)(folder, rows, held_out)
            return
        columns = self.columns(rows if self.eval else [*rows, *held_out])
        if len(getattr(columns, "labels", ())) == 1 and not getattr(columns, "is_multiple", False):
            raise CommandError(f"{', '.join(self.data)} has the label {columns.labels[0]} alone, expected two or more")
        model, tokenizer = self._model_and_tokenizer(columns)
        model = self.with_adapters(model, self.task)
        length = self.example_length(self.model, model, LONGEST, tokenizer)
        if self.task == "qa":
            columns = dataclasses.replace(columns, stride=min(columns.stride, length // 4))
        train, measure, metric = self.examples(columns, rows, held_out, tokenizer, length)
        objective = self._weighted(columns, train) if self.class_weights else None
        options = {"compute_metrics": metric, "objective": objective}
        if self.task == "span-ner":
            options["data_collator"] = data.SpanCollator(tokenizer)
            lost = sum(len(row["spans"]) for row in rows) - sum((example["labels"] > 0).sum() for example in train)
            if lost:
                print(f"entities  {lost:,} cannot be found: too wide, beyond the tokens that are read, or within words")
        self.train_and_report(self.trainer(folder, model, train, measure, tokenizer, **options))

    def _weighted(self, columns: Any, examples: list[Any]) -> objectives.Supervised:
        """Return the loss with the weights of --class-weights; CommandError if they are not one for each class."""
        names = getattr(columns, "labels", ())
        if not names or getattr(columns, "is_multiple", False):
            raise CommandError("--class-weights is given, expected data with one class for each text or word")
        if self.class_weights == ("balanced",):
            labels = np.concatenate([np.ravel(example.get("labels", example.get("label"))) for example in examples])
            counts = np.bincount(labels[labels >= 0], minlength=len(names))
            weights = list(counts.sum() / (len(names) * np.maximum(counts, 1)))
        else:
            weights = [float(weight) for weight in self.class_weights]
        if len(weights) != len(names):
            raise CommandError(f"--class-weights has {len(weights)} numbers, the labels are {', '.join(names):.200}")
        pairs = zip(names, weights, strict=True)
        print(f"weights   {', '.join(f'{name} {weight:.4g}' for name, weight in pairs):.300}")
        return objectives.Supervised(self.settings.get("label_smoothing_factor", 0.0), weights)

    def _model_and_tokenizer(self, columns: Any) -> tuple[Any, Any]:
        """Return the model with the task's head, new unless it fits these labels, and its tokenizer."""
        source = read_settings(model_folder(self.model)).model_folder
        labels = getattr(columns, "labels", None)  # questions have none
        options = {} if labels is None else {"num_labels": len(labels) or 1}
        if self.task == "sequence":
            options["problem_type"] = columns.problem_type
        model = with_new_head(getattr(bertcore, columns.model_class), source, **options)
        if labels:
            model.config["id2label"] = {str(number): name for number, name in enumerate(labels)}
            model.config["label2id"] = {name: number for number, name in enumerate(labels)}
        tokenizer = bertcore.AutoTokenizer.from_pretrained(source)
        if self.task in ENTITY_TASKS:
            if model.takes_entities:
                tokenizer = bertcore.AutoTokenizer.from_pretrained(source, task=LUKE_TASKS[self.task])
                entities_of(tokenizer)  # raises for a folder without entity_vocab.json
            model.config.update(columns.config(tokenizer))
        if self.task == "token" and type(tokenizer.backend_tokenizer.model).__name__ == "BPE":
            tokenizer = bertcore.AutoTokenizer.from_pretrained(source, add_prefix_space=True)  # words come one by one
        if self.task in ("qa", *ENTITY_TASKS):
            tokenizer.padding_side = "right"  # answers and entities stand at columns counted from the left
        return model, tokenizer

    def _train_encoder(self, folder: Path, rows: list[Any], held_out: list[Any]) -> None:
        is_scored = self.task == "similarity"
        label = (self.label or "label") if is_scored else None
        if is_scored:
            required("scipy.stats")  # before the work
        columns = data.TextColumns((self.text or "text", self.text_pair or "text_pair"), label)
        train, measured = (list(columns.examples(some)) for some in (rows, held_out))
        if is_scored and len({example["label"] for example in train}) == 1:
            raise CommandError(f"all pairs have the {label} {train[0]['label']:g}: there is nothing to order them by")
        encoder = SentenceEncoder(model_folder(self.model))
        kind = objectives.CoSENTLoss if is_scored else objectives.MultipleNegativesRankingLoss
        objective = kind(encoder)
        encoder.max_seq_length = self.example_length(self.model, encoder.model, LONGEST_EMBEDDED, encoder.tokenizer)
        report = "pairs", lambda out: figures(out, measured, columns)
        self._train_by(objective, encoder, folder, (train, measured), *report)

    def _train_by(
        self, objective: Any, trained: Any, folder: Path, examples: Any, noun: str, score: Any, note: str = ""
    ) -> None:
        """Train the model of an encoder or a GLiNER by (examples, held-out ones), and report `score(folder)`."""
        rows, held_out = examples
        model = self.with_adapters(trained.model)
        trainer = self.trainer(folder, model, rows, held_out, trained.tokenizer, objective=objective)
        print(f"data      {len(rows):,} {noun}, {len(held_out):,} held out{note}")

        def measure(out: Path) -> dict[str, float]:
            if isinstance(trained, SentenceEncoder | MultiVectorEncoder):  # a GLiNER's files are those of its model
                trained.model = trainer.model
                trained.save_pretrained(out)
            return score(out) if held_out else {}

        self.train_and_report(trainer, measure)

    def _train_late(self, folder: Path, rows: list[Any], held_out: list[Any]) -> None:
        is_distilled = self.task == "late-distillation"
        label = (self.label or "label") if is_distilled else None
        columns = data.QueriedTexts(self.text or "text", self.text_pair or "text_pair", label)
        train, measured = columns.examples(rows), columns.examples(held_out)
        if len({len(example) for example in [*train, *measured]}) > 1:
            raise CommandError("records have different numbers of negatives, expected the same in all")
        encoder = with_new_head(MultiVectorEncoder, model_folder(self.model), document_length=self.max_length)
        loss = "MultiVectorDistillKLDivLoss" if is_distilled else "MultiVectorMultipleNegativesRankingLoss"
        objective = getattr(multi_vector, loss)(encoder)

        def first_of_all(out: Path) -> dict[str, float]:
            queries = encoder.encode_query([example["query"] for example in measured], truncation=True)
            documents = encoder.encode_document([example["document"] for example in measured], truncation=True)
            nearest = encoder.similarity(queries, documents).argmax(axis=1)
            return {"first_of_all": float((nearest == np.arange(len(measured))).mean())}

        self._train_by(objective, encoder, folder, (train, measured), "queries", first_of_all)

    def _check_gliner(self) -> None:
        if self.max_length or self.lora:
            raise CommandError(f"--max-length or --lora is given with --task {self.task}, which has no use for it")

    def _train_gliner2(self, folder: Path, rows: list[Any], held_out: list[Any]) -> None:
        self._check_gliner()
        model = GLiNER2.from_pretrained(model_folder(self.model, "gliner"))
        objective = objectives.GLiNER2Schemas(model)
        collate = objective.collator(model.tokenizer)
        for record in sorted([*rows, *held_out], key=operator.attrgetter("file", "line")):
            collate([record])

        def score(out: Path) -> dict[str, float]:
            measured, tuned = [read_record(row) for row in held_out], GLiNER2.from_pretrained(out)
            schemas = [each.schema for each in measured]
            results = tuned.batch_extract([each.text for each in measured], schemas, truncation=True)
            return _of_sets(map(LabelledText.facts, measured, results), [each.facts() for each in measured])

        self._train_by(objective, model, folder, (rows, held_out), "texts", score)

    def _train_gliner(self, folder: Path, rows: list[Any], held_out: list[Any]) -> None:
        self._check_gliner()
        columns = data.LabelledEntities(nested=True)
        own, others = ([columns.entities(*each[::-1]) for each in enumerate(some)] for some in (rows, held_out))
        counts = Counter(kind for some in [*own, *others] for _, kind in some)
        if not counts:
            raise CommandError(f"{', '.join(self.data)} has no entities in 'spans', expected some")
        model = GLiNER.from_pretrained(model_folder(self.model, "gliner"))
        labels = [kind for kind, _ in counts.most_common(MOST_KINDS)]
        model.inference([], labels)
        note = f"; {len(counts)} labels ({', '.join(labels[:8]):.200})"

        def score(out: Path) -> dict[str, float]:
            texts = [row["text"] for row in held_out]
            found = GLiNER.from_pretrained(out).inference(texts, labels, truncation=True)
            given = [{(each["start"], each["end"], each["label"]) for each in some} for some in found]
            return _of_sets(given, [{(*span, kind) for span, kind in some} for some in others])

        objective = objectives.GLiNEREntities(model.model)
        self._train_by(objective, model, folder, (rows, held_out), "texts", score, note)


def _of_sets(found: Iterable[set[Any]], expected: Sequence[set[Any]]) -> dict[str, float]:
    """Return precision, recall and F1 of what was found in each text."""
    counts = ([len(one & other), len(one), len(other)] for one, other in zip(found, expected, strict=True))
    return of_counts(*map(sum, zip(*counts, strict=True)))


def with_new_head(kind: Any, source: Path, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NewlyInitialisedWarning)
        return getattr(kind, "from_pretrained", kind)(source, **options)
