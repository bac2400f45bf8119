"""LUKE's entities: spans of characters to positions of tokens, as transformers has them and where it fails."""

import pickle

import numpy as np
import pytest

from bertcore.checkpoint import CheckpointError
from bertcore.tokenization import AutoTokenizer, LukeTokenizer
from tests.refusals import refuses
from tests.tokenization.corpus import train_byte_bpe, write_json
from tests.tokenization.family_folders import ANGLES, write_family

load = AutoTokenizer.from_pretrained
ENTITIES = {"[PAD]": 0, "[UNK]": 1, "[MASK]": 2, "[MASK2]": 3, "Tokyo": 4, "Japan": 5}
TEXT = "the value the values"  # <s> the Ġvalue Ġthe Ġvalue s </s>
FIRST, SECOND = (0, 3), (14, 20)


@pytest.fixture
def folder(tmp_path):
    write_family(tmp_path, "LukeTokenizer")
    write_json(tmp_path / "entity_vocab.json", ENTITIES)
    return tmp_path


def positions(*numbers, most=30):
    return [*numbers, *[-1] * (most - len(numbers))]


class TestEntities:
    def test_positions(self, folder):
        found = load(folder)(TEXT, entity_spans=[FIRST, SECOND])
        assert found.tokens() == ["<s>", "the", "Ġvalue", "Ġthe", "Ġvalue", "s", "</s>"]
        assert found.entity_ids == [2, 2] and found.entity_attention_mask == [1, 1]
        assert found.entity_position_ids == [positions(1), positions(4, 5)]
        assert list(found) == [
            "input_ids", "attention_mask", "entity_ids", "entity_position_ids", "entity_attention_mask",
        ]  # fmt: skip

    def test_without_entities(self, folder):
        tokenizer = load(folder)
        assert isinstance(tokenizer, LukeTokenizer)
        found = tokenizer([TEXT, "the"], padding=True, return_offsets_mapping=True, is_split_into_words=False)
        assert list(found) == ["input_ids", "attention_mask", "offset_mapping"]

    def test_padding(self, folder):
        options = {"entity_spans": [[FIRST, SECOND], []], "padding": True, "return_tensors": "np"}
        found = load(folder)([TEXT, "the"], **options, pad_to_multiple_of=8)
        assert found.input_ids.shape == (2, 8) and found.entity_position_ids.shape == (2, 8, 30)
        assert found.entity_ids.tolist() == [[2, 2, *[0] * 6], [0] * 8]
        assert found.entity_attention_mask.sum(1).tolist() == [2, 0]
        assert (found.entity_position_ids[1] == -1).all()
        none = load(folder)(["the"], entity_spans=[[]], return_tensors="np")
        assert none.entity_ids.shape == (1, 0) and none.entity_position_ids.shape == (1, 0, 30)

    def test_max_length(self, folder):
        options = {"entity_spans": [FIRST] * 5, "truncation": True, "padding": "max_length", "max_length": 12}
        tokenizer = load(folder, max_mention_length=3)
        found = tokenizer(TEXT, **options, max_entity_length=4)
        assert found.entity_ids == [2] * 4 and len(found.input_ids) == 12
        assert tokenizer(TEXT, **options).entity_ids == [2] * 5 + [0] * 27
        assert found.entity_position_ids[0] == positions(1, most=3)
        long = tokenizer("the " * 9, entity_spans=[(0, 35)])
        assert long.entity_position_ids == [[1, 2, 3]]

    @pytest.mark.parametrize("side", ["right", "left"])
    def test_truncation(self, folder, side):
        tokenizer = load(folder, truncation_side=side)
        with pytest.warns(UserWarning, match="entities left out because truncation cut off their tokens: 1") as caught:
            found = tokenizer(TEXT, entity_spans=[FIRST, SECOND], truncation=True, max_length=5)
        assert caught[0].filename == __file__
        kept = ["<s>", "the", "Ġvalue", "Ġthe", "</s>"] if side == "right" else ["<s>", "Ġthe", "Ġvalue", "s", "</s>"]
        assert found.tokens() == kept
        assert found.entity_position_ids == [positions(1) if side == "right" else positions(2, 3)]

    def test_text_too_short_to_cut(self, folder):
        options = {"truncation": "only_first", "max_length": 8, "entity_spans": [FIRST]}
        refuses(ValueError, "a text cannot be cut as truncation asks", load(folder), "the", TEXT * 5, **options)


class TestTasks:
    @pytest.mark.parametrize(("task", "spans", "message"), [
        ("entity_classification", None, "entity_spans is None; the task 'entity_classification' needs them"),
        ("entity_classification", [FIRST, SECOND], r"entity_spans\[0\] has 2 spans, expected 1 for the task"),
        ("entity_pair_classification", [FIRST], r"entity_spans\[0\] has 1 spans, expected 2"),
        ("entity_pair_classification", [(0, 9), (4, 13)], r"the entity_spans .* overlap, expected spans apart"),
    ])  # fmt: skip
    def test_wrong_spans(self, folder, task, spans, message):
        refuses(ValueError, message, load(folder, task=task), TEXT, entity_spans=spans)

    def test_saved(self, folder, tmp_path):
        tokenizer = load(folder, task="entity_pair_classification", max_mention_length=7)
        assert len(tokenizer.save_pretrained(tmp_path / "saved")) == 3
        again = load(tmp_path / "saved")
        assert again(TEXT, entity_spans=[FIRST, SECOND]) == tokenizer(TEXT, entity_spans=[FIRST, SECOND])
        assert pickle.loads(pickle.dumps(again)).entity_vocab == ENTITIES


class TestBadInput:
    @pytest.mark.parametrize(("options", "error", "message"), [
        ({"entity_spans": 3}, TypeError, r"entity_spans is \[3\], expected a list for each text"),
        ({"entity_spans": [3]}, TypeError, r"entity_spans\[0\]\[0\] is 3, expected the first and the last"),
        ({"entity_spans": [(1, 2, 3)]}, TypeError, r"entity_spans\[0\]\[0\] is \(1, 2, 3\)"),
        ({"entity_spans": [(0, 1.5)]}, TypeError, r"entity_spans\[0\]\[0\] is \(0, 1\.5\)"),
        ({"entity_spans": [(0, 99)]}, ValueError, r"entity_spans\[0\]\[0\] is \(0, 99\); the text has 20 char"),
        ({"entity_spans": [(5, 4)]}, ValueError, r"entity_spans\[0\]\[0\] is \(5, 4\)"),
        ({"entity_spans": [(-1, 4)]}, ValueError, r"entity_spans\[0\]\[0\] is \(-1, 4\)"),
        ({"entities": ["Tokyo"]}, ValueError, "entities are given without entity_spans"),
        ({"entity_spans": [FIRST], "entities": []}, ValueError, r"entities\[0\] has 0 names for 1 spans"),
        ({"entity_spans": [FIRST], "entities": [4]}, TypeError, r"entities\[0\] is \[4\], expected names"),
        ({"entity_spans": [FIRST], "max_entity_length": 0}, ValueError, "max_entity_length is 0"),
        ({"entity_spans": [FIRST], "return_offsets_mapping": True}, TypeError, "return_offsets_mapping"),
        ({"entity_spans": [FIRST], "return_tensors": "pt"}, ValueError, "return_tensors is 'pt'"),
        ({"entity_spans": [FIRST], "padding": True, "padding_side": "left"}, ValueError, "padding_side is 'left'"),
    ])  # fmt: skip
    def test_call(self, folder, options, error, message):
        refuses(error, message, load(folder), TEXT, **options)

    def test_rows(self, folder):
        with pytest.raises(ValueError, match="entity_spans has 1 lists, expected 2, one for each text"):
            load(folder)(["the", "the"], entity_spans=[[FIRST]])

    def test_files(self, folder):
        refuses(ValueError, "task is 'ner', expected one of None, 'entity_classification'", load, folder, task="ner")
        write_json(folder / "entity_vocab.json", {"[PAD]": 0, "[UNK]": 1})
        refuses(CheckpointError, r"entity_vocab\.json lacks the special entities \[MASK\], \[MASK2\]", load, folder)
        write_json(folder / "entity_vocab.json", {"[PAD]": "0"})
        refuses(CheckpointError, r"entity_vocab\.json has values other than ids", load, folder)
        (folder / "entity_vocab.json").unlink()
        assert load(folder)("the").input_ids
        refuses(ValueError, r"entities need the file entity_vocab\.json", load(folder), "the", entity_spans=[FIRST])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("luke")
    train_byte_bpe(folder, ANGLES)
    write_json(folder / "entity_vocab.json", ENTITIES)
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "LukeTokenizer", "model_max_length": 64})
    return folder


@pytest.mark.parity
class TestParity:
    TEXTS = ("Tokyo is  the capital of 日本, naïve 😀 words", " leading and trailing ", "one", "x y z " * 5)

    def spans(self, text, count, seed, apart=False):
        places = np.random.default_rng(seed).choice(len(text) + 1, 2 * count, replace=not apart).tolist()
        if apart:
            ordered = sorted(places)
            return [tuple(pair) for pair in zip(ordered[::2], ordered[1::2], strict=True)][:: 1 - 2 * (seed % 2)]
        return [tuple(sorted(pair)) for pair in zip(places[::2], places[1::2], strict=True)]

    def both(self, folder, task):
        import transformers

        return load(folder, task=task), transformers.LukeTokenizer.from_pretrained(folder, task=task)

    def check(self, ours, theirs, *texts, **options):
        found, wanted = dict(ours(*texts, **options)), dict(theirs(*texts, **options))
        assert found == wanted

    @pytest.mark.parametrize("seed", range(6))
    @pytest.mark.parametrize("task", [None, "entity_span_classification"])
    def test_any_spans(self, trained, task, seed):
        ours, theirs = self.both(trained, task)
        spans = [self.spans(text, 1 + (seed + row) % 4, seed + row) for row, text in enumerate(self.TEXTS)]
        for text, row in zip(self.TEXTS, spans, strict=True):
            self.check(ours, theirs, text, entity_spans=row, return_token_type_ids=True)
        for options in (
            {},
            {"padding": True},
            {"padding": "max_length", "max_length": 96},
            {"add_special_tokens": False},
        ):
            self.check(ours, theirs, list(self.TEXTS), entity_spans=spans, **options)
        if task is None:
            names = [["Tokyo", "Nowhere", "Japan", "[MASK]"][: len(row)] for row in spans]
            self.check(ours, theirs, list(self.TEXTS), entity_spans=spans, entities=names, padding=True)
            pair = {"entity_spans": spans[0], "entity_spans_pair": spans[1]}
            self.check(ours, theirs, *self.TEXTS[:2], **pair, padding=True, pad_to_multiple_of=8)

    @pytest.mark.parametrize("seed", range(6))
    def test_marked_entities(self, trained, seed):
        for count, task in ((1, "entity_classification"), (2, "entity_pair_classification")):
            ours, theirs = self.both(trained, task)
            texts = self.TEXTS[::3]
            spans = [self.spans(text, count, seed + row, apart=True) for row, text in enumerate(texts)]
            for text, row in zip(texts, spans, strict=True):
                self.check(ours, theirs, text, entity_spans=row)
            self.check(ours, theirs, list(texts), entity_spans=spans, padding=True)
