"""The commands that run a pipeline: answer, classify, fill-mask, generate and tag."""

import contextlib
import functools
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import bertcore
from bertcore.arguments import printable
from bertcore.cli import inputs
from bertcore.cli.inputs import Output, PairsCommand, Reading, TextsCommand, Truncation, model_folder
from bertcore.cli.options import REQUIRED, CommandError, File, LiteralText, Positive, Seed, opt

ENTITY_TASKS = {
    "EntityClassification": "entity-classification",
    "EntityPairClassification": "relation-extraction",
    "EntitySpanClassification": "span-ner",
}


class Pipeline(TextsCommand, Reading, Output):
    """A command that runs a pipeline."""

    title = Reading.title

    stride: Seed | None = opt("tokens that neighbouring windows share (--truncation chunk)")

    def given(self, *names: str) -> dict[str, Any]:
        """Return the arguments of the pipeline's calls from the command line."""
        found = {name: getattr(self, name) for name in (*names, "max_length", "stride")}
        return {name: value for name, value in found.items() if value is not None} | self.reading_options()

    def loaded(self, task: str, folder: Path) -> Any:
        return bertcore.pipeline(task, folder, dtype=self.dtype, show_progress_bar=False)

    def answer(self, task: str, show: Callable[[Any], str], **options: Any) -> None:
        """Answer the inputs with the pipeline of a task; other arguments are as for `write_answers`."""
        folder = model_folder(self.model)
        self.write_answers(lambda: self.loaded(task, folder), show, **options)

    def write_answers(
        self, load: Callable[[], Any], show: Callable[[Any], str], read: Callable[..., Any] = iter, **options: Any
    ) -> None:
        """Load a pipeline, and write its answer to each of `read(inputs)`: as JSON, or as `show` formats it."""
        stream = inputs.output_stream(self.output, seekable=False)
        with self.inputs() as given, stream as output, self.chosen_backend():
            for answer in load()(read(given), **options):
                line = json.dumps(answer, ensure_ascii=False) if self.json else show(answer)
                output.write((line + "\n").encode("utf-8"))


def entity_task(folder: Path) -> str | None:
    """Return the pipeline's task for a model of entities; None for any other."""
    from bertcore.checkpoint import read_config

    names = read_config(folder).get("architectures")
    found = (str(name).partition("For")[2] for name in names) if isinstance(names, list) else ()
    return next((ENTITY_TASKS[name] for name in found if name in ENTITY_TASKS), None)


def records(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield the JSON object of each line; CommandError for a line that is anything else."""
    from bertcore.training.data.files import json_object

    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield json_object(line)
            except ValueError as error:
                raise CommandError(f"line {number}: {error}") from error


def columns(rows: Iterable[tuple[str, ...]]) -> str:
    """Return rows of words with aligned columns, "-" for none."""
    return inputs.aligned(list(rows)) or "-"


class Answer(Pipeline):
    """Answer a question with a span of a text of any length, which is read in overlapping windows.

    FILE is one text. Each answer is a line: its probability, its first and last + 1 character, and its text.

    Examples:
        bertcore answer squad/ "Who wrote the notes?" --text "Ada Lovelace wrote the notes in 1843."
        bertcore answer squad/ "Who wrote the notes?" book.txt --top-k 3
        bertcore answer squad2/ "Who wrote the notes?" book.txt --no-answer
    """

    positions = ("model", "question", "file")

    question: LiteralText = opt("the question", REQUIRED)
    file: File | None = opt("file of one text, or - for standard input, which is also read if nothing else is given")
    top_k: Positive = opt("number of answers", 1)
    max_answer_len: Positive | None = opt("tokens of an answer (default: 15)")
    no_answer: bool = opt("allow an empty answer, if the text has none", False)
    truncation: Truncation = "chunk"

    def run(self) -> None:
        options = self.given("top_k", "max_answer_len") | {"handle_impossible_answer": self.no_answer}
        self.answer("question-answering", _answers, **options)

    @contextlib.contextmanager
    def inputs(self) -> Iterator[Iterable[Any]]:
        texts = self.text or [_whole_text("-" if self.file is None else self.file)]
        yield ({"question": self.question, "context": text} for text in texts)


def _whole_text(path: str) -> str:
    from bertcore.tasks.texts import LONGEST_LINE

    with inputs.input_stream(path) as (stream, name):
        try:
            if len(found := stream.read(LONGEST_LINE + 1)) > LONGEST_LINE:
                raise CommandError(f"{name} has more than {LONGEST_LINE} bytes, expected one text")
            text = found.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise CommandError(f"{name} is not UTF-8 at byte {error.start + 1}") from error
    if not text:
        raise CommandError(f"{name} is empty, expected a text")
    return text


def _answers(answers: list[dict[str, Any]] | dict[str, Any]) -> str:
    return columns((*_place(each), each["answer"]) for each in (answers if isinstance(answers, list) else [answers]))


def _place(found: dict[str, Any]) -> tuple[str, str]:
    return f"{found['score']:.4f}", f"{found['start']}-{found['end']}"


class Classify(PairsCommand, Pipeline):
    """Classify texts, or pairs of texts.

    With --labels the classes are your own (zero-shot classification); this needs a model of natural language inference.

    With --ensemble several models with the same classes vote: soft by the mean of their probabilities, hard by the
    share of models that predict a class. Disagreement is the share of models that predict a different class.

    A model of relations or of types of entities (`bertcore finetune --task relation-extraction`) takes JSON lines:
    {"text": "Ada was born in London", "spans": [[0, 3], [16, 22]]}.

    A folder of Model2Vec's StaticModelPipeline (static embeddings with a head) classifies single texts.

    A line of output is a text's class and its probability; --json has transformers' form, and the shares of all classes
    for an ensemble.

    Examples:
        bertcore classify sentiment/ --text "What a film." --text "Not again."
        bertcore classify mnli/ --text "Paris is in spring bloom." --labels "travel, cooking, politics"
        bertcore classify mnli/ pairs.tsv --pairs --truncation chunk
        bertcore classify seed-1/ --ensemble seed-2/ --ensemble seed-3/ --vote hard < reviews.txt
        bertcore classify relations/ pairs.jsonl --json
    """

    apart = ("ensemble top_k calibration", "labels pairs text_pair top_k ensemble calibration")
    needs = ("vote ensemble", "template labels", "multi_label labels")

    top_k: Positive | None = opt("classes of a text, the best first (default: 1)")
    labels: str | None = opt("the classes, with commas between them, for a model of natural language inference")
    template: str | None = opt('the sentence for a class of --labels (default: "This example is {}.")')
    multi_label: bool = opt("several of --labels may be right", False)
    calibration: File | None = opt("file of `bertcore calibrate` that corrects the probabilities")
    ensemble: tuple[File, ...] = opt("another model that votes; may be repeated", ())
    vote: Annotated[str | None, ("soft", "hard")] = opt("way to vote with --ensemble (default: soft)")
    merge: Annotated[str | None, ("mean", "max")] = opt(
        "how to merge the windows of a text with --truncation chunk (default: mean)"
    )

    def run(self) -> None:
        from bertcore.checkpoint.files import HEAD_NAME

        if self.labels is not None:
            options = self.given("merge") | {"candidate_labels": self.labels, "multi_label": self.multi_label}
            options |= {} if self.template is None else {"hypothesis_template": self.template}
            self.answer("zero-shot-classification", _zero_shot, **options)
            return
        folders = [model_folder(name) for name in (self.model, *self.ensemble)]
        if (folders[0] / HEAD_NAME).is_file():
            self._classify_by_static(folders[0])
            return
        task = entity_task(folders[0])
        if task in ("entity-classification", "relation-extraction"):
            why = f"expected JSON lines with text and spans alone: {self.model} is of {task}"
            self.refuse("pairs text_pair ensemble calibration merge", why)
            self.answer(task, _classes, read=records, **self.given("top_k"))
            return
        if self.ensemble:
            self.write_answers(lambda: self._voters(folders), _vote, **self.given("merge"))
        else:
            options = self.given("merge") | {"top_k": self.top_k or 1}
            self.write_answers(lambda: self._classifier(folders[0]), _classes, **options)

    def _classify_by_static(self, folder: Path) -> None:
        """Classify by static embeddings with a head, as Model2Vec saves them."""
        why = f"which {self.model}, static embeddings with a head, has no use for"
        self.refuse("pairs text_pair ensemble calibration dtype max_length stride", why)
        from bertcore.tasks.static import StaticModelPipeline

        options = self.reading_options() | ({} if self.merge is None else {"merge": self.merge})
        options |= {"show_progress_bar": False}
        load = functools.partial(StaticModelPipeline.from_pretrained, folder)
        self.write_answers(lambda: load().answers, _classes, top_k=self.top_k or 1, **options)

    def _classifier(self, folder: Path) -> Any:
        classifier = self.loaded("text-classification", folder)
        if self.calibration is None:
            return classifier
        from bertcore.tasks.calibration import read_calibration

        calibration = read_calibration(self.calibration, list(classifier.id2label.values()))
        return functools.partial(classifier, calibration=calibration)

    def _voters(self, folders: list[Path]) -> Any:
        from bertcore.tasks.ensemble import Ensemble

        return Ensemble([self.loaded("text-classification", each) for each in folders], vote=self.vote or "soft")


def _classes(answer: list[dict[str, Any]] | dict[str, Any]) -> str:
    several = answer if isinstance(answer, list) else [answer]
    return "\t".join(f"{printable(each['label'])} {each['score']:.4f}" for each in several) or "-"


def _vote(answer: dict[str, Any]) -> str:
    return f"{_classes(answer)}\tdisagreement {answer['disagreement']:.2f}"


def _zero_shot(answer: dict[str, Any]) -> str:
    pairs = zip(answer["labels"], answer["scores"], strict=True)
    return _classes([{"label": label, "score": score} for label, score in pairs])


class FillMask(Pipeline):
    """Predict the words for the mask in a text: [MASK], or <mask> in models that spell it that way.

    Several masks are predicted separately, each with the others masked. --json has transformers' form.

    Examples:
        bertcore fill-mask bert-base-uncased/ --text "Paris is the [MASK] of France."
        bertcore fill-mask bert-base-uncased/ --text "[MASK] is the [MASK] of France." --top-k 3 --json
        bertcore fill-mask bert-base-uncased/ masked.txt --targets capital,centre
    """

    top_k: Positive = opt("words for each mask", 5)
    targets: str | None = opt("the words to choose from, with commas between them (default: all)")
    truncation: Truncation = "error"

    def run(self) -> None:
        targets = {} if self.targets is None else {"targets": self.targets.split(",")}
        self.answer("fill-mask", _words, **self.given("top_k"), **targets)


def _words(answer: list[Any]) -> str:
    masks = answer if isinstance(answer[0], list) else [answer]
    tables = [columns((word["token_str"], f"{word['score']:.4f}") for word in words) for words in masks]
    if len(tables) == 1:
        return tables[0]
    return "\n\n".join(f"mask {number}\n  " + table.replace("\n", "\n  ") for number, table in enumerate(tables, 1))


class Generate(Pipeline):
    """Continue texts, word by word, with a causal language model (GPT-2).

    Words are drawn at random, unless --greedy or --beams is given. Each text is a line, with its line ends written
    \\\\n; --json has transformers' form.

    Examples:
        bertcore generate gpt2/ --text "Once upon a time" --max-new-tokens 40 --seed 1
        bertcore generate gpt2/ --text "The capital of France is" --greedy --max-new-tokens 5
        bertcore generate gpt2/ beginnings.txt --beams 4 --count 2 --json
    """

    apart = ("greedy beams",)

    max_new_tokens: Positive | None = opt("the most tokens to append (default: 256)")
    greedy: bool = opt("take the likeliest token each time", False)
    beams: Positive | None = opt("follow N continuations, and take the likeliest")
    temperature: float | None = opt("temperature of the probabilities; low ones draw likely tokens (default: 0.7)")
    top_k: Positive | None = opt("draw from the N likeliest tokens")
    top_p: float | None = opt("draw from the fewest tokens whose probabilities sum to P")
    count: Positive | None = opt("continuations of each text (default: 1)")
    seed: Seed | None = opt("seed of the random choices (default: a new one each time)")
    truncation: Truncation = "error"

    def run(self) -> None:
        options = self.given("max_new_tokens", "temperature", "top_k", "top_p", "seed")
        options |= {"num_beams": self.beams or 1, "num_return_sequences": self.count or 1}
        options |= {"do_sample": False} if self.greedy else {}
        self.answer(
            "text-generation", lambda found: "\n".join(printable(it["generated_text"]) for it in found), **options
        )


class Tag(Pipeline):
    """Find the entities in texts (names of people, places, ...), or the class of each token.

    The model classifies tokens, or spans (`bertcore finetune --task span-ner`), for which a FILE that ends with .jsonl
    has JSON lines with text. With --labels the kinds of entities are your own; this needs a GLiNER or GLiNER2 model.
    With --schema a GLiNER2 model finds entities, relations, records and classes; FILE has the keys of
    `Schema.from_dict`, for instance {"relations": ["works for"], "classifications": [{"task": "mood", "labels":
    ["good", "bad"]}]}, and the answer to each text is a line of JSON, as from `GLiNER2.extract`; --json adds scores and
    characters.

    Each entity is a line: its class, its probability, its first and last + 1 character, and its text; an empty line
    ends a text. --json has transformers' form, a text a line.

    Examples:
        bertcore tag ner/ --text "Ada Lovelace was born in London."
        bertcore tag ner/ articles.txt --json --truncation chunk > entities.jsonl
        bertcore tag urchade/gliner_small-v2.1 articles.txt --labels "person, city, work of art"
        bertcore tag fastino/gliner2-base-v1 articles.txt --schema schema.json > found.jsonl
    """

    apart = ("labels aggregation max_length stride", "schema labels aggregation max_length stride")
    needs = ("threshold labels schema", "nested labels", "multi_label labels")

    aggregation: Annotated[str, ("none", "simple", "first", "average", "max")] = opt(
        "how tokens are joined to entities; none gives the class of each token", "simple"
    )
    labels: str | None = opt("the kinds of entities, with commas between them, for a GLiNER or GLiNER2 model")
    schema: File | None = opt("a JSON file that describes what to find, for a GLiNER2 model")
    threshold: float | None = opt("entities of --labels and spans of --schema have higher scores (default: 0.5)")
    nested: bool = opt("entities of --labels may be nested", False)
    multi_label: bool = opt("entities may have several of --labels", False)

    def __post_init__(self) -> None:
        super().__post_init__()
        name = "--schema" if self.labels is None else "--labels"
        if (self.labels is not None or self.schema is not None) and self.truncation == "chunk":
            raise CommandError(f"{name} and --truncation chunk are both given, expected one of them")

    def run(self) -> None:
        threshold = {} if self.threshold is None else {"threshold": self.threshold}
        if self.schema is not None:
            self._extract(self.schema, threshold)
            return
        if self.labels is not None:
            options = {"labels": self.labels, "flat_ner": not self.nested, "multi_label": self.multi_label, **threshold}
            load = functools.partial(self.loaded, "zero-shot-ner", model_folder(self.model, "gliner"))
            self.write_answers(load, _labelled, **self.reading_options(), **options)
            return
        from bertcore.tasks.gliner import is_gliner

        if is_gliner(folder := model_folder(self.model)):
            raise CommandError(f"{self.model} finds entities of any labels, expected --labels or --schema")
        if entity_task(folder) != "span-ner":
            self.answer("token-classification", _entities, **self.given(), aggregation_strategy=self.aggregation)
            return
        self.refuse("aggregation", f"and {self.model} classifies spans, which it is not for")
        read = {"read": records} if (self.file or "").endswith(".jsonl") else {}
        self.answer("span-ner", _entities, **self.given(), **read)

    def _extract(self, file: str, threshold: dict[str, float]) -> None:
        """Write what a GLiNER2 model finds of the schema in `file`."""
        from bertcore.checkpoint.files import read_json_object
        from bertcore.tasks.gliner2 import GLiNER2, Schema

        data = read_json_object(Path(file))
        try:
            schema = Schema.from_dict(data)
        except (TypeError, ValueError) as error:
            raise CommandError(f"{file}: {error}") from error
        load = functools.partial(GLiNER2.from_pretrained, model_folder(self.model, "gliner"), dtype=self.dtype)
        shown = {"include_confidence": self.json, "include_spans": self.json}
        options = {"schemas": schema, **threshold, **shown, **self.reading_options()}
        show = functools.partial(json.dumps, ensure_ascii=False)
        self.write_answers(lambda: load().extract_stream, show, **options)


def _entities(entities: list[dict[str, Any]]) -> str:
    rows = ((each.get("entity_group") or each["entity"], *_place(each), each["word"]) for each in entities)
    return columns(rows) + "\n"


def _labelled(entities: list[dict[str, Any]]) -> str:
    return _entities([{"entity": each["label"], "word": each["text"], **each} for each in entities])
