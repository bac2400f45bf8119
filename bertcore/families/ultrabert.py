"""UltraBERT: EuroBERT's layers, some with attention to all tokens, others to a window, each kind with its theta."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bertcore.families import eurobert
from bertcore.families.eurobert import EUROBERT
from bertcore.heads import ClassifierSpec, LanguageModelSpec
from bertcore.models.registry import HeadSpec, register
from bertcore.models.spec import GLOBAL, LOCAL, MOST_LAYERS, ConfigReader, by_kind
from bertcore.nn.spec import EncoderSpec

DEFAULTS = eurobert.DEFAULTS | {
    "vocab_size": 32000, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "intermediate_size": 11008, "max_position_embeddings": 32768, "layer_norm_eps": 1e-6, "pad_token_id": 0,
}  # fmt: skip
EVERY = 3  # every third layer attends to all tokens


def spec(config: Mapping[str, Any]) -> EncoderSpec:
    """Return the spec of an UltraBERT config, with windows and thetas by kind of layer or (older ones) by layer."""
    read = ConfigReader(config, DEFAULTS)
    layers = read.size("num_hidden_layers", most=MOST_LAYERS)
    windows, thetas = (read.numbers(key, layers) for key in ("attention_windows", "rope_theta"))
    if any(window is not None and window != int(window) for window in windows):
        raise ValueError(f"config: attention_windows is {list(windows)!r:.200}, expected whole numbers of tokens")
    kinds = [LOCAL if (index + 1) % EVERY else GLOBAL for index in range(layers)]
    if windows:
        kinds = [LOCAL if window else GLOBAL for window in windows]
    kinds = read.choices("layer_types", kinds, GLOBAL, LOCAL)
    window = int(next(filter(None, windows), read.size("sliding_window", 128)))
    sections = read.section("rope_scaling", "rope_parameters")
    theta_of = {GLOBAL: 10_000.0 if sections.has_keys else 2_560_000.0, LOCAL: 10_000.0}
    if not sections.has_keys:
        theta_of |= {kind: theta for kind, theta in zip(kinds, thetas, strict=False) if theta is not None}
    ropes, longest = read.sections("rope_scaling", "rope_parameters"), read.size("max_position_embeddings")
    each_layer = by_kind(kinds, ropes, theta_of, (window, window), longest)
    found = eurobert.spec(config, defaults=DEFAULTS, each_layer=each_layer)
    return replace(found, is_relative=True, classifier_dropout=read.rate("classifier_dropout", 0.0))


def heads(read: ConfigReader) -> Mapping[str, HeadSpec]:
    """Return the heads of an UltraBERT config; the language model's transform has two linear maps."""
    sources = {"cls": "first", "mean": "mean"}
    source = sources[read.choice("classifier_pooling", "cls", *sources)]
    return {
        "masked_lm": LanguageModelSpec(
            "cls",
            None,
            transform="head.linear2",
            activation="gelu_tanh",
            before="head.linear1",
            before_size=read.size("prediction_head_size", 768),
            without_bias=frozenset({"transform"}),
        ),
        "sequence_classification": ClassifierSpec("classifier", source),
        "token_classification": ClassifierSpec("classifier", "tokens"),
        "question_answering": ClassifierSpec("qa_outputs", "tokens", dropout=0.0),
    }


ULTRABERT = register(
    replace(
        EUROBERT,
        model_type="ultrabert",
        architecture="Ultrabert",
        spec_from_config=spec,
        heads=heads,
        name_rules=replace(
            EUROBERT.name_rules,
            prefix="ultrabert.",
            heads=("head.", "cls.", "classifier.", "qa_outputs."),
            tied=(("cls.weight", "embed_tokens.weight"),),
        ),
        code=(),
    )
)
