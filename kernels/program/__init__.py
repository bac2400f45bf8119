"""Programs: operations that are noted one after another and then run together, in one call of compiled code.

Between two operations a model's weights and activations sweep the processor's caches, so that the Python code around
the next one comes back from main memory: 30 to 130 us for an operation of BERT-base, 10 us if nothing ran in between.
A program notes all operations first, while that code is warm, and crosses to compiled code once.

`Program.enter(array)` gives a `Deferred`, which the operations take in the array's place; those that have a deferred
form (`deferred_<name>`, listed in cpu.py) note a step and return a Deferred again; all others run the program so far
and compute at once, so that every combination of operations is right. Reading a Deferred as an array runs the program,
too.

Steps run in their order, so the memory of a Deferred that is gone serves later steps of the same program. `Recordings`
keeps programs, with their memory, for shapes that come again. This folder imports operations; nothing here imports it.
"""

from .program import Program
from .recordings import Recordings

__all__ = ["Program", "Recordings"]
