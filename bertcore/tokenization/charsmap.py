"""Checking SentencePiece's compiled map of characters before the `tokenizers` library walks it.

The map is the size of a trie in bytes, the trie (a double array of 32-bit units, packed as in
https://github.com/s-yata/darts-clone) and the strings that replace what the trie finds, each ended by a zero byte. The
library trusts every index in it, and its Rust code panics at a text that leads outside.
"""

import numpy as np

STATES_AT_ONCE = 4096  # 8 MB of positions
BYTES = np.arange(1, 256)  # the library stops at a zero byte


def check_charsmap(charsmap: bytes) -> None:
    """Raises ValueError when its parts do not fit together, or a text would lead outside it, or to what is no UTF-8."""
    size = int.from_bytes(charsmap[:4], "little")
    if size == 0 or size % 4 or 4 + size > len(charsmap):
        raise ValueError(f"its trie has {size} bytes, expected a multiple of 4, and at most {len(charsmap) - 4}")
    trie = np.frombuffer(charsmap, "<u4", size // 4, 4).astype(np.int64)
    strings = np.frombuffer(charsmap, np.uint8, offset=4 + size)
    _check_strings(strings, _values(trie))


def _values(trie: np.ndarray) -> np.ndarray:
    """Every value that the trie can give, found by walking all of its states; ValueError when one lies outside."""
    seen = np.zeros(len(trie), bool)
    states, values = _targets(np.zeros(1, np.int64), trie), []
    while states.size:
        states = np.unique(states)
        if states[-1] | 0xFF >= len(trie):
            raise ValueError(f"its trie leads to unit {states[-1]} of {len(trie)}")
        states = states[~seen[states]]
        seen[states] = True
        found = [_step(states[start : start + STATES_AT_ONCE], trie) for start in range(0, len(states), STATES_AT_ONCE)]
        states = np.concatenate([state for state, _ in found]) if found else states
        leaves = np.concatenate([leaf for _, leaf in found]) if found else states
        if leaves.size and leaves.max() >= len(trie):
            raise ValueError(f"its trie leads to unit {leaves.max()} of {len(trie)}")
        values.append(trie[leaves] & 0x7FFFFFFF)
    return np.concatenate(values)


def _step(states: np.ndarray, trie: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The states that one more byte leads to, and which of them have a value."""
    positions = states[:, None] ^ BYTES
    units = trie[positions]
    there = (units & 0x800000FF) == BYTES
    positions, units = positions[there], units[there]
    reached = positions ^ _offsets(units)
    return reached, reached[(units >> 8 & 1).astype(bool)]


def _targets(positions: np.ndarray, trie: np.ndarray) -> np.ndarray:
    return positions ^ _offsets(trie[positions])


def _offsets(units: np.ndarray) -> np.ndarray:
    return units >> 10 << ((units & 1 << 9) >> 6)


def _check_strings(strings: np.ndarray, values: np.ndarray) -> None:
    try:
        strings.tobytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"its strings are not UTF-8: {error}") from error
    if values.size and values.max() >= len(strings):
        raise ValueError(f"its trie gives the string at {values.max()}; the strings have {len(strings)} bytes")
    if (strings[values] & 0xC0 == 0x80).any():
        raise ValueError("its trie gives a string that starts within a character")
