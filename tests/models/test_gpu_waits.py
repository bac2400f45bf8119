"""No forward waits for the GPU: CuPy's own arrays without a driver tell what would read them (driverless.py)."""

from collections import deque

import cupy
import numpy as np
import pytest

import bertcore
from bertcore import use_backend, value_and_grad
from tests.cuda_emulator.driverless import driverless, unavailable_reason
from tests.tiny_families import runnable, tiny_config

RNG = np.random.default_rng(0)
LENGTHS = np.array([[9], [4], [0], [7]])
IDS = RNG.integers(6, 90, (len(LENGTHS), 9))
HOLES = (np.arange(9) < LENGTHS) & (np.arange(9) != 2)
ENTITIES = {
    "entity_ids": [[1, 2]] * 4,
    "entity_attention_mask": [[1, 1], [1, 0], [0, 0], [1, 1]],
    "entity_position_ids": [[[1, 2], [3, -1]]] * 4,
}
PERMUTED = {
    "perm_mask": np.triu(np.ones((4, 9, 9), int)),
    "target_mapping": np.broadcast_to(np.eye(9)[[3, 5]], (4, 2, 9)),
}
# Every family's encoder; heads of each kind, and the inputs that only one family has.
MODELS = {
    **{name: ("AutoModel", name, {}) for name in runnable()},
    "jina-bert": ("AutoModel", "jina-embeddings-v2-base-en", {}),
    "words": ("AutoModelForMaskedLM", "bert-base-uncased", {}),
    "next words": ("AutoModelForCausalLM", "gpt2", {}),
    "adaptive softmax": ("AutoModelForCausalLM", "transfo-xl-wt103", {}),
    "decoded words": ("AutoModelForMaskedLM", "deberta-base", {}),
    "classes of sequences": ("AutoModelForSequenceClassification", "roberta-base", {}),
    "classes of last words": ("AutoModelForSequenceClassification", "gpt2", {}),
    "classes of tokens": ("AutoModelForTokenClassification", "modernbert-base", {}),
    "answers": ("AutoModelForQuestionAnswering", "bert-base-uncased", {}),
    "entities": ("AutoModel", "luke-base", ENTITIES),
    "predictions": ("AutoModel", "xlnet-base-cased", PERMUTED),
    "memories": ("AutoModel", "xlnet-base-cased", {"use_mems": True}),
}
RELATIVE = ("deberta-v3-small", "jina-embeddings-v2-base-en", "mpnet-base", "xlnet-base-cased")


@pytest.fixture(scope="module")
def gpu():
    if unavailable_reason() is not None:
        pytest.skip(unavailable_reason())
    with driverless(emulated=False) as gpu, use_backend("cupy"):
        gpu.launches = deque(maxlen=0)  # which would keep their arguments alive
        yield gpu


def again(gpu, model, *args, **options):
    """Return the host's waits in the second pass and in the third: the first moved the parameters, the second may be
    captured, the third replayed."""
    model(*args, **options)
    gpu.waits.clear()
    for _ in range(2):
        model(*args, **options)
    return gpu.waits


@pytest.mark.parametrize("name", MODELS)
def test_a_forward_waits_for_nothing(gpu, name):
    auto, preset, inputs = MODELS[name]
    model = getattr(bertcore, auto).from_config(tiny_config(preset))
    for mask in (None, np.arange(9) < LENGTHS, HOLES):
        mask = None if mask is None else mask.astype(int)
        assert again(gpu, model, IDS, mask, **inputs) == []
    if not inputs:
        assert again(gpu, model.encode_packed, [row[:size] for row, (size,) in zip(IDS, LENGTHS, strict=True)]) == []


@pytest.mark.parametrize("name", RELATIVE)
def test_gradients_of_relative_positions_wait_for_nothing(gpu, name):
    """The longest sequence, by which they take memory, is known on the host."""
    step = value_and_grad(bertcore.AutoModelForTokenClassification.from_config(tiny_config(name)))
    mask = (np.arange(9) < LENGTHS).astype(int)
    assert again(gpu, step, input_ids=IDS, attention_mask=mask, labels=np.where(mask, IDS % 2, -100)) == []


@pytest.mark.parametrize("read", [
    lambda array: bool(array[0]),
    lambda array: int(array[0]),
    lambda array: array.item(),
    lambda array: array.get(),
    lambda array: cupy.arange(3)[cupy.arange(3) < 2],
    lambda array: cupy.where(array),
    lambda array: cupy.unique(array),
])  # fmt: skip
def test_what_waits_is_noticed(gpu, read):
    array = cupy.asarray(np.ones(1, np.int32))
    gpu.waits.clear()
    read(array)
    assert gpu.waits
