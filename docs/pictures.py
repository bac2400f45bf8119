"""Draw the pictures of the documentation into docs/images.

    python -m docs.pictures [NAME ...]

By default all. They show all-MiniLM-L6-v2, which `bertcore demo` fetches; a classifier that is fine-tuned from it on
2,000 film snippets for three epochs; and a DeBERTa of two layers, trained on the same snippets from scratch. Both are
trained here, in some minutes; the snippets are those of examples/finetune_films.py.
"""

import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from bertcore import AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer, SentenceEncoder
from bertcore.cli.info import described, row
from bertcore.demo_model import demo_model_folder
from bertcore.drawing import save_figure
from bertcore.plots.attention import attention_components, attention_maps, masking
from bertcore.plots.embeddings import embeddings_in_two_dimensions
from bertcore.plots.models import models_side_by_side
from bertcore.plots.probabilities import distillation_temperature, reliability_diagram
from bertcore.tasks.sequence_scores import softmax
from bertcore.tokenization import train_tokenizer
from bertcore.training import Trainer, TrainingArguments
from bertcore.training.curves import training_curves
from bertcore.training.objectives import MaskedLM

FOLDER = Path(__file__).parent / "images"
SENTENCE = "The cat that chased the mice sat on the mat because it was tired."
REVIEW = "a charming film, but far too long."
TRAINED_ON, HELD_OUT = 2000, 500
MODELS = (
    *("bert-large-uncased", "bert-base-uncased", "distilbert-base-uncased", "minilm-l6-h384", "tinybert-4l-312"),
    *("mobilebert-uncased", "albert-base-v2", "roberta-base", "electra-small-discriminator"),
    *("electra-base-discriminator", "xlnet-base-cased", "deberta-v3-small", "deberta-v3-base", "modernbert-base"),
)
TEXTS = {
    "sport": (
        *("The striker scored twice in the final.", "The goalkeeper saved a late penalty."),
        *("She won the marathon in record time.", "The team lost its first match at home."),
        *("A tennis player retired after the open.", "Fans filled the stadium before kick-off."),
    ),
    "money": (
        *("Shares fell after the bank's report.", "The central bank raised interest rates."),
        *("Profits of the company doubled.", "Investors sold bonds this week."),
        *("The dollar gained against the euro.", "Inflation slowed in spring."),
    ),
    "food": (
        *("Simmer the soup for twenty minutes.", "Whisk the eggs with sugar."),
        *("The bread needs an hour to rise.", "Fry the onions in butter."),
        *("Season the fish with lemon and salt.", "A ripe tomato makes the sauce sweet."),
    ),
    "space": (
        *("The probe entered orbit around Mars.", "Astronomers found a planet like ours."),
        *("A rocket carried two satellites up.", "The telescope saw a young galaxy."),
        *("Its moon is covered with ice.", "Dust hides the centre of the nebula."),
    ),
    "gardens": (
        *("Prune the roses in late winter.", "Sow the beans after the last frost."),
        *("Slugs have eaten the lettuce.", "Compost keeps the soil moist."),
        *("The apple tree is in blossom.", "Water the seedlings every morning."),
    ),
}


def demo() -> tuple[Any, Any]:
    """Return all-MiniLM-L6-v2 and its tokenizer."""
    folder = demo_model_folder()
    return AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


def films() -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """Return film snippets to train on and held-out ones, each with 1 for a good film and 0 for a bad one."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
    from finetune_films import labelled_films

    held_out = labelled_films()[1]
    train = [(text, round(good)) for text, (_, good) in labelled_films()[0]]
    return train[:TRAINED_ON], held_out


@cache
def film_classifier() -> tuple[Any, Any, list[dict[str, Any]]]:
    """Return a classifier of films, its tokenizer, and the log of its training."""
    folder, (train, held_out) = demo_model_folder(), films()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=2)
    model.config["id2label"] = {"0": "bad", "1": "good"}
    settings = {"num_train_epochs": 3, "per_device_train_batch_size": 32, "learning_rate": 1e-4, "warmup_steps": 0.1}
    train, held_out = as_examples(tokenizer, train), as_examples(tokenizer, held_out[:HELD_OUT])
    log = _trained(model, tokenizer, train, held_out, settings | {"eval_strategy": "steps", "eval_steps": 20})
    return model, tokenizer, log


@cache
def film_deberta() -> tuple[Any, Any]:
    """Return a masked language model of two layers, trained on film snippets from scratch, and its tokenizer."""
    texts = [text for text, _ in films()[0]]
    sizes = {"hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256}
    tokenizer = train_tokenizer(texts, vocab_size=4000, model_max_length=64)
    objective = MaskedLM()
    examples = list(objective.examples([[text] for text in texts], tokenizer, max_length=64))
    config = {"model_type": "deberta-v2", "relative_attention": True, "pos_att_type": ["c2p", "p2c"]} | sizes
    model = AutoModelForMaskedLM.from_config({**config, "vocab_size": len(tokenizer), "max_position_embeddings": 64})
    settings = {"num_train_epochs": 20, "per_device_train_batch_size": 32, "learning_rate": 2e-3, "warmup_steps": 0.1}
    _trained(model, tokenizer, examples, None, settings, objective)
    return model, tokenizer


def as_examples(tokenizer: Any, labelled: list[tuple[str, int]]) -> list[dict[str, Any]]:
    """Return labelled sentences as token ids."""
    return [{**tokenizer(text, truncation=True, max_length=64), "label": label} for text, label in labelled]


def _trained(
    model: Any, tokenizer: Any, train: Any, held_out: Any, settings: dict[str, Any], objective: Any = None
) -> list[dict[str, Any]]:
    """Train a model, and return the log."""
    options = {"train_dataset": train, "eval_dataset": held_out, "processing_class": tokenizer, "objective": objective}
    with tempfile.TemporaryDirectory() as folder:
        settings = settings | {"logging_steps": 5, "save_strategy": "no", "report_to": "none", "seed": 1}
        trainer = Trainer(model, TrainingArguments(folder, **settings), **options)
        trainer.train()
        return trainer.state.log_history


def calibration() -> Figure:
    """Return the reliability of the classifier on held-out films."""
    model, tokenizer, _ = film_classifier()
    held_out = films()[1]
    logits = [model([tokenizer(text)["input_ids"]]).logits[0] for text, _ in held_out]
    return reliability_diagram([softmax(each) for each in logits], [label for _, label in held_out], bins=10)


def embeddings() -> Figure:
    """Return the embeddings of texts of five subjects."""
    texts = [text for group in TEXTS.values() for text in group]
    labels = [name for name, group in TEXTS.items() for _ in group]
    return embeddings_in_two_dimensions(texts, SentenceEncoder(demo_model_folder()).encode(texts), labels=labels)


PICTURES: dict[str, Callable[[], Figure]] = {
    "attention-heads.png": lambda: attention_maps(*demo(), SENTENCE),
    "attention.svg": lambda: attention_maps(*demo(), SENTENCE, 3, head=1, special_tokens=False),
    "calibration.svg": calibration,
    "components.png": lambda: attention_components(*film_deberta(), REVIEW, 2, head=1, special_tokens=False),
    "embeddings.svg": embeddings,
    "loss.svg": lambda: training_curves(film_classifier()[2]),
    "masking.svg": lambda: masking(demo()[1], SENTENCE, epochs=4),
    "models.svg": lambda: models_side_by_side([row(name, *described(name), length=128) for name in MODELS]),
    "temperature.svg": lambda: distillation_temperature(*film_classifier()[:2], REVIEW, temperatures=(1, 2, 4, 8)),
}


def main(names: list[str]) -> None:
    """Draw the pictures of these names, by default all."""
    wrong = [name for name in names if name not in PICTURES]
    if wrong:
        raise SystemExit(f"NAME is {wrong[0]}, expected one of {', '.join(PICTURES)}")
    for name in names or PICTURES:
        save_figure(PICTURES[name](), FOLDER / name)
        print(f"{FOLDER / name}: {(FOLDER / name).stat().st_size:,} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
