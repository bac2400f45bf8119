"""The command pretrain: a model learns from raw texts."""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

import bertcore
from bertcore.checkpoint.files import read_json_object
from bertcore.cli import training
from bertcore.cli.inputs import model_folder
from bertcore.cli.options import REQUIRED, Above0, CommandError, File, Positive, Share, opt
from bertcore.models.replaced_tokens import EMBEDDINGS, generator_config
from bertcore.presets import PRESETS, preset_config
from bertcore.tokenization import AutoTokenizer, Tokenizer, train_tokenizer
from bertcore.tokenization.families import CLASS_OF_MODEL_TYPE
from bertcore.training import Masking, metrics, objectives
from bertcore.training.collators import UNITS
from bertcore.training.data import TextMentions

RATES = {"new": 5e-4, "known": 5e-5}
LONGEST = 128  # tokens, for models that take more
# The objectives, and the class that learns from pairs of segments besides words.
PAIRS = {"mlm+nsp": "NextSentence", "mlm+sop": "SentenceOrder"}
MASKED = ("mlm", "mlm+sbo", "mlm+entities", "tlm", "rtd", *PAIRS)
OBJECTIVES = (*MASKED, "clm", "plm")
ONLY_FOR = {  # the objectives that use an option
    "mask": MASKED,
    "mask_share": (*MASKED, "plm"),
    "pair_column": ("tlm",),
    "language": tuple(PAIRS),
    **dict.fromkeys(("generator_size", "embeddings", "generator"), ("rtd",)),
}


class Pretrain(training.Data, training.Adapters):
    """Pretrain a model on raw texts, from random weights or from the weights of a checkpoint.

    CORPUS is files or folders of text (.txt, .md: an empty line ends a document), JSON lines (.jsonl, .json) or tables
    (.csv, .tsv), with documents in a column, each also with .gz; or - for lines of text on standard input. It is read
    as a stream and stored as tokens in FOLDER/examples, which may be deleted afterwards. A part of it is held out to
    measure the model.

    MODEL is a preset (`bertcore info` lists them) or a config file (.json), with random weights; or a checkpoint's
    folder or id on the hub, whose weights are trained further with its tokenizer. A model with random weights gets the
    --tokenizer, or one learned from CORPUS. The objectives:

      mlm           masked words
      mlm+sbo       masked words, and masked spans from the tokens around them (SpanBERT)
      mlm+entities  masked words and masked entities (LUKE), from JSON lines with text, entity_spans and entities
      mlm+nsp       masked words, and whether one segment follows another (BERT)
      mlm+sop       masked words, and the order of two segments (ALBERT)
      tlm           masked words of texts and their translations, in two columns of JSON or tables (XLM)
      rtd           words replaced by another model, which learns masked words meanwhile (ELECTRA)
      clm           the next word
      plm           the last words of a random order (XLNet)

    Ctrl-C ends a run when its checkpoint is written; the same command with --resume continues to the same result.
    `mpirun -n 2 bertcore pretrain ...` trains in two processes (needs mpi4py): each has a batch in a step.

    Examples:
        bertcore pretrain corpus/ --out my-bert/ --max-seconds 480
        bertcore pretrain *.jsonl.gz --column body --model roberta-base --tokenizer roberta-base/ --out my-roberta/
        bertcore pretrain law.txt --model bert-base-uncased/ --out law-bert/ --max-steps 10000
    """

    positions = ("corpus",)
    only_for = tuple(f"{name} objective {' '.join(values)}" for name, values in ONLY_FOR.items())
    defaults: ClassVar[Mapping[str, Any]] = {"num_train_epochs": 1.0, "per_device_train_batch_size": 32}
    shown_defaults: ClassVar[Mapping[str, Any]] = {"learning_rate": "5e-4; 5e-5 for a checkpoint"}

    corpus: tuple[File, ...] = opt("files or folders of texts, or - for standard input", REQUIRED)
    model: File = opt("a preset, config file or checkpoint; see above", "mini-bert")
    objective: Annotated[str, OBJECTIVES] = opt("the objective; see above", "mlm")
    mask: Annotated[str | None, UNITS] = opt("the unit that is masked together (default: token; span for mlm+sbo)")
    mask_share: Share | None = opt("share of tokens to mask (default: 0.15; for plm a sixth, which are predicted)")
    generator_size: Above0 | None = opt(
        "size of the generator for rtd, as a share of the model's widths (ELECTRA, default: 0.25) or of its layers "
        "(other families, default: 0.5)"
    )
    embeddings: Annotated[str | None, EMBEDDINGS] = opt("embeddings of both models for rtd (default: tied)")
    generator: File | None = opt("folder of a published generator to train on with MODEL, its discriminator, for rtd")
    column: str = opt("column of the texts in JSON or tables", "text")
    pair_column: str | None = opt("column of the translations for tlm (default: text_pair)")
    language: str | None = opt("language code of the sentences for mlm+nsp and mlm+sop (default: en)")
    tokenizer: File | None = opt("folder of the tokenizer of a new model (default: learned from CORPUS)")
    vocab_size: Positive | None = opt("vocabulary size of a tokenizer to learn (default: the model's)")
    held_out: Share = opt("share of CORPUS to measure the model with", 0.01)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mask_share == 0:
            raise CommandError("--mask-share is 0, expected more: there would be nothing to predict")
        if self._translations == self.column:
            raise CommandError(f"--column and --pair-column are both {self.column}, expected two columns")
        if self.lora and self.objective == "rtd":
            raise CommandError("--lora is given with --objective rtd, which trains two models, expected one model")

    def arguments(self, folder: Path, **more: Any) -> training.TrainingArguments:
        """Return the TrainingArguments of the command line, with a lower learning rate for a checkpoint."""
        return super().arguments(folder, learning_rate=RATES[kind_of(self.model)], **more)

    @property
    def _translations(self) -> str | None:
        """The column of translations, for the objective that uses them."""
        return self.pair_column or "text_pair" if self.objective == "tlm" else None

    def train(self, folder: Path) -> None:
        objective, is_causal = self._objective(), self.objective == "clm"
        model, tokenizer = self._model_and_tokenizer(objective)
        self._check_model(model, tokenizer)
        model = self.with_adapters(model)
        length = self.example_length(self.model, model, LONGEST)
        examples = training.from_first(lambda: self._examples(folder, objective, tokenizer, length))
        train, held_out = training.held_out_parts(examples, self.held_out)
        measures = [metrics.next_word_accuracy if is_causal else metrics.masked_accuracy, metrics.perplexity]
        measures += [metrics.pair_accuracy] if self.objective in PAIRS else []
        measures += [metrics.commonest_word, metrics.replaced_tokens] if self.objective == "rtd" else []
        options = {"objective": objective, "compute_metrics": metrics.combined(*measures)}
        kept = metrics.predicted_next_words if is_causal else metrics.predicted_words
        options["preprocess_logits_for_metrics"] = kept
        self.train_and_report(self.trainer(folder, model, train, held_out, tokenizer, **options))
        if self.objective == "rtd":
            parts = folder / "generator", folder / "discriminator"
            training.from_first(lambda: [tokenizer.save_pretrained(part) for part in parts])

    def _examples(self, folder: Path, objective: objectives.Objective, tokenizer: Tokenizer, length: int) -> Any:
        if self.objective == "mlm+entities":
            records = self.records(self.corpus)
            documents = TextMentions(self.column).examples(records)
            made = list(objective.examples(documents, tokenizer, max_length=length, seed=self.seed))
            training.print_malformed(records)
            return made
        language = self.language or "en" if self.objective in PAIRS else None
        facts = {"corpus": self.corpus, "objective": self.objective, "language": language}
        facts |= {} if self._translations is None else {"pair_column": self._translations}
        return training.stored_examples(self, folder / training.STORED, objective, tokenizer, length, facts)

    def _objective(self) -> objectives.Objective:
        if self.objective == "clm":
            return objectives.CausalLM()
        if self.objective == "plm":
            return objectives.PermutationLM(1 / 6 if self.mask_share is None else self.mask_share)
        masked = 0.15 if self.mask_share is None else self.mask_share
        if self.objective == "mlm+sbo":
            return objectives.SpanBoundary(Masking(masked, unit=self.mask or "span"))
        if self.objective == "rtd":
            return objectives.ReplacedToken(Masking(masked, 1.0, 0.0, unit=self.mask or "token"))
        kinds = {"tlm": objectives.TranslationLM, "mlm+entities": objectives.EntityMaskedLM}
        words = kinds.get(self.objective, objectives.MaskedLM)(Masking(masked, unit=self.mask or "token"))
        return words + getattr(objectives, PAIRS[self.objective])() if self.objective in PAIRS else words

    def _check_model(self, model: Any, tokenizer: Tokenizer) -> None:
        """Check that the model and its tokenizer have what the objective needs; have segments of pairs marked."""
        if self.objective == "plm" and "perm_mask" not in model.arguments:
            raise CommandError(f"--objective plm needs the two streams of XLNet, which {self.model} does not have")
        pairs = PAIRS.get(self.objective)
        if pairs is not None and getattr(objectives, pairs).label not in model.label_names:
            raise CommandError(f"--objective {self.objective} needs a head that {self.model} was not pretrained with")
        has_segments = self.objective in (*PAIRS, "tlm") and model.spec.type_vocab_size > 1
        if has_segments and "token_type_ids" not in tokenizer.model_input_names:
            tokenizer.model_input_names.append("token_type_ids")
        if self.objective != "mlm+entities":
            return
        if "entity_ids" not in model.arguments:
            raise CommandError(f"--objective mlm+entities is for LUKE, whose entities {self.model} does not have")
        if not getattr(tokenizer, "entity_vocab", None):
            raise CommandError("--objective mlm+entities needs entity_vocab.json beside the tokenizer, which has none")

    def _model_and_tokenizer(self, objective: Any) -> tuple[Any, Any]:
        kind = getattr(bertcore, objective.model_class)
        if self.lora and kind_of(self.model) == "new":
            raise CommandError(f"--lora trains adapters beside known weights, and {self.model} has no weights")
        if saved := self.checkpoint:
            weights = model_folder(self.model) if self.lora else saved  # with adapters, a checkpoint has these alone
            return kind.from_pretrained(weights), bertcore.AutoTokenizer.from_pretrained(saved)
        if kind_of(self.model) == "known":
            if self.tokenizer or self.vocab_size:
                raise CommandError(f"{self.model} has a tokenizer of its own: leave out --tokenizer and --vocab-size")
            source = model_folder(self.model)
            if self.objective != "rtd":
                return kind.from_pretrained(source), bertcore.AutoTokenizer.from_pretrained(source)
            model, inner = self._known_pair(source), source / "discriminator"
            return model, bertcore.AutoTokenizer.from_pretrained(inner if inner.is_dir() else source)
        if self.generator:
            raise CommandError(f"--generator goes with a checkpoint, and {self.model} is new: give --generator-size")
        config = config_of(self.model)
        tokenizer = training.from_first(lambda: self._tokenizer(config))
        config = with_ids_of(tokenizer, config) | {"vocab_size": len(tokenizer)}
        if getattr(tokenizer, "entity_vocab", None):
            config["entity_vocab_size"] = 1 + max(tokenizer.entity_vocab.values())
        beside: dict[str, Any] = {}
        if self.objective == "rtd":
            beside["generator"] = generator_config(config, self.generator_size)
            beside["embeddings"] = self.embeddings or "tied"
        return kind.from_config(config, seed=self.seed, **beside), tokenizer

    def _known_pair(self, source: Path) -> "bertcore.ReplacedTokenModel":
        """Return the generator and the discriminator of one folder that `bertcore pretrain` wrote, or of two."""
        if self.generator_size:
            raise CommandError(f"{self.model} is a checkpoint, whose generator exists: leave out --generator-size")
        if (source / "generator").is_dir():
            if self.generator or self.embeddings:
                raise CommandError(f"{self.model} has a generator: leave out --generator and --embeddings")
            return bertcore.ReplacedTokenModel.from_pretrained(source)
        if not self.generator:
            raise CommandError(f"{self.model} has no generator beside it: give --generator, which it was trained with")
        discriminator = bertcore.AutoModelForPreTraining.from_pretrained(source)
        generator = bertcore.AutoModelForMaskedLM.from_pretrained(model_folder(self.generator))
        return bertcore.ReplacedTokenModel(generator, discriminator, embeddings=self.embeddings or "tied")

    def _tokenizer(self, config: dict[str, Any]) -> Tokenizer:
        """Return the tokenizer of --tokenizer, or one of the model's kind that is learned from the corpus."""
        if self.tokenizer:
            if self.vocab_size:
                raise CommandError("--vocab-size is for a tokenizer to learn: leave it out beside --tokenizer")
            return AutoTokenizer.from_pretrained(model_folder(self.tokenizer, "tokenizer"))
        if self.objective == "mlm+entities":
            raise CommandError("--objective mlm+entities needs --tokenizer: LUKE's, with entity_vocab.json beside it")
        training.check_once(self.corpus, "a tokenizer is learned from it first: give --tokenizer")
        documents = iter(training.documents_of(self.records(self.corpus), self.column, pair_column=self._translations))
        first = next(documents, None)
        if first is None:
            raise CommandError(f"{', '.join(self.corpus)} holds no texts to learn from")
        kind = CLASS_OF_MODEL_TYPE.get(config["model_type"], "BertTokenizer")
        longest, size = config.get("max_position_embeddings", LONGEST), self.vocab_size or config["vocab_size"]
        lines = itertools.chain.from_iterable(itertools.chain([first], documents))
        return train_tokenizer(lines, tokenizer_class=kind, vocab_size=size, model_max_length=longest)


def with_ids_of(tokenizer: Tokenizer, config: dict[str, Any]) -> dict[str, Any]:
    """Return a new model's config with the tokenizer's special tokens."""
    ids = {key: getattr(tokenizer, key) for key in ("pad_token_id", "bos_token_id", "eos_token_id")}
    return config | {key: value for key, value in ids.items() if value is not None}


def config_of(model: str) -> dict[str, Any]:
    return read_json_object(Path(model)) if model.endswith(".json") else preset_config(model)


def kind_of(model: str) -> str:
    """Return "new" for the name of a preset or a config file, "known" for a checkpoint."""
    is_checkpoint = Path(model).is_dir() or (model not in PRESETS and "/" in model) or model == "demo"
    return "new" if model.endswith(".json") or not is_checkpoint else "known"
