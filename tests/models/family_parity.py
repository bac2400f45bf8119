"""One comparison with transformers for every family and every head: outputs, loss, gradients, what is saved.

Imports torch and transformers when called: for parity tests only. PyTorch in float64 is the truth.
"""

import copy
import json
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import bertcore
from bertcore import use_backend, value_and_grad
from tests.conftest import CPU_BACKENDS
from tests.tiny_families import drawn_anew

OUTPUT, GRADIENT = 2e-5, 1e-4  # relative to the scale of the truth, or 4 times PyTorch's own float32 error if larger
# Biases that transformers keeps, and does not use, where the decoder is not tied and has its own.
UNUSED = ("predictions.bias", "lm_head.bias")
CHOICES = 3


def random_model(config: Any, task: str | type | None, rng: np.random.Generator) -> Any:
    """A model of transformers for `task` (an entry of TASKS, a class of its own, or None for the encoder), every
    parameter drawn anew: as transformers draws them, every layer is close to the identity and most mistakes invisible.
    """
    import torch
    import transformers

    whole = "AutoModelForTextEncoding" if getattr(config, "is_encoder_decoder", False) else "AutoModel"
    kind = task if isinstance(task, type) else getattr(transformers, f"AutoModelFor{task}" if task else whole)
    make, config = kind._from_config if isinstance(task, type) else kind.from_config, copy.deepcopy(config)
    if task == "QuestionAnswering":
        config.num_labels = 2  # transformers reads them as start and end
    model = make(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            fan_in = parameter.shape[-1] if parameter.ndim > 1 else 16
            values = rng.normal(0.0, 0.5 if "embeddings" in name else 1.2 / np.sqrt(fan_in), parameter.shape)
            if parameter.ndim == 1 and name.endswith("weight"):  # of a norm
                values = 1 + 0.3 * values
            parameter.copy_(torch.from_numpy(values))
        if config.model_type == "mobilebert":
            _tame(model, config)
    return model


def _tame(model: Any, config: Any) -> None:
    """Bring MobileBERT to where it can be compared: norms without statistics let sums grow from layer to layer, beyond
    what float32 tells, and transformers puts the embedding of padding beside the last word unless that is zero."""
    model.get_input_embeddings().weight[config.pad_token_id or 0] = 0
    for name, parameter in model.named_parameters():
        if config.normalization_type == "no_norm" and name.endswith("LayerNorm.weight"):
            parameter.mul_(0.5)


def random_batch(
    config: Any, lengths: list[int], rng: np.random.Generator, *, padding: str = "right"
) -> dict[str, np.ndarray]:
    """int64 arrays (batch, longest): input_ids, attention_mask and token_type_ids; real tokens are not the padding."""
    shape = (len(lengths), max(lengths))
    real = np.arange(shape[1]) < np.array(lengths)[:, None]
    if padding == "left":
        real = real[:, ::-1]
    pad = config.pad_token_id or 0
    words = rng.integers(0, config.vocab_size - 1, shape)
    words += words >= pad  # any word but the padding
    batch = {"input_ids": np.where(real, words, pad), "attention_mask": real.astype(np.int64)}
    if kinds := getattr(config, "type_vocab_size", 0):
        batch["token_type_ids"] = np.where(real, rng.integers(0, kinds, shape), 0)
    return batch


def random_targets(config: Any, task: str | None, batch: dict, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return random labels for the head of `task` and a batch of `random_batch`."""
    mask, sequences = batch["attention_mask"].astype(bool), len(batch["input_ids"])
    labelled = mask & (rng.random(mask.shape) < 0.5)
    labelled[np.arange(sequences), mask.argmax(axis=1)] = True

    def classes(count: int) -> np.ndarray:
        return np.where(labelled, rng.integers(0, count, mask.shape), -100)

    pairs = {"bert": "next_sentence_label", "mobilebert": "next_sentence_label", "albert": "sentence_order_label"}
    if task in ("MaskedLM", "CausalLM"):
        return {"labels": classes(config.vocab_size)}
    if task == "TokenClassification":
        return {"labels": classes(config.num_labels)}
    if task == "PreTraining" and config.model_type == "electra":
        return {"labels": rng.integers(0, 2, mask.shape)}
    if task == "PreTraining":
        pair = pairs.get(config.model_type)
        return {"labels": classes(config.vocab_size)} | ({pair: rng.integers(0, 2, sequences)} if pair else {})
    if task == "QuestionAnswering":
        return {name: rng.integers(0, mask.shape[1], sequences) for name in ("start_positions", "end_positions")}
    if task == "SequenceClassification":
        return {"labels": rng.integers(0, config.num_labels, sequences)}
    if task == "NextSentencePrediction":
        return {"labels": rng.integers(0, 2, sequences)}
    return {"labels": rng.integers(0, CHOICES, sequences)} if task == "MultipleChoice" else {}


def with_choices(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The batch with CHOICES texts for each question: itself and copies with the words in another order."""
    orders = [lambda array, k=k: np.where(batch["attention_mask"] > 0, np.roll(array, k, axis=0), array) for k in
              range(CHOICES)]  # fmt: skip
    fixed = {"attention_mask"}
    return {
        name: np.stack([array] * CHOICES if name in fixed else
                       [np.roll(array, k, axis=0) for k in range(CHOICES)] if name.startswith("entity_") else
                       [order(array) for order in orders], axis=1)
        for name, array in batch.items()
    }  # fmt: skip


def run_torch(model: Any, batch: dict, targets: dict, *, double: bool, traced: bool = True) -> tuple[dict, dict]:
    """(outputs by name, gradients of its loss by parameter) of a transformers model, in float64 or float32."""
    import torch
    from transformers.core_model_loading import revert_weight_conversion

    model = copy.deepcopy(model).to(torch.float64 if double else torch.float32).eval()
    tensors = {}
    for name, array in (batch | targets).items():
        tensor = torch.from_numpy(np.array(array))
        tensors[name] = tensor.to(torch.float64 if double else torch.float32) if tensor.is_floating_point() else tensor
    options = {"output_hidden_states": True, "output_attentions": True} if traced else {}
    out = model(**tensors, **options)
    grads = {}
    if targets:
        out.loss.backward()
        first = model.all_tied_weights_keys  # tied parameters come under the name that stands first in the class
        named = {first.get(name, name): p.grad for name, p in model.named_parameters() if p.grad is not None}
        as_in_files = revert_weight_conversion(model, named)
        grads = {name: grad.numpy() for name, grad in as_in_files.items()}
    return _arrays(
        out, lambda tensor: (tensor if tensor.dtype.itemsize > 2 else tensor.float()).detach().numpy()
    ), grads


def _arrays(out: Any, convert: Any) -> dict[str, np.ndarray]:
    found = {}

    def note(name: str, value: Any) -> None:
        if isinstance(value, tuple | list):
            for index, part in enumerate(value):
                note(f"{name} {index}", part)
        elif value is not None:
            found[name] = convert(value)

    for name, value in out.items():
        note(name, value)
    return found


def _real(array: np.ndarray, name: str, batch: dict, kind: str = "") -> np.ndarray:
    """`array` with what belongs to padding set to zero, as a model of the class `kind` returns it in bertcore."""
    of_tokens = ("start_logits", "end_logits", *(("logits",) if kind == "Discriminator" else ()))
    if array.ndim == 2 and name not in of_tokens:  # of sequences, though there may be as many classes as tokens
        return array
    mask, entities = batch["attention_mask"], batch.get("entity_attention_mask")
    if name.startswith("attentions") and entities is not None:
        mask = np.concatenate([mask, entities], axis=-1)
    elif name.startswith("entity_") or (name == "logits" and "EntitySpan" in kind):
        mask = entities
    mask = mask.reshape(-1, mask.shape[-1])
    if name.startswith("attentions"):
        return array * mask[:, None, :, None] if array.shape[-2] == mask.shape[1] else array
    if name.startswith("mems") and array.shape[:2] == mask.T.shape:
        return array * mask.T[..., None]
    if array.ndim >= 2 and array.shape[:2] == mask.shape:
        return array * mask.reshape(*mask.shape, *[1] * (array.ndim - 2))
    return array


def assert_within(ours: np.ndarray, truth: np.ndarray, single: np.ndarray, tolerance: float, name: str, floor=0.0):
    """`ours` is within `tolerance` of the truth's scale, or 4 times the error of `single`."""
    assert ours.shape == truth.shape, (name, ours.shape, truth.shape)
    error = np.abs(ours - truth).max(initial=0)
    scale, allowed = np.abs(truth).max(initial=0), 4 * np.abs(single - truth).max(initial=0)
    assert error <= max(tolerance * scale, allowed, floor), f"{name}: off by {error:.3g} at a scale of {scale:.3g}"


def check(
    config: Any,
    task: str | type | None,
    batch: dict[str, np.ndarray],
    *,
    targets: dict[str, np.ndarray] | None = None,
    seed: int = 0,
    skipped: tuple[str, ...] = (),
    unwritten: tuple[str, ...] = (),
) -> None:
    """Hold bertcore's model of this config, task and batch against that of transformers, both from one checkpoint, on
    every backend of the CPU.

    Args:
        task: an entry of TASKS, None for the encoder alone, or a class of transformers whose name says the task.
        batch: the inputs, with attention_mask; with_choices makes those of MultipleChoice.
        targets: labels; by default random ones.
        skipped: outputs (beginnings of their names) that are not compared.
        unwritten: parameters (ends of their names) that transformers has and the model does not.
    """
    rng = np.random.default_rng(seed)
    model = random_model(config, task, rng)
    if targets is None:
        targets = random_targets(config, task, batch, rng) if isinstance(task, str) else {}
    if task == "MultipleChoice":
        batch = with_choices(batch)
    name = (f"AutoModel{task.__name__[task.__name__.index('For'):]}" if isinstance(task, type) else
            f"AutoModelFor{task}" if task else "AutoModel")  # fmt: skip
    truth, single = (run_torch(model, batch, targets, double=double) for double in (True, False))
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        for backend in CPU_BACKENDS:
            with use_backend(backend), warnings.catch_warnings():
                warnings.simplefilter("error")
                ours = getattr(bertcore, name).from_pretrained(folder)
                _check_outputs(ours, batch, truth[0], single[0], skipped)
                if targets:
                    _check_targets(ours, batch | targets, truth, single)
        ours.save_pretrained(Path(folder) / "again")
        assert json.loads((Path(folder) / "again" / "config.json").read_text())["architectures"]
        _check_saved(type(model), Path(folder) / "again", batch, truth[0], unwritten)


def _check_outputs(ours: Any, batch: dict, truth: dict, single: dict, skipped: tuple[str, ...]) -> None:
    traced = {"output_hidden_states": True, "output_attentions": True}
    outputs = _arrays(ours(**batch, **traced), np.asarray)
    plain = _arrays(ours(**batch), np.asarray)  # not traced: another path
    kind = type(ours).__name__
    compared = [key for key in truth if not key.endswith("loss") and not key.startswith(skipped)]
    for key in compared:
        expected, rough = (_real(arrays[key], key, batch, kind) for arrays in (truth, single))
        if key.startswith("mems"):  # which have what padding becomes only where they are asked for
            outputs[key] = _real(outputs[key], key, batch)
        assert_within(outputs[key], expected, rough, OUTPUT, key)
        if key in plain and not key.startswith("mems"):
            assert_within(plain[key], expected, rough, OUTPUT, f"{key} alone")
    assert set(outputs) == set(compared)


def _check_targets(ours: Any, inputs: dict, truth: tuple[dict, dict], single: tuple[dict, dict]) -> None:
    found, grads = value_and_grad(ours)(**inputs)
    for loss in (key for key in truth[0] if key.endswith("loss")):
        assert_within(np.asarray(found[loss]), truth[0][loss], single[0][loss], OUTPUT, loss)
    _check_gradients(grads, truth[1], single[1])


def _check_gradients(grads: dict, truth: dict, single: dict) -> None:
    largest = max(np.abs(gradient).max(initial=0) for gradient in truth.values())
    assert set(truth) <= set(grads), sorted(set(truth) - set(grads))
    # Some are zero but for rounding and have no scale of their own (a key's bias, the bias of a choice's only score):
    # sums of numbers of order 1, which round to a few units in their last place however small the other gradients are.
    for name, gradient in truth.items():
        vanishes = np.abs(gradient).max(initial=0) < 1e-12
        floor = max(2e-6 * largest, (4 if vanishes else 3) * np.finfo(np.float32).eps)
        assert_within(grads[name], gradient, single[name], GRADIENT, name, floor)


def _check_saved(kind: Any, folder: Path, batch: dict, truth: dict, unwritten: tuple[str, ...]) -> None:
    """transformers loads what we saved to the same outputs, and misses nothing."""
    model, info = kind.from_pretrained(folder, output_loading_info=True, attn_implementation="eager")
    known = unwritten if model.config.tie_word_embeddings else (*unwritten, *UNUSED)
    missing = [name for name in info["missing_keys"] if not name.endswith(known)]
    assert not missing and not info["unexpected_keys"], info
    again, _ = run_torch(model, batch, {}, double=True, traced=False)
    for key, expected in truth.items():
        if key in again and np.abs(expected).max(initial=0) > 0:
            scale = np.abs(expected).max()
            np.testing.assert_allclose(again[key] / scale, expected / scale, rtol=0, atol=1e-5, err_msg=f"saved {key}")


def check_saved_config(config: dict[str, Any], folder: Path) -> None:
    """A model of a config in an older spelling is saved as transformers reads it, and as we read it again."""
    import torch
    import transformers

    model, ids = drawn_anew(bertcore.AutoModel.from_config(config)), np.arange(22).reshape(2, 11) + 7
    model.save_pretrained(folder)
    theirs, info = transformers.AutoModel.from_pretrained(folder, output_loading_info=True)
    assert not info["unexpected_keys"] and not [name for name in info["missing_keys"] if "pooler" not in name], info
    with use_backend("numpy"), torch.no_grad():
        found = model(ids).last_hidden_state
        again = bertcore.AutoModel.from_pretrained(folder)(ids).last_hidden_state
        expected = theirs.eval()(torch.from_numpy(ids)).last_hidden_state.numpy()
    for other in (again, expected):
        np.testing.assert_allclose(other, found, rtol=0, atol=2e-5 * np.abs(found).max())
