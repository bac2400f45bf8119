"""Models in threads, and in forked and spawned processes, on each of Numba's thread pools."""

import os

import pytest

from tests.processes import run_python

MODULES = {"tbb": "tbbpool", "omp": "omppool", "workqueue": "workqueue"}


@pytest.fixture(params=["tbb", *(pytest.param(name, marks=pytest.mark.slow) for name in ("workqueue", "omp"))])
def layer(request) -> dict[str, str]:
    """Return the environment of a process that runs kernels on two threads of one pool; each loadable pool in turn."""
    from bertcore.kernels import _numba  # noqa: F401 (which makes tbb loadable)

    pytest.importorskip(f"numba.np.ufunc.{MODULES[request.param]}", exc_type=ImportError)
    return {"NUMBA_THREADING_LAYER": request.param, "OMP_NUM_THREADS": "2"}


forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")

# The parent has run the model in its main thread (a server that preloads it); three children at once, and each
# calls it in its main thread, in a grandchild, and in two threads. Then the same again, without grandchildren, after
# the parent has run it in several threads, which tbb does not survive either.
PRELOAD = """
import os, sys
import bertcore
from tests.model_calls import Calls

calls = Calls()

def fork(work):
    child = os.fork()
    if child == 0:
        work()
        sys.exit()  # the ordinary end, not os._exit
    return child

def end(child):
    status = os.waitpid(child, 0)[1]
    assert status == 0, f"a child ended with {status}"

def serve(generations):
    calls.check()
    if generations > 1:
        end(fork(calls.check))
    calls.check_in_threads(2, rounds=2)
    try:
        bertcore.set_num_threads(2)
        found = ""
    except RuntimeError as error:
        found = f"error: {error}\\n"
    os.write(1, f"{found}threads: {bertcore.get_num_threads()}\\n".encode())  # at once, or the children's would mix

for generations in (2, 1):
    for child in [fork(lambda: serve(generations)) for _ in range(3)]:
        end(child)
    calls.check_in_threads(2, rounds=2)
"""

# Forks while four other threads call the model; then from another thread than the main one.
BUSY = """
import os, threading
from tests.model_calls import Calls

calls, stopped = Calls(), threading.Event()

def call_on():
    while not stopped.is_set():
        calls.check()

def fork():
    child = os.fork()
    if child == 0:
        calls.check(3)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert status == 0, f"a child ended with {status}"

callers = [threading.Thread(target=call_on) for _ in range(4)]
for caller in callers:
    caller.start()
try:
    for _ in range(10):
        fork()
finally:
    stopped.set()
    for caller in callers:
        caller.join()
failures = []
threading.excepthook = failures.append
forker = threading.Thread(target=fork)
forker.start()
forker.join()
assert not failures, failures
calls.check()
print("well")
"""

MULTIPROCESSING = """
import multiprocessing, sys
import bertcore
from tests.model_calls import Calls, check_elsewhere

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    calls = Calls(5)
    with context.Pool(2) as pool:
        print(pool.starmap(check_elsewhere, [(calls.wanted, 5)] * 2, chunksize=1))
    calls.check()
"""

LOCKED = """
import os, signal, sys, threading, time
from numba.core.compiler_lock import global_compiler_lock
from numba.np.ufunc.parallel import _backend_init_thread_lock
from bertcore.kernels._numba import kernel

held, lock = threading.Event(), vars()[sys.argv[1]]

def work():
    with lock:
        held.set()
        time.sleep(0.3)

worker = threading.Thread(target=work)
worker.start()
held.wait()
child = os.fork()
if child == 0:
    signal.alarm(120)
    import numpy as np
    from bertcore.kernels import softmax
    softmax(np.ones((2, 3), np.float32))
    os._exit(0)
worker.join()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""

ONE_CPU = """
import os, signal
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import numpy as np
from concurrent.futures import ThreadPoolExecutor
from bertcore.kernels import softmax

signal.alarm(60)
numbers = np.ones((2000, 300), np.float32)
if FORKS:
    softmax(numbers)
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
with ThreadPoolExecutor(1) as pool:
    pool.submit(softmax, numbers).result()
"""


@forks
def test_children_of_a_parent_that_has_run_the_model(layer):
    lines = run_python(PRELOAD, **layer)[0].splitlines()
    first, second = {"tbb": (2, 1), "omp": (1, 1), "workqueue": (2, 2)}[layer["NUMBA_THREADING_LAYER"]]
    found = [line for line in lines if line.startswith("threads")]
    assert found == [f"threads: {first}"] * 3 + [f"threads: {second}"] * 3
    errors = [line for line in lines if line.startswith("error")]
    assert len(errors) == 3 * (first == 1) + 3 * (second == 1)
    for line in errors:
        assert line.startswith("error: count is 2, but this process has one thread (forked after ")


@forks
def test_children_of_a_parent_whose_threads_are_computing(layer):
    assert "well" in run_python(BUSY, **layer)[0].splitlines()  # tbb prints beside it


@forks
def test_multiprocessing_by_forks(layer):
    threads = 1 if layer["NUMBA_THREADING_LAYER"] == "omp" else 2
    assert run_python(MULTIPROCESSING, "fork", **layer)[0] == str([threads] * 2)


@pytest.mark.slow
def test_spawned_processes(layer):
    assert run_python(MULTIPROCESSING, "spawn", **layer)[0] == "[2, 2]"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system does not bind processes to CPUs")
@pytest.mark.parametrize("forks", [True, False])
def test_a_process_on_one_cpu_ends(layer, forks):
    run_python(ONE_CPU.replace("FORKS", str(forks)), **layer)


@forks
@pytest.mark.parametrize("lock", ["global_compiler_lock", "_backend_init_thread_lock"])
def test_fork_waits_for_compilation_and_pool_start(lock):
    """The child would wait forever for a lock that none of its threads holds."""
    run_python(LOCKED, lock)


CALLERS = """
import threading
import bertcore, numba
from tests.model_calls import Calls

calls = Calls()
for threads in (2, 8):
    calls.check_in_threads(threads, rounds=6)
for _ in range(20):
    calls.check_in_threads(1, rounds=1)
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


def test_many_callers_and_threads_that_exit(layer):
    assert run_python(CALLERS, **layer)[0] == f"{layer['NUMBA_THREADING_LAYER']} 2"


def test_first_callers_all_at_once(layer):
    run_python(FIRST_CALLERS, **layer)
