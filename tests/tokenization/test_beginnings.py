"""The first tokens of long texts: equal to the whole text's, in memory that does not grow with it."""

import random
import sys

import pytest

from bertcore.tokenization import AutoTokenizer, engine
from bertcore.tokenization.families import FAMILIES
from tests.processes import run_python
from tests.tokenization.corpus import HARD_TEXTS
from tests.tokenization.family_folders import write_family

WORDS = ["the", " value", "  ", "ü", "\n", " of\t", "the value ", "zzz", " 12", "。", *HARD_TEXTS]


@pytest.mark.parametrize("name", FAMILIES)
def test_the_tokens_are_those_of_the_whole_text(name, tmp_path, monkeypatch):
    write_family(tmp_path, name)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    monkeypatch.setattr(engine, "PIECE", 1000)
    rng = random.Random(name)
    for length in (0, 1, 1999, 2000, 2001, 9000):
        text = "".join(rng.choices(WORDS, k=length))[: max(length, 0)]
        whole = tokenizer(text)["input_ids"]
        for most in (4, 7, 39, 160, len(whole) - 1, len(whole), len(whole) + 1):
            if most < 4:
                continue
            expected = tokenizer(text, truncation=True, max_length=most)["input_ids"]
            ((ids, was_cut),) = tokenizer.encode_beginnings([text], most)
            assert ids == expected
            assert was_cut == (len(whole) > most)


def test_endless_words_are_cut(tmp_path, monkeypatch):
    write_family(tmp_path, "BertTokenizer")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    monkeypatch.setattr(engine, "PIECE", 1000)
    ((ids, was_cut),) = tokenizer.encode_beginnings(["z" * 6000], 5)
    assert was_cut and ids == tokenizer("z " * 6000, truncation=True, max_length=5)["input_ids"]


MEMORY = """
import re, sys
from pathlib import Path
from bertcore import AutoTokenizer

def resident(name):
    return int(re.search(rf"{name}:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) << 10

tokenizer, text = AutoTokenizer.from_pretrained(sys.argv[1]), "the value of " * 1_200_000
tokenizer.encode_beginnings(["the"], 512)
before = resident("VmRSS")
((ids, was_cut),) = tokenizer.encode_beginnings([text], 512)
assert was_cut and len(ids) == 512
print(resident("VmHWM") - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_for_a_line_of_15_megabytes(tmp_path):
    write_family(tmp_path, "BertTokenizer")
    assert int(run_python(MEMORY, str(tmp_path))[0]) < 2 * 15e6
