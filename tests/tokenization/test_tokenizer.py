import pickle
import subprocess
import sys

import numpy as np
import pytest

from bertcore.tokenization import AutoTokenizer, BatchEncoding
from bertcore.tokenization.engine import MOST_COPIES, PARALLEL_TEXTS
from tests.processes import in_threads
from tests.refusals import refuses
from tests.tokenization.corpus import HARD_TEXTS

CLS, SEP, PAD, UNK, MASK = 2, 3, 0, 1, 4


class TestResults:
    def test_one_text(self, tokenizer):
        found = tokenizer("the value")
        assert isinstance(found, BatchEncoding) and isinstance(found, dict)
        assert list(found) == ["input_ids", "token_type_ids", "attention_mask"]
        assert found.tokens() == ["[CLS]", "the", "value", "[SEP]"]
        assert found.input_ids == found["input_ids"] == tokenizer.convert_tokens_to_ids(found.tokens())
        assert found.attention_mask == [1, 1, 1, 1] and found.token_type_ids == [0, 0, 0, 0]

    def test_missing_name_lists_columns(self, tokenizer):
        with pytest.raises(AttributeError, match="no 'labels'; it has input_ids, token_type_ids, attention_mask"):
            _ = tokenizer("the value").labels

    def test_unknown_argument_names_the_nearest(self, tokenizer):
        refuses(TypeError, r"has no argument paddding; did you mean padding\?", tokenizer, "a", paddding=True)

    def test_batch_equals_texts_alone(self, tokenizer):
        assert len(HARD_TEXTS) >= PARALLEL_TEXTS  # the batch goes the parallel way, the texts do not
        batch = tokenizer(HARD_TEXTS, return_offsets_mapping=True)
        for row, text in enumerate(HARD_TEXTS):
            alone = tokenizer(text, return_offsets_mapping=True)
            assert {name: rows[row] for name, rows in batch.items()} == alone
        assert tokenizer(tuple(HARD_TEXTS), return_offsets_mapping=True) == batch

    def test_empty_second_text_is_a_text(self, tokenizer):
        """transformers drops it for a single text and keeps it in a batch; here both are the same."""
        assert tokenizer("the", "").input_ids == tokenizer(["the"], [""]).input_ids[0]
        assert tokenizer("the", "").tokens() == ["[CLS]", "the", "[SEP]", "[SEP]"]

    @pytest.mark.parametrize("empty", [[], ()])
    def test_empty_batch(self, tokenizer, empty):
        nothing = {"input_ids": [], "token_type_ids": [], "attention_mask": []}
        assert tokenizer(empty) == tokenizer(empty, empty, padding=True, truncation=True, max_length=5) == nothing

    def test_empty_batch_as_arrays(self, tokenizer):
        found = tokenizer([], return_tensors="np", padding=True, return_offsets_mapping=True, return_length=True)
        assert {name: array.shape for name, array in found.items()} == {
            "input_ids": (0, 0), "token_type_ids": (0, 0), "attention_mask": (0, 0), "offset_mapping": (0, 0, 2),
            "length": (0,),
        }  # fmt: skip


class TestBackToText:
    def test_decode(self, tokenizer):
        ids = tokenizer("the value, again").input_ids
        assert tokenizer.decode(ids) == "[CLS] the value, again [SEP]"
        assert tokenizer.decode(ids, skip_special_tokens=True) == "the value, again"
        assert tokenizer.decode(np.array(ids)) == tokenizer.decode([np.int32(number) for number in ids])
        assert tokenizer.decode(MASK) == tokenizer.decode(np.int64(MASK)) == "[MASK]"
        assert tokenizer.decode([]) == ""

    @pytest.mark.parametrize("wrong", [-1, -100, 10**6, 2**40])
    def test_ids_outside_the_vocabulary(self, tokenizer, wrong):
        message = rf"token id {wrong} at position 2 is not in the vocabulary \(0 to {len(tokenizer) - 1}\)"
        for convert in (tokenizer.decode, tokenizer.convert_ids_to_tokens):
            refuses(ValueError, message, convert, [CLS, SEP, wrong])
        refuses(ValueError, f"token id {wrong} is not", tokenizer.convert_ids_to_tokens, wrong)

    @pytest.mark.parametrize(("ids", "came"), [
        ("abc", " is str, expected an integer or a sequence of integers"),
        (b"abc", " is bytes, expected"),
        (None, " is NoneType, expected"),
        (1.5, " is float, expected"),
        ([1.5], r"\[0\] is float, expected an integer"),
        ([1, "a"], r"\[1\] is str, expected an integer"),
        (np.array([1.0, 2.0]), r"\[0\] is float, expected an integer"),
        ({"input_ids": [1]}, " is dict, expected"),
    ])  # fmt: skip
    def test_wrong_ids(self, tokenizer, ids, came):
        refuses(TypeError, f"^ids{came}", tokenizer.convert_ids_to_tokens, ids)
        refuses(TypeError, f"^token_ids{came}", tokenizer.decode, ids)

    def test_non_iterables(self, tokenizer):
        with pytest.raises(TypeError, match="sequences is NoneType, expected a list of sequences of integers"):
            tokenizer.batch_decode(None)
        refuses(TypeError, "tokens is int, expected a list of strings", tokenizer.convert_tokens_to_ids, ["the", 5])

    @pytest.mark.parametrize("flag", ["add_special_tokens", "is_split_into_words"])
    def test_non_boolean_flags(self, tokenizer, flag):
        refuses(TypeError, f"{flag} is None, expected True or False", tokenizer, "the", **{flag: None})

    def test_wrong_batches_of_ids(self, tokenizer):
        refuses(TypeError, r"token_ids\[1\]\[0\] is str, expected an integer", tokenizer.decode, [[1], ["a"]])
        refuses(TypeError, r"token_ids\[0\]\[0\] is list, expected an integer", tokenizer.decode, [[[1]]])

    def test_arrays_of_ids(self, tokenizer):
        assert tokenizer.convert_ids_to_tokens(np.array([CLS, MASK])) == ["[CLS]", "[MASK]"]
        assert tokenizer.convert_ids_to_tokens(np.array(MASK)) == tokenizer.decode(np.array(MASK)) == "[MASK]"
        assert tokenizer.decode([np.array([CLS]), np.array([], int)]) == ["[CLS]", ""]

    def test_tokens_and_ids(self, tokenizer):
        assert tokenizer.convert_ids_to_tokens(MASK) == "[MASK]"
        assert tokenizer.convert_ids_to_tokens([CLS, MASK], skip_special_tokens=True) == []
        assert tokenizer.convert_tokens_to_ids("[MASK]") == MASK
        assert tokenizer.convert_tokens_to_ids(["[PAD]", "no such token"]) == [PAD, UNK]


class TestBadInput:
    @pytest.mark.parametrize(("arguments", "error", "message"), [
        ((3,), TypeError, "text is int, expected a string or a list of strings"),
        ((None,), TypeError, "text is NoneType"),
        ((b"bytes",), TypeError, "text is bytes"),
        ((["the", None],), TypeError, r"text\[1\] is NoneType, expected a string"),
        ((["the"] * 20 + [3.5],), TypeError, r"text\[20\] is float"),
        (([["the", "value"]],), TypeError, r"text\[0\] is list"),
        (([("the", "value")],), TypeError, r"text\[0\] is tuple"),
        (({"the": 1},), TypeError, "text is dict"),
        (((text for text in ["the"]),), TypeError, "text is generator"),
        (("the", ["value"]), TypeError, "text_pair is list, expected a string, as text is one"),
        ((["the"], "value"), TypeError, "text_pair is str, expected a string or a list of strings"),
        ((["the", "the"], ["value", 1]), TypeError, r"text_pair\[1\] is int"),
        ((["the", "the"], ["value"]), ValueError, "text_pair has 1 texts, expected 2, one for each of text"),
        (([], ["value"]), ValueError, "text_pair has 1 texts, expected 0"),
    ])  # fmt: skip
    def test_texts(self, tokenizer, arguments, error, message):
        refuses(error, message, tokenizer, *arguments)

    @pytest.mark.parametrize("count", [2, PARALLEL_TEXTS + 1])
    def test_lone_surrogate(self, tokenizer, count):
        texts = ["the"] * count
        refuses(ValueError, r"^text is not valid Unicode: a lone surrogate at character 2", tokenizer, "a \ud800 b")
        with pytest.raises(ValueError, match=r"^text\[1\] is not valid Unicode: a lone surrogate at character 0"):
            tokenizer(["the", "\udfff", *texts])
        with pytest.raises(ValueError, match=rf"^text_pair\[{count - 1}\] is not valid Unicode"):
            tokenizer(texts, [*texts[1:], "\udfff"])

    @pytest.mark.parametrize("options, message", [
        ({"truncation": True, "max_length": 1}, "max_length is 1, expected at least 2"),
        ({"truncation": True, "max_length": -1}, "max_length is -1, expected an integer of at least 0"),
        ({"truncation": True}, "truncation needs max_length: the tokenizer's files state no model_max_length"),
        ({"truncation": "first", "max_length": 5}, "truncation is 'first', expected one of False, 'do_not_truncate'"),
        ({"truncation": "only_second", "max_length": 5}, "truncation='only_second' needs text_pair"),
        ({"truncation": 1, "max_length": 5}, "truncation is 1, expected one of"),
        ({"padding": "max_length"}, "padding='max_length' needs max_length"),
        ({"padding": "left"}, "padding is 'left', expected one of False, 'do_not_pad', True"),
        ({"padding": ["longest"]}, "padding is .*, expected one of"),
        ({"padding": True, "padding_side": "top"}, "padding_side is 'top', expected 'left' or 'right'"),
        ({"padding": True, "pad_to_multiple_of": 0}, "pad_to_multiple_of is 0, expected a positive integer"),
        ({"truncation": True, "max_length": 9, "padding": True, "pad_to_multiple_of": 8}, "expected a multiple of"),
        ({"truncation": True, "max_length": 9, "stride": 7}, "stride is 7, expected less than the 7 tokens"),
        ({"stride": -1}, "stride is -1, expected an integer of at least 0"),
        ({"return_tensors": "pt"}, "return_tensors is 'pt', expected one of None, 'np'"),
    ])  # fmt: skip
    def test_options(self, tokenizer, options, message):
        refuses(ValueError, message, tokenizer, ["the value", "the"], **options)

    @pytest.mark.parametrize("value", [5.0, "5", True, np.array([5])])
    def test_non_integer_max_length(self, tokenizer, value):
        with pytest.raises(TypeError, match=r"max_length is .*, expected an integer of at least 0"):
            tokenizer("the", truncation=True, max_length=value)

    @pytest.mark.parametrize(("options", "message"), [
        ({"truncation": True, "max_length": 2}, "max_length is 2, expected at least 3"),
        ({"truncation": True, "max_length": 11, "stride": 4}, "stride is 4, expected less than the 4 tokens"),
        *[
            ({"padding": "max_length", "max_length": 10**30, "truncation": cut}, "expected at most 2147483647 with")
            for cut in (False, True)
        ],
        ({"padding": True, "pad_to_multiple_of": 10**30}, "pad_to_multiple_of is 1.*, expected at most 2147483647"),
    ])  # fmt: skip
    def test_limits_of_a_pair(self, tokenizer, options, message):
        refuses(ValueError, message, tokenizer, "the", "value", **options)

    @pytest.mark.parametrize("strategy", ["only_first", "only_second"])
    @pytest.mark.parametrize("stride, kept", [(0, 0), (0, -4), (3, 3), (3, 1)])
    def test_text_that_cannot_be_cut_enough(self, tokenizer, strategy, stride, kept):
        long, whole = "the " * 30, "the " * (20 - kept)
        part = "text" if strategy == "only_first" else "text_pair"
        arguments = (["the", long], ["the", whole]) if strategy == "only_first" else (["the", whole], ["the", long])
        message = rf"^{part}\[1\] would have to be cut to {max(kept, 0)} tokens.* has {20 - kept}"
        refuses(ValueError, message, tokenizer, *arguments, truncation=strategy, max_length=23, stride=stride)

    @pytest.mark.parametrize("strategy", ["only_first", "only_second"])
    def test_text_that_needs_no_cut(self, tokenizer, strategy):
        pair = ("the", "the " * 19) if strategy == "only_first" else ("the " * 19, "the")
        found = tokenizer(*pair, truncation=strategy, max_length=23, stride=5)
        assert found.tokens() == ["[CLS]", *pair[0].split(), "[SEP]", *pair[1].split(), "[SEP]"]

    def test_ragged_rows_make_no_array(self, tokenizer):
        with pytest.raises(
            ValueError, match="input_ids has rows of 3 to 4 tokens, which cannot form an array; pass padding=True"
        ):
            tokenizer(["the value", "the"], return_tensors="np")

    def test_max_length_without_effect_warns(self, tokenizer):
        with pytest.warns(UserWarning, match="pass truncation=True to cut") as caught:
            tokenizer(["the value"], padding=True, max_length=3)
        assert caught[0].filename == __file__


def test_settings_stored_in_tokenizer_json_do_not_apply(demo_folder):
    """all-MiniLM-L6-v2's tokenizer.json pads and cuts everything to 128."""
    demo = AutoTokenizer.from_pretrained(demo_folder)
    assert len(demo("a").input_ids) == 3 and len(demo("word " * 200).input_ids) == 202


class TestThreads:
    def test_many_threads_with_different_options(self, tokenizer):
        lengths = range(5, 5 + 2 * MOST_COPIES)  # more truncations than are kept
        options = [{"truncation": True, "max_length": length, "padding": length % 2 == 0} for length in lengths]
        wanted = [tokenizer(HARD_TEXTS, **one) for one in options]
        fresh, wrong = pickle.loads(pickle.dumps(tokenizer)), []

        def work(first):
            for place in range(first, len(options), 4):
                if fresh(HARD_TEXTS, **options[place]) != wanted[place]:
                    wrong.append(options[place])
                if fresh(HARD_TEXTS[5], **options[place]).input_ids[:4] != wanted[place].input_ids[5][:4]:
                    wrong.append(place)

        in_threads(work, [number % 4 for number in range(8)])
        assert not wrong
        assert len(fresh._engine._copies) <= MOST_COPIES


FORK = """
import os, signal, sys
from bertcore.tokenization import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
texts = ["the value of it"] * 1000
wanted = tokenizer(texts)
child = os.fork()
if child == 0:
    signal.alarm(30)
    os._exit(0 if tokenizer(texts) == wanted else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) or tokenizer(texts) != wanted)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not fork")
@pytest.mark.parametrize("parallelism", [None, "true", "false"])
def test_fork_after_use(vocabulary_folder, parallelism, monkeypatch):
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    if parallelism:
        monkeypatch.setenv("TOKENIZERS_PARALLELISM", parallelism)
    command = [sys.executable, "-W", "ignore", "-c", FORK, str(vocabulary_folder)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_the_library_is_imported_at_first_use():
    code = (
        "import sys, bertcore.tokenization; from bertcore.tokenization import AutoTokenizer, Tokenizer\n"
        "assert 'tokenizers' not in sys.modules and 'safetensors' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_enormous_max_length_cuts_nothing(tokenizer):
    assert tokenizer("the value", truncation=True, max_length=10**30) == tokenizer("the value")
    assert tokenizer(["the"], ["value"], truncation=True, max_length=2**64) == tokenizer(["the"], ["value"])
