"""The commands distill and calibrate: a smaller model that learns from a larger one, and calibrated probabilities."""

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any

import click
import numpy as np
from click.core import ParameterSource

import bertcore
from bertcore.arguments import required
from bertcore.cli import training
from bertcore.cli.finetune import LabelledData, Labels, with_new_head
from bertcore.cli.inputs import WithModel, model_folder, output_stream, some_texts
from bertcore.cli.options import (
    NUMBER,
    REQUIRED,
    SEVERAL,
    Above0,
    CommandError,
    File,
    Kind,
    Number,
    Positive,
    Seed,
    Share,
    opt,
)
from bertcore.cli.pretrain import config_of, kind_of, with_ids_of
from bertcore.models.architectures import class_for
from bertcore.models.student import student_from_teacher, with_labels_of, with_layers
from bertcore.tasks.calibration import METHODS, calibration_as_json, expected_calibration_error
from bertcore.tasks.pipelines import pipeline
from bertcore.tasks.sequence_scores import FUNCTIONS, published_function, softmax
from bertcore.tasks.static import distill_static
from bertcore.training import data, metrics, objectives

DIMS = 256  # of static embeddings
OF_STATIC = ("static", "teacher", "out", "vocabulary", "dims", "backend", "traceback")
LONGEST = {"sequence": 512, "token": 512, "mlm": 128}  # tokens, for models that take more
MODEL_CLASSES = {
    "sequence": bertcore.AutoModelForSequenceClassification,
    "token": bertcore.AutoModelForTokenClassification,
    "mlm": bertcore.AutoModelForMaskedLM,
}
TERMS = {
    "soft": objectives.SoftTargets, "cosine": objectives.HiddenCosine, "states": objectives.HiddenStates,
    "scores": objectives.AttentionScores, "attention": objectives.AttentionDistributions,
    "relations": objectives.Relations,
}  # fmt: skip


def _term(text: str) -> tuple[str, float]:
    name, _, weight = text.partition("=")
    if name not in TERMS:
        raise ValueError(text)
    return name, NUMBER.read(weight) if weight else 1.0


def _layers(text: str) -> list[int] | str:
    return text if text == "none" else [int(part) for part in text.split(",")]


TERM = Kind(_term, f"NAME or NAME=WEIGHT with one of {', '.join(TERMS)}", "TERM")
LAYERS = Kind(_layers, "numbers of layers such as 0,2,4, or none", "LAYERS")


class Distill(Labels, training.Training):
    """Train a smaller model to imitate a larger one.

    The teacher is a checkpoint of the --task: a classifier of texts (sequence) or of words (token) on labelled DATA, as
    `bertcore finetune` takes it; or a masked language model (mlm) on files or folders of texts, as `bertcore pretrain`
    takes them. The student is the teacher with fewer --layers; or --student, a preset or a config file (.json),
    initialised with layers of the teacher (--take), or a checkpoint. It uses the teacher's tokenizer.

    The student learns from DATA and from --terms, each NAME or NAME=WEIGHT:

      soft       the teacher's probabilities at --temperature (Hinton 2015)
      cosine     the direction of the last hidden states (DistilBERT)
      states     hidden states of all layers, through a learned map (TinyBERT)
      scores     scores of attention in all layers (TinyBERT)
      attention  probabilities of the last layer's attention (MiniLM)
      relations  relations of its queries, keys and values (MiniLMv2)

    Ctrl-C ends a run when its checkpoint is written; the same command with --resume continues to the same result.

    With --static nothing is trained and no DATA is read: the student is a table with one vector per token, as Model2Vec
    distils it from a sentence encoder. It embeds texts some hundred times as fast, but less accurately.

    Examples:
        bertcore distill reviews.csv --teacher my-classifier/ --layers 3 --task sequence --out my-fast-classifier/
        bertcore distill reviews.csv --teacher my-classifier/ --student tiny.json --take none --task sequence \\
            --terms soft states=0.1 --out tiny-classifier/
        bertcore distill corpus/ --teacher bert-base-uncased/ --student distilbert-base-uncased --task mlm \\
            --terms soft=5 cosine --label-weight 2 --out my-distilbert/
        bertcore distill --static --teacher demo --out minilm-static/
    """

    positions = ("data",)
    needs = ("vocabulary static", "dims static")
    only_for = (
        *("eval task sequence token", "text task sequence token", "text_pair task sequence"),
        *("label task sequence token", "label_kind task sequence", "labelled_only task mlm"),
    )

    data: tuple[File, ...] = ()
    teacher: File = opt("folder of the teacher, its id on the Hugging Face hub, or demo", REQUIRED)
    static: bool = opt("make static embeddings of the teacher; see above", False)
    vocabulary: File | None = opt("file of words and phrases, one a line, to add to the vocabulary, with --static")
    dims: Positive | None = opt("dimensions of static embeddings (default: 256)")
    student: File | None = opt("a preset, config file or checkpoint; see above")
    layers: Positive | None = opt("number of layers of a student that otherwise equals the teacher")
    task: Annotated[str | None, tuple(MODEL_CLASSES)] = opt("the task; see above")
    take: Annotated[list[int] | str | None, LAYERS] = opt(
        "the teacher's layers that initialise a new student, from 0, such as 0,2,4 (default: evenly spaced), or none"
    )
    terms: Annotated[tuple[tuple[str, float], ...], TERM, SEVERAL] = opt(
        "the terms of the loss; see above (default: soft)", (("soft", 1.0),)
    )
    temperature: Above0 | None = opt("temperature of the term soft (default: 2)")
    labelled_only: bool = opt("apply the term soft only to masked tokens, for mlm", False)
    label_weight: Number = opt("weight of DATA's own labels", 1.0)
    column: str = opt("column of the texts in JSON or tables, for mlm", "text")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.static:
            given = click.get_current_context()
            for each in given.command.params:
                is_given = given.get_parameter_source(str(each.name)) is ParameterSource.COMMANDLINE
                if is_given and each.name not in OF_STATIC:
                    known = "--teacher, --out, --vocabulary and --dims"
                    raise CommandError(f"{each.opts[-1]} is given with --static, which takes {known}")
            return
        if not self.data:
            raise CommandError("DATA is missing, expected files, or --static")
        if self.task is None:
            raise CommandError(f"--task is missing, expected one of {', '.join(MODEL_CLASSES)}")
        if (self.student is None) == (self.layers is None):
            what = "both missing" if self.student is None else "both given"
            raise CommandError(f"--student and --layers are {what}, expected one of them")
        training.check_once([*self.data, *self.eval], "it is read more than once: give files")
        names = [name for name, _ in self.terms]
        if twice := [name for name in names if names.count(name) > 1]:
            raise CommandError(f"--terms has {twice[0]} twice")
        if (self.temperature or self.labelled_only) and "soft" not in names:
            given = "--temperature" if self.temperature else "--labelled-only"
            raise CommandError(f"{given} is for the term soft, which --terms does not have")

    def train(self, folder: Path) -> None:
        if self.static:
            words = None if self.vocabulary is None else some_texts(self.vocabulary, argument="--vocabulary")
            made = distill_static(model_folder(self.teacher), folder, vocabulary=words, pca_dims=self.dims or DIMS)
            print(f"saved     {folder}: {len(made.model.table):,} tokens, {made.embedding_dimension} dimensions")
            return
        teacher, tokenizer = self._teacher()
        student = self._student(teacher, tokenizer)
        named = {self.teacher: teacher, self.student or "the student": student}
        length = min(self.example_length(name, model, LONGEST[self.task], tokenizer) for name, model in named.items())
        prepared = self._masked_words if self.task == "mlm" else self._labelled
        train, held_out, measure = prepared(folder, teacher, tokenizer, length)
        for whose, model in (("teacher", teacher), ("student", student)):
            layers = model.spec.num_layers
            print(f"{whose}   {model.num_parameters():,} parameters, {layers} layer{'s' * (layers > 1)}")
        objective = self._objective(teacher)
        if held_out is not None:
            own = measure | {"objective": objective.objective}
            measured = self.trainer(folder, teacher, None, held_out, tokenizer, **own).evaluate()
            training.print_metrics("teacher", measured)
        self.train_and_report(self.trainer(folder, student, train, held_out, tokenizer, objective=objective, **measure))

    def _teacher(self) -> tuple[Any, Any]:
        source, kind = model_folder(self.teacher), MODEL_CLASSES[self.task]
        teacher = with_new_head(kind, source)
        if teacher.newly_initialised:
            missing = teacher.newly_initialised[0]
            raise CommandError(f"{self.teacher} has no head for --task {self.task} ({missing} is missing)")
        if self.task != "mlm" and class_for(teacher.config) not in (kind, bertcore.AutoModel):
            raise CommandError(f"{self.teacher} has a head for another task than {self.task}")
        return teacher, bertcore.AutoTokenizer.from_pretrained(source)

    def _student(self, teacher: Any, tokenizer: Any) -> Any:
        kind = MODEL_CLASSES[self.task]
        if self.student and kind_of(self.student) == "known":
            if self.take is not None:
                raise CommandError(f"--take is for a new student, {self.student} has weights of its own")
            source = model_folder(self.student)
            if training.fingerprint(bertcore.AutoTokenizer.from_pretrained(source)) != training.fingerprint(tokenizer):
                raise CommandError(f"{self.student} has another tokenizer than {self.teacher}")
            options = {} if self.task == "mlm" else {"num_labels": len(_labels_of(teacher))}
            student = with_new_head(kind, source, **options)
            student.config = with_labels_of(teacher, student.config)
            return student
        if self.layers:
            if self.layers > teacher.spec.num_layers:
                raise CommandError(f"--layers is {self.layers}, the teacher has {teacher.spec.num_layers}")
            config = with_layers(teacher.config, self.layers)
        else:
            config = with_ids_of(tokenizer, config_of(self.student)) | {"vocab_size": teacher.spec.vocab_size}
        if self.take == "none":
            return kind.from_config(with_labels_of(teacher, config), seed=self.seed)
        try:
            return student_from_teacher(config, teacher, self.take, seed=self.seed)
        except ValueError as error:
            raise CommandError(f"{error}: --take says which layers the student begins with, or none") from error

    def _objective(self, teacher: Any) -> objectives.Distillation:
        options = {"soft": {"temperature": self.temperature or 2.0, "labelled_only": self.labelled_only}}
        terms = (TERMS[name](weight=weight, **options.get(name, {})) for name, weight in self.terms)
        own = objectives.MaskedLM() if self.task == "mlm" else objectives.Supervised()
        return objectives.Distillation(teacher, *terms, objective=own, objective_weight=self.label_weight)

    def _labelled(self, folder: Path, teacher: Any, tokenizer: Any, length: int) -> tuple[Any, Any, dict[str, Any]]:
        rows, held_out = self.labelled_rows(self.seed)
        columns = self.columns(rows if self.eval else [*rows, *held_out])
        if self.task == "sequence":
            kind = teacher.config.get("problem_type") or ("regression" if len(_labels_of(teacher)) == 1 else None)
            if columns.problem_type != kind and (kind is not None or columns.problem_type == "regression"):
                known = kind or "classification"
                raise CommandError(f"the labels are for {columns.problem_type}, the teacher is for {known}")
        if columns.labels:
            columns = dataclasses.replace(columns, labels=_labels_of(teacher))
        train, measure, metric = self.examples(columns, rows, held_out, tokenizer, length)
        return train, measure or None, {"compute_metrics": metric}

    def _masked_words(self, folder: Path, teacher: Any, tokenizer: Any, length: int) -> tuple[Any, Any, dict[str, Any]]:
        facts = {"corpus": self.data, "objective": "mlm"}
        given = self, folder / training.STORED, objectives.MaskedLM(), tokenizer, length, facts
        examples = training.from_first(lambda: training.stored_examples(*given))
        measured = metrics.combined(metrics.masked_accuracy, metrics.perplexity)
        options = {"compute_metrics": measured, "preprocess_logits_for_metrics": metrics.predicted_words}
        return *training.held_out_parts(examples, self.held_out), options


def _labels_of(teacher: Any) -> tuple[str, ...]:
    """Return the names of the teacher's classes, or their numbers if they have no names."""
    named = teacher.config.id2label.items()
    return tuple(str(number) if name == f"LABEL_{number}" else name for number, name in named)


class Calibrate(LabelledData, WithModel):
    """Calibrate a classifier's probabilities, so that they match its accuracy.

    DATA is labelled texts that the model was not trained on, in the form of `bertcore finetune --task sequence`. The
    --method is fitted to a part of them; the others, or --eval, measure the expected calibration error before and
    after: the distance between the probability of the best class and the accuracy, over 15 bins.

      temperature  divides the scores by a number; the best class stays the same
      isotonic     a rising function of each class's probability; needs many texts, and may change the best class

    Pass the file to `bertcore classify --calibration`.

    Examples:
        bertcore calibrate sentiment/ held-out.csv --text review --out sentiment.json
        bertcore calibrate mnli/ dev.jsonl --text premise --text-pair hypothesis --method isotonic --out mnli.json
        bertcore classify sentiment/ --text "What a film." --calibration sentiment.json
    """

    positions = ("model", "data")
    task = "sequence"

    out: File = opt("the file to write the calibration to", REQUIRED)
    method: Annotated[str, ("temperature", "isotonic")] = opt("method of calibration", "temperature")
    held_out: Share = 0.5
    max_length: Positive | None = opt("tokens of a text (default: the model's)")
    seed: Seed = opt("seed of the choice of texts that are held out", 42)
    json: bool = opt("print one JSON object", False)

    def __post_init__(self) -> None:
        super().__post_init__()
        training.check_once([*self.data, *self.eval], "a part of it is held out: give files")
        if self.out == "-":
            raise CommandError("--out is -, expected the name of a file")

    def run(self) -> None:
        required(METHODS[self.method].needs)  # before the work
        folder = model_folder(self.model)
        rows, held_out = self.labelled_rows(self.seed)
        if not held_out:
            raise CommandError("no texts are held out, expected some to measure the calibration")
        with output_stream(self.out, seekable=False) as stream, self.chosen_backend():
            classifier = self._classifier(folder)
            fitted, measured = (self._scores(classifier, some) for some in (rows, held_out))
            calibration = METHODS[self.method]()
            calibration.fit(FUNCTIONS[calibration.takes](fitted[0]), fitted[1])
            held = calibration_as_json(calibration, list(classifier.id2label.values()))
            stream.write(f"{json.dumps(held, ensure_ascii=False)}\n".encode())
        found: dict[str, Any] = {"fitted_to": len(rows), "held_out": len(held_out)}
        found |= {"temperature": calibration.temperature} if self.method == "temperature" else {}
        scores, right = measured  # of texts that it was not fitted to, before and after
        tables = softmax(scores), calibration.transform(FUNCTIONS[calibration.takes](scores))
        found["calibration_error"] = [float(expected_calibration_error(table, right)) for table in tables]
        found["accuracy"] = [float((table.argmax(axis=1) == right).mean()) for table in tables]
        as_json = json.dumps({"method": self.method, **found, "file": self.out})
        print(as_json if self.json else _effect_lines(found, self.out))

    def _classifier(self, folder: Path) -> Any:
        """Return the classifier; CommandError if it does not choose one of several classes."""
        classifier = pipeline("text-classification", folder, dtype=self.dtype, max_length=self.max_length)
        function = published_function(classifier.model.config.get("problem_type"), len(classifier.id2label))
        if function != "softmax" or len(set(classifier.id2label.values())) < len(classifier.id2label):
            expected = "a classifier that chooses one of several named classes"
            raise CommandError(f"MODEL is {self.model}, expected {expected}")
        return classifier

    def _scores(self, classifier: Any, rows: list[Any]) -> tuple[Any, Any]:
        """Return the scores of labelled texts, float64 (texts, classes), and their right classes, (texts,)."""
        names = tuple(classifier.id2label.values())
        columns = data.LabelledTexts(self.text or "text", self.text_pair, self.label or "label", names)
        texts, right = zip(*columns.inputs(rows), strict=True)
        answers = classifier(list(texts), top_k=None, function_to_apply="none")
        found = [{each["label"]: each["score"] for each in answer} for answer in answers]
        return np.array([[scores[name] for name in names] for scores in found]), np.array(right)


def _effect_lines(found: dict[str, Any], file: str) -> str:
    lines = [f"texts     {found['fitted_to']:,} fitted to, {found['held_out']:,} held out"]
    if "temperature" in found:
        lines.append(f"scores    divided by {found['temperature']:.4f}")
    (error, new_error), (accuracy, new_accuracy) = found["calibration_error"], found["accuracy"]
    lines.append(f"error     {error:.4f} before, {new_error:.4f} after (expected calibration error)")
    return "\n".join([*lines, f"accuracy  {accuracy:.4f} before, {new_accuracy:.4f} after", f"file      {file}"])
