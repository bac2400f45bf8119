"""A model and calls of it whose results are known: what tests of threads and processes run wherever they are."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.testing  # at once: a child forked while another thread imports it would wait for that for ever

CONFIG = {
    "model_type": "bert", "vocab_size": 99, "hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 192, "initializer_range": 0.2,
}  # fmt: skip
SHAPES = [(1, 1), (8, 64), (3, 39)]


class Calls:
    """A model, batches of several shapes, and what the model made of them when nothing else was going on."""

    def __init__(self, seed: int = 0):
        from bertcore import AutoModel

        self.model = AutoModel.from_config(CONFIG, seed=seed)
        rng = np.random.default_rng(seed)
        self.batches = [rng.integers(1, CONFIG["vocab_size"], shape) for shape in SHAPES]
        self.wanted = [self.model(batch).last_hidden_state for batch in self.batches]

    def check(self, rounds: int = 1) -> None:
        """Call the model on every batch and compare the bits."""
        for _ in range(rounds):
            for batch, wanted in zip(self.batches, self.wanted, strict=True):
                np.testing.assert_array_equal(self.model(batch).last_hidden_state, wanted)

    def check_in_threads(self, threads: int, rounds: int) -> None:
        """The same in several Python threads at once, which are gone when this returns."""
        with ThreadPoolExecutor(threads) as pool:
            for done in [pool.submit(self.check, rounds) for _ in range(threads)]:
                done.result()


def check_elsewhere(wanted: list[np.ndarray], seed: int) -> int:
    """In a process that got only this: the number of threads, after the results of a model of its own were right."""
    import bertcore

    calls = Calls(seed)
    for ours, theirs in zip(calls.wanted, wanted, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    calls.check_in_threads(2, rounds=2)
    return bertcore.get_num_threads()
