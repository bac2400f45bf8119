"""Checks that a call raises an error that names the argument, what came and what was expected."""

import pytest


def refuses(error, message, call, /, *arguments, **options):
    """The call with these arguments raises `error`, whose text matches `message`; None matches any."""
    __tracebackhide__ = True
    with pytest.raises(error, match=message):
        call(*arguments, **options)


def check_refused(call, error, fragments):
    """`call` raises `error`, whose message has the words of `fragments` in their order; parentheses keep one word."""
    with pytest.raises(error) as caught:
        call()
    message = str(caught.value)
    at = 0
    for fragment in _split(fragments):
        assert fragment in message[at:], f"{fragment!r} is not in (the rest of) {message!r}"
        at = message.index(fragment, at) + len(fragment)


def _split(fragments):
    words, depth = [""], 0
    for character in fragments:
        depth += (character in "([") - (character in ")]")
        if character == " " and not depth:
            words.append("")
        else:
            words[-1] += character
    return words
