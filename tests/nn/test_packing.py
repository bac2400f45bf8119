"""The integers of a batch in one array: where each stands, and what stands behind the batch's own."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bertcore.nn.packing import FEWEST_TOKENS, IntegerBuffer, capacity_for, close_capacity_for
from bertcore.passes import Pass
from bertcore.tape import Tape


@given(count=st.integers(0, 10**6), fewest=st.sampled_from([1, 16]))
def test_rooms_are_few_and_not_much_larger_than_what_they_hold(count, fewest):
    room = capacity_for(count, fewest)
    assert count <= room and (room == fewest or room <= 1.5 * count)
    while room % 2 == 0 and room > fewest:
        room //= 2
    assert room in (fewest, 3, fewest * 3 // 2, fewest * 3 // 4, 1)


@given(lengths=st.lists(st.integers(0, 9), max_size=12), has_types=st.booleans())
def test_arrays_stand_apart_with_empty_sequences_behind_them(lengths, has_types):
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    tokens, first = int(offsets[-1]), offsets[:-1][np.array(lengths, int) > 0]
    arrays = {
        "input_ids": np.arange(1, tokens + 1),
        "token_type_ids": np.full(tokens, 7) if has_types else None,
        "cu_seqlens": offsets,
        "first_tokens": first,
    }
    joined = IntegerBuffer.of(Pass("numpy"), arrays, len(lengths))
    given_arrays = {name: array for name, array in arrays.items() if array is not None}
    views, roomy = joined.views(), joined.with_capacity(joined.array)
    assert list(views) == list(roomy) == list(given_arrays)
    for name, array in given_arrays.items():
        np.testing.assert_array_equal(views[name], array)
        behind = roomy[name][len(array) :]
        assert len(behind) + len(array) == dict(joined.capacities)[name]
        assert (behind == (tokens if name == "cu_seqlens" else 0)).all()
    assert len(roomy["input_ids"]) == capacity_for(tokens, FEWEST_TOKENS)
    assert len(roomy["cu_seqlens"]) == len(roomy["first_tokens"]) + 1 == capacity_for(len(lengths), 1) + 1


@given(count=st.integers(0, 10**6))
def test_close_rooms_are_at_most_an_eighth_larger(count):
    room = close_capacity_for(count)
    assert count <= room <= count + count / 8
    assert close_capacity_for(room) == room
    assert room % max(1, 2 ** max(room - 1, 1).bit_length() // 16) == 0


@given(lengths=st.lists(st.integers(0, 99), max_size=70))
def test_in_training_all_tokens_are_in_sequences_no_longer_than_the_batchs(lengths):
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    arrays = {"input_ids": np.arange(1, offsets[-1] + 1), "cu_seqlens": offsets}
    joined = IntegerBuffer.of(Pass("numpy", tape=Tape()), arrays, len(lengths))
    roomy = joined.with_capacity(joined.array)
    tokens = close_capacity_for(int(offsets[-1]))
    assert len(roomy["input_ids"]) == tokens == roomy["cu_seqlens"][-1]
    np.testing.assert_array_equal(roomy["cu_seqlens"][: len(offsets)], offsets)
    found = np.diff(roomy["cu_seqlens"])
    assert (found >= 0).all() and found.max(initial=0) == max(lengths, default=0)
