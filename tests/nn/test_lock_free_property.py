"""Attributes that are computed when they are first read."""

import threading

from bertcore.nn.lock_free_property import lock_free_property


class Slow:
    def __init__(self):
        self.calls, self.reached, self.may_go_on = 0, threading.Event(), threading.Event()

    @lock_free_property
    def answer(self):
        """What it is."""
        self.calls += 1
        self.reached.set()
        self.may_go_on.wait(10)
        return self.calls


def test_it_is_computed_once():
    slow = Slow()
    slow.may_go_on.set()
    assert (slow.answer, slow.answer, slow.calls) == (1, 1, 1)
    assert Slow.answer.__doc__ == "What it is."


def test_one_instance_does_not_wait_for_another():
    waiting, other = Slow(), Slow()
    other.may_go_on.set()
    thread = threading.Thread(target=lambda: waiting.answer)
    thread.start()
    assert waiting.reached.wait(10)
    assert other.answer == 1 and thread.is_alive()
    waiting.may_go_on.set()
    thread.join()
