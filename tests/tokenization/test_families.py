"""Every family's tokenizer from hand-made older files: special tokens, templates, ids, settings, what they save."""

import pickle

import pytest

from bertcore.checkpoint import CheckpointError
from bertcore.tokenization import AutoTokenizer
from bertcore.tokenization.engine import _copy
from bertcore.tokenization.families import CLASS_OF_MODEL_TYPE, FAMILIES
from bertcore.tokenization.settings import GENERIC_CLASSES
from tests.refusals import refuses
from tests.tokenization.corpus import HARD_TEXTS, write_json
from tests.tokenization.family_folders import BYTE_BPE, SENTENCEPIECE, WORD_PIECE, write_family

load = AutoTokenizer.from_pretrained

# class name: (its tokens of one text "the value", of the pair "the", " value", and the pair's types)
TEMPLATES = {
    "BertTokenizer": ("[CLS] the value [SEP]", "[CLS] the [SEP] value [SEP]", [0, 0, 0, 1, 1]),
    "RobertaTokenizer": ("<s> the Ġvalue </s>", "<s> the </s> </s> Ġvalue </s>", [0] * 6),
    "LukeTokenizer": ("<s> the Ġvalue </s>", "<s> the </s> </s> Ġvalue </s>", [0] * 6),
    "DebertaTokenizer": ("[CLS] the Ġvalue [SEP]", "[CLS] the [SEP] [SEP] Ġvalue [SEP]", [0] * 6),
    "GPT2Tokenizer": ("the Ġvalue", "the Ġvalue", [0, 1]),
    "AlbertTokenizer": ("[CLS] ▁the ▁value [SEP]", "[CLS] ▁the [SEP] ▁value [SEP]", [0, 0, 0, 1, 1]),
    "XLNetTokenizer": ("▁the ▁value <sep> <cls>", "▁the <sep> ▁value <sep> <cls>", [0, 0, 1, 1, 2]),
    "XLMRobertaTokenizer": ("<s> ▁the ▁value </s>", "<s> ▁the </s> </s> ▁value </s>", [0] * 6),
    "MLukeTokenizer": ("<s> ▁the ▁value </s>", "<s> ▁the </s> </s> ▁value </s>", [0] * 6),
    "CamembertTokenizer": ("<s> ▁the ▁value </s>", "<s> ▁the </s> </s> ▁value </s>", [0] * 6),
    "T5Tokenizer": ("▁the ▁value </s>", "▁the </s> ▁value </s>", [0] * 4),
    "DebertaV2Tokenizer": ("[CLS] ▁the ▁value [SEP]", "[CLS] ▁the [SEP] ▁value [SEP]", [0, 0, 0, 1, 1]),
}
TEMPLATES |= dict.fromkeys(WORD_PIECE, TEMPLATES["BertTokenizer"])
TEMPLATES["MPNetTokenizer"] = "<s> the value </s>", "<s> the </s> </s> value </s>", [0] * 6


@pytest.fixture(params=FAMILIES)
def family(request, tmp_path):
    """(class name, folder) of each family."""
    write_family(tmp_path, request.param)
    return request.param, tmp_path


class TestTable:
    def test_every_family_is_tested(self):
        assert set(TEMPLATES) == set(FAMILIES) == {*BYTE_BPE, *SENTENCEPIECE, *WORD_PIECE}

    def test_model_types(self):
        assert set(CLASS_OF_MODEL_TYPE.values()) == {*FAMILIES, *GENERIC_CLASSES[:1]}

    @pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
    def test_templates_name_special_tokens(self, family):
        parts = {part.split(":")[0] for part in f"{family.single} {family.pair}".split()} - {"$A", "$B"}
        pieces = {entry for entry in (*family.pieces.head, *family.pieces.tail) if isinstance(entry, str)}
        assert parts | pieces <= family.special_tokens.keys()


class TestFamilies:
    def test_template(self, family):
        name, folder = family
        tokenizer, (single, pair, types) = load(folder), TEMPLATES[name]
        assert tokenizer("the value").tokens() == single.split()
        found = tokenizer("the", " value", return_token_type_ids=True, return_special_tokens_mask=True)
        assert found.tokens() == pair.split() and found.token_type_ids == types
        special = set(tokenizer.all_special_tokens)
        assert found.special_tokens_mask == [int(token in special) for token in pair.split()]

    def test_settings_by_model_type(self, family):
        name, folder = family
        wanted = load(folder)
        (folder / "tokenizer_config.json").unlink()
        model_types = [model_type for model_type, of in CLASS_OF_MODEL_TYPE.items() if of == name]
        for config in ({"model_type": model_types[0]}, {"model_type": "any", "tokenizer_class": f"{name}Fast"}):
            write_json(folder / "config.json", config)
            found = load(folder)
            assert found("the value") == wanted("the value") and found.special_tokens_map == wanted.special_tokens_map

    def test_saved(self, family, tmp_path):
        tokenizer = load(family[1])
        files = tokenizer.save_pretrained(tmp_path / "saved" / "deeper")
        assert sorted(file.rsplit("/")[-1] for file in files) == ["tokenizer.json", "tokenizer_config.json"]
        assert sorted(map(str, (tmp_path / "saved" / "deeper").iterdir())) == sorted(files)
        again = load(tmp_path / "saved" / "deeper")
        assert again._backend.to_str() == tokenizer._backend.to_str()
        names = set(vars(tokenizer)) - {"_backend", "_engine", "_settings", "_family"}
        assert {name: getattr(again, name) for name in names} == {name: getattr(tokenizer, name) for name in names}
        assert again._family is tokenizer._family or family[0] in WORD_PIECE

    def test_copies_for_truncation_and_other_processes(self, family):
        tokenizer = load(family[1])
        assert _copy(tokenizer._backend).to_str() == tokenizer._backend.to_str()
        again = pickle.loads(pickle.dumps(tokenizer))
        assert again(HARD_TEXTS) == tokenizer(HARD_TEXTS) and type(again) is type(tokenizer)

    def test_missing_files(self, family):
        name, folder = family
        wanted = FAMILIES[name].vocabulary_files
        (folder / wanted[-1]).unlink()
        message = f"has neither tokenizer.json nor {' and '.join(wanted)}, which make a {name}; it holds"
        refuses(CheckpointError, message, load, folder)
