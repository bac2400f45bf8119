"""bertcore warmup: what runs after it compiles nothing."""

import re

import pytest

from bertcore import AutoModelForSequenceClassification, use_backend
from bertcore.tasks import loading as warmup
from tests.processes import run_python
from tests.tiny_families import tiny_config

WARMUP = "import sys; from bertcore.cli import main; sys.exit(main(['warmup', *sys.argv[1:]]))"

# Runs a model as its users do, and prints the names of what Numba compiles meanwhile.
USE = """
import sys
import numpy as np
from numba.core import event
from bertcore import AutoModel, AutoModelForMaskedLM, SentenceEncoder, value_and_grad

class Names(event.Listener):
    def on_start(self, event):
        print(event.data["dispatcher"].py_func.__qualname__)

    def on_end(self, event):
        pass

event.register("numba:compile", Names())
folder, dtype, *gradients = sys.argv[1:]
SentenceEncoder(folder, dtype=dtype).encode(["a cat", "", "the cat sat on an other mat"], batch_tokens=8)
model = AutoModelForMaskedLM.from_pretrained(folder, dtype=dtype)
ids = np.random.default_rng(0).integers(1, 60, (5, 13))
for batch in (ids, ids[:, :1], ids[:1], np.asfortranarray(ids), ids.astype(np.int32), ids.tolist(), ids[:0]):
    model(batch)
    model(batch, token_type_ids=np.zeros_like(batch), attention_mask=np.ones_like(batch))
ids.flags.writeable = False
model(ids, attention_mask=np.tri(5, 13, dtype=int), output_attentions=True, output_hidden_states=True)
AutoModel.from_config(model.config, dtype=dtype)(ids)
if gradients:
    value_and_grad(model)(ids, labels=ids)
"""


def warm_up(*arguments, **variables):
    """(the number of kernels, the folder) that a run tells."""
    out = run_python(WARMUP, *arguments, timeout=300, **variables)[0]
    found = re.fullmatch(r"compiled  (\d+) kernels in [\d.]+ s( \(they were there already\))?\ncache     (.+)", out)
    assert found, out
    assert (found[1] == "0") == bool(found[2])
    return int(found[1]), found[3]


@pytest.mark.slow
def test_an_empty_cache(masked_lm_folder, tmp_path):
    cache = {"BERTCORE_CACHE_DIR": str(tmp_path)}
    count, folder = warm_up(**cache)  # the random BERT serves the folder's, too
    assert count > 4 and folder.startswith(str(tmp_path))
    assert run_python(USE, str(masked_lm_folder), "float32", **cache) == ("", "")
    assert warm_up(str(masked_lm_folder), **cache) == (0, folder)


PER_PRECISION = [pytest.param([dtype], marks=pytest.mark.slow) for dtype in ("bfloat16", "int8")]  # compile 20 s each


@pytest.mark.parametrize("arguments", [["float32", "--gradients"], *PER_PRECISION], ids=" ".join)
def test_other_kernels(masked_lm_folder, arguments):
    dtype, *gradients = arguments
    warm_up(str(masked_lm_folder), "--dtype", *arguments)
    assert run_python(USE, str(masked_lm_folder), dtype, *gradients) == ("", "")


def test_a_family_without_a_classifier_of_tokens(tmp_path, monkeypatch):
    monkeypatch.setattr(warmup, "LONGEST", 16)
    config = tiny_config("transfo-xl-wt103") | {"problem_type": "multi_label_classification"}
    with use_backend("numpy"):
        AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path)
        _, with_head = warmup.models_of(tmp_path, None)
        warmup.warm_up(with_head, gradients=True)
