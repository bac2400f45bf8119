"""Programs: operations that are recorded one after another and then run together, in one call of compiled code.

Between two operations, a model's weights and activations evict the Python code around the next one from the processor's
caches: 30 to 130 us for an operation of BERT-base, 10 us if nothing ran in between. A program records all operations
first, while that code is cached, and calls compiled code once.

`Program.enter(array)` returns a `Deferred`, which operations accept in place of the array; those with a deferred form
(`deferred_<name>`, listed in cpu.py) record a step and return another Deferred; all others run the program so far and
compute at once, so that every combination of operations is correct. Reading a Deferred as an array also runs the
program.

Steps run in order, so the memory of a deleted Deferred is reused by later steps of the same program. `Recordings`
keeps programs, with their memory, for shapes that recur. This folder imports operations; nothing here imports it.
"""

from .program import Program, Recordings

__all__ = ["Program", "Recordings"]
