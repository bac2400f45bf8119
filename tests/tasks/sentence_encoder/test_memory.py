"""The memory of `encode`, bounded by `batch_tokens` for any number and lengths of texts."""

import sys

import pytest

from bertcore import AutoModel
from tests.processes import run_python
from tests.tiny_bert import CONFIG, VOCABULARY, write_json

# Wide enough that a token's activations outweigh what a batch and a text cost in Python.
WIDE = {
    **CONFIG, "hidden_size": 192, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 768,
    "max_position_embeddings": 512,
}  # fmt: skip
# The largest activations of a token, all of it float32: feed-forward, its input and output, queries, keys and values.
TOKEN_BYTES = 4 * (768 + 2 * 192 + 3 * 192)

# Prints by how many bytes the resident memory grew at most while texts were encoded, for each budget of tokens. A text
# of one word has three tokens, with [CLS] and [SEP]; one of 510 words has 512.
PROCESS = """
import re, sys
from pathlib import Path
from bertcore import SentenceEncoder
from bertcore.kernels import program
from bertcore.execution import eager as layers

program.MOST_KEPT = 0  # kept recordings and groups bound the memory by numbers of their own
layers.GROUP_TOKENS = 1 << 30

def resident(name):
    return int(re.search(rf"{name}:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) << 10

encoder = SentenceEncoder(sys.argv[1])
mix = [*["cat"] * 600, *[" ".join(["mat"] * 510)] * 48]
encoder.encode([mix[0], mix[-1]], batch_tokens=1)
Path("/proc/self/clear_refs").write_text("5")  # the peak of the resident memory starts anew
before = resident("VmRSS")
encoder.encode(mix * int(sys.argv[3]), batch_tokens=int(sys.argv[2]))
print(resident("VmHWM") - before)
"""


@pytest.fixture(scope="module")
def wide_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wide")
    AutoModel.from_config(WIDE, add_pooling_layer=False).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "BertTokenizer", "do_lower_case": True})
    return folder


def growth(folder, budget, times=1):
    return int(run_python(PROCESS, str(folder), str(budget), str(times), BERTCORE_BACKEND="numba")[0])


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_peak_memory_follows_the_budget(wide_folder):
    """Resident memory: activations and the kernels' own scratch, which Python's accounts do not show."""
    fixed = 20 << 20  # the embeddings of the texts, their tokens, what the allocators keep
    small, large, all_at_once = (growth(wide_folder, budget) for budget in (512, 2048, 1 << 30))
    assert small < 512 * TOKEN_BYTES + fixed
    assert large < 2048 * TOKEN_BYTES + fixed
    assert all_at_once > 2 * large  # what the budget is there for
    assert growth(wide_folder, 512, times=4) < all_at_once / 2
