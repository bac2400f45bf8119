"""A generator and a discriminator trained together: ELECTRA (Clark et al. 2020, arXiv:2003.10555)."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np

from bertcore import checkpoint, kernels
from bertcore.arguments import DType
from bertcore.checkpoint.files import locked, made_folder, replacing
from bertcore.checkpoint.safetensors_file import write_safetensors
from bertcore.kernels import checks
from bertcore.kernels.arrays import ArrayLike, NativeArray
from bertcore.models import losses
from bertcore.models.auto import AutoModelForMaskedLM
from bertcore.models.generation import sample_words
from bertcore.models.inputs import integer_batch
from bertcore.models.model import Model
from bertcore.models.outputs import ReplacedTokensOutput
from bertcore.models.pretraining import Discriminator
from bertcore.models.registry import family_of
from bertcore.models.spec import ConfigReader
from bertcore.nn import functional
from bertcore.nn.layers import Embedding
from bertcore.nn.parameter import Block, NamedParameters, Parameter
from bertcore.nn.spec import EncoderSpec
from bertcore.passes import Pass, mixed_seed
from bertcore.presets import preset_config
from bertcore.tape import Tensor, value_of

PARTS = ("generator", "discriminator")
EMBEDDINGS = ("tied", "separate", "gradient_disentangled")
TABLES = ("words", "positions", "types")
SETTINGS, DELTA = "replaced_tokens.json", "word_embeddings_delta.safetensors"
DELTA_ENDING = "_delta"


def generator_config(config: Mapping[str, Any] | str, share: float | None = None) -> dict[str, Any]:
    """Return the config of the generator for a discriminator's `config` (a mapping, or a preset's name).

    Args:
        config: the discriminator's config.
        share: the generator's size relative to the discriminator's: in ELECTRA the width of its layers, a quarter by
            default (Clark et al. 2020, section 3.2); in DeBERTa and RoBERTa, whose embeddings are as wide as the
            layers, the number of layers, a half by default (He et al. 2023, arXiv:2111.09543, section 4.1).

    Raises:
        ValueError: for a family without a head for replaced tokens, or a share that is not above 0 and at most 1.
    """
    config = preset_config(config) if isinstance(config, str) else config
    family = family_of(config)
    heads = family.heads(ConfigReader(config))
    if "replaced_tokens" not in heads:
        known = ", ".join(heads)
        raise ValueError(f"config: models of type {family.model_type!r} have no head for replaced_tokens, only {known}")
    if share is not None and (not isinstance(share, int | float) or isinstance(share, bool) or not 0 < share <= 1):
        raise ValueError(f"share is {share!r}, expected a number above 0 and at most 1")
    made = family.generator(config) if share is None else family.generator(config, share)
    return {key: value for key, value in made.items() if key != "architectures"}


class DisentangledWords(Block):
    """Word embeddings of another model, which get no gradient here, plus a trainable table.

    Source: He et al. 2023, arXiv:2111.09543, section 3.3: gradient-disentangled embedding sharing.
    """

    def __init__(self, shared: Parameter, own: Embedding):
        self.shared, (name,) = shared, own.table.names
        rows, features = own.table.shape
        sizes = {"rows": rows, "features": features, "padding_row": own.padding_row}
        self.delta = Embedding(name.removesuffix(".weight"), **sizes)
        self.delta.table.names = (name + DELTA_ENDING,)
        difference = own.table.array() - shared.array()
        self.delta.table.fill({name + DELTA_ENDING: difference}, own.table.precision)

    def __call__(self, run: Pass, ids: NativeArray) -> Tensor:
        """Map (tokens,) integers to (tokens, features)."""
        return functional.add(
            run, functional.take_rows(run, value_of(self.shared.value(run)), rows=ids), self.delta(run, ids)
        )


class ReplacedTokenModel(NamedParameters):
    """A generator, which fills masks with words, and a discriminator, which detects the replaced words.

    They are trained together, and saved as two models.

    Args:
        generator: an AutoModelForMaskedLM.
        discriminator: an AutoModelForPreTraining with a head for replaced tokens, of the same vocabulary and dtype.
        embeddings: "tied": both have the generator's tables of words, positions and token types (ELECTRA);
            "separate"; or "gradient_disentangled": the discriminator's table of words is the generator's, through which
            no gradient flows, plus one of its own (DeBERTa-v3).

    Both models then belong to this one: their parameters' names begin with "generator." (also those of tied tables) or
    "discriminator.".

    Raises:
        TypeError, ValueError: for models that do not fit together.
    """

    def __init__(self, generator: Model[Any], discriminator: Model[Any], *, embeddings: str = "tied"):
        checks.choice("embeddings", embeddings, EMBEDDINGS)
        _check_pair(generator, discriminator)
        self.generator, self.discriminator, self.embeddings = generator, discriminator, embeddings
        self.dtype = generator.dtype
        self._share_tables()
        named: set[Parameter] = set()
        for part in PARTS:
            model = getattr(self, part)
            for parameter in set(model.parameters()) - named:
                parameter.names = tuple(f"{part}.{name}" for name in parameter.names)
            named |= set(model.parameters())
            model.is_part = True

    def _share_tables(self) -> None:
        first, second = (model.encoder.embeddings for model in (self.generator, self.discriminator))
        shared = {"tied": TABLES, "separate": (), "gradient_disentangled": TABLES[:1]}[self.embeddings]
        pairs = [(getattr(first, name), getattr(second, name)) for name in shared]
        pairs = [(one, other) for one, other in pairs if one is not None and other is not None]
        for one, other in pairs:
            if one.table.shape != other.table.shape:
                raise ValueError(
                    f"{other.table.names[0]} is {other.table.shape} in the discriminator and {one.table.shape} in the "
                    f"generator, expected the same for {self.embeddings} embeddings"
                )
        for one, other in pairs:
            if self.embeddings == "tied":
                other.table = one.table
            else:
                second.words = DisentangledWords(one.table, other)

    @classmethod
    def from_config(
        cls,
        config: Mapping[str, Any] | str,
        generator: Mapping[str, Any] | None = None,
        *,
        embeddings: str = "tied",
        dtype: DType = "float32",
        seed: int = 0,
    ) -> Self:
        """Return new models with random weights, from the discriminator's config or a preset's name.

        By default, `generator_config` makes the generator's config. Errors are as in `generator_config` and
        `AutoModel.from_config`.
        """
        config = preset_config(config) if isinstance(config, str) else config
        beside = generator_config(config) if generator is None else generator
        first = AutoModelForMaskedLM.from_config(beside, dtype=dtype, seed=seed)
        second = Discriminator.from_config(config, dtype=dtype, seed=mixed_seed(seed, 1))
        tables = [model.encoder.embeddings.words.table for model in (first, second)]
        if embeddings != "separate" and tables[0].shape == tables[1].shape:
            tables[1].update(tables[0].array().copy())  # the difference added to it begins at 0
        return cls(first, second, embeddings=embeddings)

    @classmethod
    def from_pretrained(cls, folder: str | os.PathLike[str], *, dtype: DType = "float32") -> Self:
        """Load a model that `save_pretrained` wrote.

        Raises CheckpointError (a ValueError) if something in the folder is missing or wrong.
        """
        folder = Path(folder)
        embeddings = _read_embeddings(folder, EMBEDDINGS)
        generator = AutoModelForMaskedLM.from_pretrained(folder / "generator", dtype=dtype)
        discriminator = Discriminator.from_pretrained(folder / "discriminator", dtype=dtype)
        model = cls(generator, discriminator, embeddings=embeddings)
        model.load_weights(folder)  # restores digits lost by rounding the difference
        return model

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Write generator/ and discriminator/, and the state needed to continue training.

        bertcore and transformers can load each folder as a separate model.
        """
        with replacing(made_folder(folder), SETTINGS) as new:
            for part in PARTS:
                model = getattr(self, part)
                arrays = {_own_name(name): array for name, array in model.state_dict().items()}
                for name in [name for name in arrays if name.endswith(DELTA_ENDING)]:
                    table, delta = name.removesuffix(DELTA_ENDING), arrays.pop(name)
                    write_safetensors(new / DELTA, {table: np.require(delta, requirements="C")})
                    arrays[table] = arrays[table] + delta
                checkpoint.save_checkpoint(new / part, model.config_to_save(), arrays)
            (new / SETTINGS).write_text(json.dumps({"embeddings": self.embeddings}) + "\n", encoding="utf-8")

    def _stored(self, folder: str | os.PathLike[str]) -> dict[str, Any]:
        folder = Path(folder)
        with locked(folder, shared=True):
            _read_embeddings(folder, (self.embeddings,))
            opened = {part: checkpoint.open_checkpoint(folder / part) for part in PARTS}
            if self.embeddings == "gradient_disentangled":
                opened[DELTA_ENDING] = checkpoint.open_checkpoint(folder / DELTA)
        found = {}
        for name in self.expected_tensors():
            own, source = _own_name(name), opened[name.partition(".")[0]]
            if own.endswith(DELTA_ENDING):
                own, source = own.removesuffix(DELTA_ENDING), opened[DELTA_ENDING]
            if own in source:
                found[name] = source[own]
        return found

    # --- as a model in training -------------------------------------------------------------------------

    @property
    def config(self) -> dict[str, Any]:
        return self.discriminator.config

    @property
    def spec(self) -> EncoderSpec:
        return self.discriminator.spec

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of the arrays that a call takes."""
        return ("input_ids", "attention_mask", "token_type_ids", "position_ids", "labels", "draws")

    @property
    def label_names(self) -> tuple[str, ...]:
        """The names of the arguments that the loss compares the output with."""
        return ("labels",)

    @property
    def training(self) -> bool:
        return self.discriminator.training

    @training.setter
    def training(self, is_training: bool) -> None:
        self.generator.training = self.discriminator.training = is_training

    def train(self, seed: int | None = None) -> Self:
        self.generator.train(seed)
        self.discriminator.train(None if seed is None else mixed_seed(seed, 1))
        return self

    def eval(self) -> Self:
        self.training = False
        return self

    def gradient_checkpointing_enable(self) -> None:
        for part in PARTS:
            getattr(self, part).gradient_checkpointing_enable()

    def gradient_checkpointing_disable(self) -> None:
        for part in PARTS:
            getattr(self, part).gradient_checkpointing_disable()

    def __call__(
        self,
        input_ids: ArrayLike,
        attention_mask: ArrayLike | None = None,
        token_type_ids: ArrayLike | None = None,
        position_ids: ArrayLike | None = None,
        *,
        labels: ArrayLike,
        draws: ArrayLike,
        discriminator_weight: float = 50.0,
    ) -> ReplacedTokensOutput:
        """Replace labelled words by words that the generator draws, and mark those that differ.

        Args:
            input_ids, attention_mask, token_type_ids, position_ids: of the masked text, as for any model.
            labels: the original words, (sequences, length), -100 where the text is unchanged.
            draws: numbers in [0, 1), (sequences, length), that sample the generator's words by inverting the cumulative
                distribution over the vocabulary. Only those at labels are read.
            discriminator_weight: the weight of the discriminator's loss.

        A sampled word that equals the original one counts as not replaced. No gradient flows through the sampling. The
        loss is the generator's mean over labels plus the weighted mean of the discriminator's over all real tokens.
        """
        rest = {"attention_mask": attention_mask, "token_type_ids": token_type_ids, "position_ids": position_ids}
        run = Pass.begin(input_ids)
        with kernels.use_backend(run.backend), kernels.on_device_of(input_ids):  # for both models
            return self._run(run, input_ids, rest, labels, draws, discriminator_weight)

    def _run(self, run: Pass, input_ids: ArrayLike, rest: dict[str, Any], labels: ArrayLike, draws: ArrayLike,
             discriminator_weight: float) -> ReplacedTokensOutput:  # fmt: skip
        ids = integer_batch("input_ids", input_ids)
        draws = _checked_draws(draws, ids.shape)
        scores, words = self.generator.label_scores(input_ids, **rest, labels=labels)
        generator_loss = functional.cross_entropy(run, scores, labels=words)
        labels = integer_batch("labels", labels)
        has_label = labels != losses.IGNORED
        given = ids.copy()
        given[has_label] = sample_words(value_of(scores), draws[has_label])
        replaced = (given != np.where(has_label, labels, ids)).astype(np.int64)
        found = self.discriminator(given, **rest, labels=replaced)
        weighted = functional.scale(run, found.loss, factor=discriminator_weight)
        loss = losses.total(run, generator_loss, weighted)
        if rest["attention_mask"] is not None:
            replaced[integer_batch("attention_mask", rest["attention_mask"]) == 0] = losses.IGNORED
        return ReplacedTokensOutput(
            loss=loss,
            generator_loss=generator_loss,
            discriminator_loss=found.loss,
            logits=found.logits,
            given_ids=given,
            replaced=replaced,
        )


def _read_embeddings(folder: Path, expected: tuple[str, ...]) -> str:
    """Return the kind of embedding sharing in a folder. Raises CheckpointError for one that is not expected."""
    embeddings = checkpoint.read_config(folder, SETTINGS).get("embeddings")
    if embeddings not in expected:
        known = ", ".join(expected)
        raise checkpoint.CheckpointError(f"{folder / SETTINGS}: embeddings is {embeddings!r}, expected one of {known}")
    return embeddings


def _own_name(name: str) -> str:
    """Return the name of a parameter in its own model."""
    return name.partition(".")[2]


def _check_pair(generator: Model, discriminator: Model) -> None:
    if not isinstance(generator, AutoModelForMaskedLM):
        raise TypeError(f"generator is {type(generator).__name__}, expected an AutoModelForMaskedLM")
    if not isinstance(discriminator, Discriminator):
        expected = "an AutoModelForPreTraining with a head for replaced tokens"
        raise TypeError(f"discriminator is {type(discriminator).__name__}, expected {expected}")
    if any(model.is_part for model in (generator, discriminator)):
        raise ValueError("generator or discriminator belongs to another ReplacedTokenModel")
    first, second = generator.spec.vocab_size, discriminator.spec.vocab_size
    if first != second:
        raise ValueError(f"the generator has {first} words and the discriminator {second}, expected the same")
    if generator.family is not discriminator.family:
        kinds = generator.family.model_type, discriminator.family.model_type
        raise ValueError("the generator is of type {!r} and the discriminator {!r}, expected one family".format(*kinds))
    if generator.dtype != discriminator.dtype:
        raise ValueError(f"the generator is in {generator.dtype}, the discriminator in {discriminator.dtype}")


def _checked_draws(draws: ArrayLike, shape: tuple[int, ...]) -> np.ndarray:
    array = np.asarray(draws)
    if array.shape != shape or array.dtype.kind != "f":
        raise ValueError(f"draws is {array.dtype} of shape {array.shape}, expected floating-point numbers, {shape}")
    if array.size and not (array.min() >= 0 and array.max() < 1):
        raise ValueError("draws holds numbers outside [0, 1) or NaN, expected numbers in [0, 1)")
    return array
