"""One model, called by several Python threads at once, on each of Numba's thread pools."""

from tests.processes import run_python
from tests.threading_layers import layer  # noqa: F401

CALLERS = """
import threading
import bertcore, numba
from tests.model_calls import Calls

calls = Calls()
for threads in (2, 8):
    calls.check_in_threads(threads, rounds=6)
for _ in range(20):
    calls.check_in_a_thread_that_exits()
done = threading.Event()

def change_the_number_of_threads():
    while not done.is_set():
        for count in (1, 2, 3):
            bertcore.set_num_threads(count)
            done.wait(0.002)

changer = threading.Thread(target=change_the_number_of_threads)
changer.start()
try:
    calls.check_in_threads(3, rounds=6)
finally:
    done.set()
    changer.join()
calls.check()
print(numba.threading_layer(), numba.config.NUMBA_NUM_THREADS)
"""

FIRST_CALLERS = """
import threading
import numpy as np
from concurrent.futures import ThreadPoolExecutor
from bertcore import AutoModel
from tests.model_calls import CONFIG

model, ids = AutoModel.from_config(CONFIG), np.arange(1, 61).reshape(4, 15)
start = threading.Barrier(4)

def first_call(_):
    start.wait()
    return model(ids).last_hidden_state

with ThreadPoolExecutor(4) as pool:
    results = list(pool.map(first_call, range(4)))
assert all(np.array_equal(result, model(ids).last_hidden_state) for result in results)
"""


def test_many_callers_and_threads_that_exit(layer):  # noqa: F811
    assert run_python(CALLERS, **layer)[0] == f"{layer['NUMBA_THREADING_LAYER']} 2"


def test_first_callers_all_at_once(layer):  # noqa: F811
    run_python(FIRST_CALLERS, **layer)
