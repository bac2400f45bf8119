"""The tape: gradients of composed operations, sharing, and what it refuses."""

import functools
import gc
import tracemalloc
import weakref

import numpy as np
import pytest

from bertcore import AutoModelForCausalLM, AutoModelForMaskedLM, kernels, value_and_grad
from bertcore.nn import functional
from bertcore.nn.operation import operation
from bertcore.passes import Pass
from bertcore.tape import Tape, Variable, checkpoint, current_tape
from tests.refusals import refuses
from tests.tiny_bert import CONFIG
from tests.tiny_families import tiny_config
from tests.tolerances import assert_same_arrays


@operation()
def multiply(run, left, right):
    return left * right, lambda grad: (grad * right, grad * left)


def test_without_a_tape_operations_return_plain_arrays():
    assert current_tape() is None
    assert type(multiply(Pass.begin(), np.float64(2), np.float64(3))) is np.float64


def times(*factors):
    return functools.reduce(functools.partial(multiply, Pass.begin()), factors)


def ignoring(value, used):
    times(value, value)
    return used


EXPRESSIONS = {  # of x = 3 and y = 5: the function, and its gradients
    "xy + x^2": (lambda x, y: functional.add(Pass.begin(), times(x, y), times(x, x)), {"x": 5 + 2 * 3, "y": 3}),
    "x^4": (lambda x, y: times(x, x, x, x), {"x": 4 * 3**3}),
    "x^2, y not used": (lambda x, y: ignoring(y, times(x, x)), {"x": 2 * 3}),
    "x^4 by checkpoints": (
        lambda x, y: times(checkpoint(lambda z: times(checkpoint(times, z, z), z), checkpoint(lambda z: z, x)), x),
        {"x": 4 * 3**3},
    ),
}


@pytest.mark.parametrize("function, gradients", EXPRESSIONS.values(), ids=EXPRESSIONS)
def test_gradients_of_a_composition(function, gradients):
    with Tape() as tape:
        output = function(tape.leaf("x", np.float64(3)), tape.leaf("y", np.float64(5)))
    assert tape.gradients(output, np.float64(1)) == gradients


def test_a_shared_gradient_is_not_written_into():
    """add hands the same array to both sides; summing into it in place would count it twice."""
    with Tape() as tape:
        x = tape.leaf("x", np.ones(3))
        y = tape.leaf("y", np.ones(3))
        z = functional.add(Pass.begin(), x, y)
        output = functional.add(Pass.begin(), functional.add(Pass.begin(), z, x), x)
    seed = np.ones(3)
    gradients = tape.gradients(output, seed)
    np.testing.assert_array_equal(gradients["x"], [3, 3, 3])
    np.testing.assert_array_equal(gradients["y"], [1, 1, 1])
    np.testing.assert_array_equal(seed, [1, 1, 1])


def test_gradients_of_leaves_share_no_memory():
    """Gradients may come from one array: scaling them in place must not scale one twice."""
    with Tape() as tape:
        x, y, z = (tape.leaf(key, np.ones((2, 3))) for key in "xyz")
        turned = functional.reshape(Pass.begin(), z, shape=(3, 2))
        output = functional.concatenate(
            Pass.begin(), functional.add(Pass.begin(), x, y), functional.reshape(Pass.begin(), turned, shape=(2, 3))
        )
        output = checkpoint(lambda it: functional.reshape(Pass.begin(), it, shape=(2, 6)), output)
    seed = np.ones((2, 6))
    gradients = list(tape.gradients(output, seed).values())
    arrays = [seed, *gradients]
    for index, array in enumerate(arrays):
        assert not any(np.may_share_memory(array, other) for other in arrays[:index])
        np.testing.assert_array_equal(array, np.ones(array.shape))


def test_memory_of_leaves_does_not_wait_for_the_garbage_collector():
    gc.collect()
    gc.disable()
    try:
        with Tape() as tape:
            x = tape.leaf("x", np.ones(3))
            output = multiply(Pass.begin(), x, x)
        ended = []
        weakref.finalize(x.value, ended.append, "x")
        tape.gradients(output, np.ones(3))
        del x, output, tape
        assert ended == ["x"]
    finally:
        gc.enable()


def test_rows_of_a_leaf_are_added_to_what_it_has():
    table, dense = np.zeros((5, 2)), np.arange(10.0).reshape(5, 2)
    for late in (True, False):  # whether the rows come after the whole table, in the backward
        with Tape() as tape:
            whole, rows = tape.leaf("x", table, "whole"), tape.leaf("x", table)
            taken = functional.take_rows(Pass.begin(), rows, rows=np.array([3, 1, 3]), padding_row=1)
            parts = [taken, functional.scale(Pass.begin(), whole, factor=1.0)]
            output = functional.concatenate(Pass.begin(), *(parts if late else parts[::-1]))
        seed = np.concatenate([np.full((3, 2), 10.0), dense][:: 1 if late else -1])
        expected = dense + np.array([[0], [0], [0], [20], [0]])
        np.testing.assert_array_equal(tape.gradients(output, seed)["x"], expected)


def test_arithmetic_outside_the_operations_fails_loudly():
    with Tape() as tape:
        x = tape.leaf("x", np.ones(3))
    assert isinstance(x, Variable)
    for expression in (lambda: x + x, lambda: x * 2, lambda: x[0], lambda: np.ones(3)[0] + x):
        refuses(TypeError, None, expression)


def test_the_tape_ends_with_its_block():
    with pytest.raises(RuntimeError, match="inside"), Tape():
        raise RuntimeError("inside")
    assert current_tape() is None


def test_forms_of_one_leaf_sum_their_gradients():
    with Tape() as tape:
        array, other = tape.leaf("x", np.float64(2)), tape.leaf("x", np.float64(7), "prepared")
        assert tape.leaf("x", None) is array
        output = times(array, other, array)
    assert tape.gradients(output, np.float64(1)) == {"x": 2 * 2 * 7 + 2 * 2}


class Chain:
    """Layers that multiply by one shared parameter and by one of their own, and count their calls."""

    def __init__(self, kept):
        self.kept, self.calls, self.ended = kept, 0, []

    def layer(self, hidden, index):
        self.calls += 1
        tape = current_tape()
        for key in ("shared", index):
            hidden = multiply(Pass.begin(), hidden, tape.leaf(key, PARAMETERS[key]))
            weakref.finalize(hidden.value, self.ended.append, key)
        return hidden

    def run(self):
        with Tape() as tape:
            hidden = tape.leaf("input", PARAMETERS["input"])
            for index in range(3):
                hidden = checkpoint(self.layer, hidden, index) if self.kept == "outputs" else self.layer(hidden, index)
        return tape, hidden


RNG = np.random.default_rng(0)
PARAMETERS = {key: RNG.normal(size=1000).astype(np.float32) for key in ("input", "shared", 0, 1, 2)}


def test_a_checkpoint_has_the_same_bits_and_keeps_only_outputs():
    whole, cut = Chain("everything"), Chain("outputs")
    (tape, hidden), (cut_tape, cut_hidden) = whole.run(), cut.run()
    assert not whole.ended
    assert cut.ended == ["shared"] * 3  # what stands within a layer is let go at its end
    np.testing.assert_array_equal(cut_hidden.value, hidden.value)
    seed = np.ones(1000, np.float32)
    expected, found = tape.gradients(hidden, seed), cut_tape.gradients(cut_hidden, seed)
    assert cut.calls == 2 * whole.calls == 6
    assert found.keys() == PARAMETERS.keys()
    assert_same_arrays(found, expected)


def test_a_checkpoint_runs_again_under_the_backend_it_ran_under():
    seen = []

    def block(x):
        seen.append(kernels.get_backend())
        return multiply(Pass.begin(), x, x)

    with Tape() as tape, kernels.use_backend("numpy"):
        output = checkpoint(block, tape.leaf("x", np.float64(3)))
    tape.gradients(output, np.float64(1))
    assert seen == ["numpy", "numpy"]
    assert checkpoint(lambda x: x + 1, 2) == 3  # without a tape: a call


def test_what_is_made_within_a_checkpoint_may_not_be_used_outside():
    shared = []

    def block(x):
        shared.append(multiply(Pass.begin(), x, x))
        return multiply(Pass.begin(), shared[0], x)

    with Tape() as tape:
        x = tape.leaf("x", np.float64(3))
        checkpoint(block, x)
        refuses(RuntimeError, r"multiply got an array .* within tape\.checkpoint", multiply, Pass.begin(), shared[0], x)


def test_layers_of_a_model_that_run_again_have_the_same_gradients_in_less_memory():
    model = AutoModelForMaskedLM.from_config(CONFIG | {"num_hidden_layers": 6})
    ids = np.arange(16 * 40).reshape(16, 40) % CONFIG["vocab_size"]

    def measured():
        tracemalloc.start()
        out, grads = value_and_grad(model)(ids, labels=ids)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return out.loss, grads, peak

    with kernels.use_backend("numpy"):
        measured()  # imports, caches
        loss, grads, peak = measured()
        model.gradient_checkpointing_enable()
        assert model.is_gradient_checkpointing
        again_loss, again, less = measured()
        model.gradient_checkpointing_disable()
        assert measured()[2] > 0.9 * peak
    assert again_loss == loss
    assert_same_arrays(again, grads)
    assert less < 0.6 * peak


@pytest.mark.parametrize("name", ["albert-base-v2", "deberta-v3-base", "xlnet-base-cased"])
def test_families_whose_layers_run_again(name):
    """Shared layers, positions that all layers share, and two streams, which are a tuple; with dropout."""
    config = tiny_config(name) | {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.2, "dropout": 0.2}
    ids = np.random.default_rng(0).integers(6, 97, (3, 7))
    batch = {"input_ids": ids, "labels": ids}
    if name.startswith("xlnet"):
        streams = {"perm_mask": np.triu(np.ones((7, 7))), "target_mapping": np.eye(7)}
        batch |= {key: array[None].repeat(3, 0) for key, array in streams.items()}
    model = (AutoModelForCausalLM if name.startswith("xlnet") else AutoModelForMaskedLM).from_config(config)
    loss, grads = value_and_grad(model.train(seed=3))(**batch)
    model.gradient_checkpointing_enable()
    again_loss, again = value_and_grad(model.train(seed=3))(**batch)
    assert again_loss.loss == loss.loss
    assert_same_arrays(again, grads)
