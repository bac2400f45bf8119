"""Places and rates of dropout: in every family and head as in transformers, in the same order."""

from unittest import mock

import numpy as np
import pytest

import bertcore
from bertcore import kernels
from bertcore.kernels.attention import ATTENTION
from bertcore.kernels.dropout import DROPOUT
from bertcore.kernels.dropout_layer_norm import DROPOUT_LAYER_NORM
from tests.models.family_parity import random_batch, random_targets, with_choices
from tests.models.family_table import FAMILIES

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.parity
SIZES = {"model_type": "xlnet", "vocab_size": 61, "d_model": 78, "n_head": 2, "d_inner": 53, "n_layer": 2}
CONFIGS = {name: case.config for name, case in FAMILIES.items() if case.has_peer} | {"xlnet": SIZES}
XLNET_TASKS = ("CausalLM", "SequenceClassification", "TokenClassification", "QuestionAnswering", "MultipleChoice")
TASKS = {name: case.tasks for name, case in FAMILIES.items()} | {"xlnet": XLNET_TASKS}
HEADS = [(name, task, {}) for name in CONFIGS for task in TASKS[name]]
NO_MAP = {"summary_use_proj": False, "summary_first_dropout": 0.3}
UNREAD = {"classifier_dropout": 0.3}  # no key of theirs
VARIANTS = [
    ("deberta-v2", "MaskedLM", {"conv_kernel_size": 3}),
    ("electra", "MultipleChoice", NO_MAP),
    ("xlnet", "SequenceClassification", NO_MAP),
    *((name, "TokenClassification", UNREAD) for name in ("deberta", "deberta-v2", "mpnet", "eurobert")),
]


def config_with_rates(name, task, changes):
    """The family's config, with another rate for each of its keys."""
    given = CONFIGS[name] | changes
    if name in FAMILIES:
        given |= FAMILIES[name].in_task.get(task, {})
    known = transformers.AutoConfig.for_model(**given).to_dict()
    keys = sorted(key for key in known if "drop" in key and not isinstance(known[key], bool | list | dict | str))
    return transformers.AutoConfig.for_model(**given | {key: 0.1 + 0.01 * i for i, key in enumerate(keys)} | changes)


def places_in_torch(model, batch):
    """(rate, width) of each use of dropout; the width of attention's is "keys"."""
    places, plain = [], torch.nn.functional.dropout

    def note(input, p=0.5, training=True, inplace=False):
        if training and p:
            places.append((round(p, 6), "keys" if input.ndim == 4 else input.shape[-1]))
        return plain(input, p, training, inplace)

    with mock.patch("torch.nn.functional.dropout", note):
        model.train()(**{name: torch.from_numpy(np.array(array)) for name, array in batch.items()})
    return places


def our_places(model, batch):
    """Return the same of our model, by the forwards of the operations' records."""
    places = []

    def noting(record):
        plain = record.forward

        def note(backend, *values, save=False):
            given = dict(zip(record.arguments, values, strict=False))
            if record is ATTENTION and given["dropout_p"]:
                places.append((round(given["dropout_p"], 6), "keys"))
            elif record is not ATTENTION:
                places.append((round(given["p"], 6), given["input"].shape[-1]))
            return plain(backend, *values, save=save)

        return mock.patch.object(record, "forward", note)

    with noting(ATTENTION), noting(DROPOUT), noting(DROPOUT_LAYER_NORM):
        model.train()(**batch)
    return places


@pytest.mark.parametrize(("name", "task", "changes"), HEADS + VARIANTS)
def test_dropout_stands_where_it_stands_in_transformers(name, task, changes, tmp_path):
    config, rng = config_with_rates(name, task, changes), np.random.default_rng(0)
    if task == "QuestionAnswering":
        config.num_labels = 2
    peer = getattr(transformers, f"AutoModelFor{task}").from_config(config, attn_implementation="eager")
    peer.save_pretrained(tmp_path)
    batch = random_batch(config, [7, 7], rng)
    batch |= random_targets(config, task, batch, rng)
    if task == "MultipleChoice":
        labels = batch.pop("labels")
        batch = with_choices(batch) | {"labels": labels}
    with kernels.use_backend("numpy"):
        ours = our_places(getattr(bertcore, f"AutoModelFor{task}").from_pretrained(tmp_path), batch)
    assert ours == places_in_torch(peer, batch)
