from bertcore.checkpoint import NameRules
from bertcore.families.bert import BERT as FAMILY

BERT = FAMILY.name_rules


def test_spellings_cover_prefix_and_old_endings():
    assert set(BERT.spellings("bert.encoder.layer.3.output.LayerNorm.weight")) == {
        "encoder.layer.3.output.LayerNorm.weight",
        "encoder.layer.3.output.LayerNorm.gamma",
        "bert.encoder.layer.3.output.LayerNorm.weight",
        "bert.encoder.layer.3.output.LayerNorm.gamma",
    }
    assert "cls.predictions.transform.LayerNorm.beta" in BERT.spellings("cls.predictions.transform.LayerNorm.bias")


def test_spellings_do_not_depend_on_the_prefix():
    assert BERT.spellings("bert.pooler.dense.weight") == BERT.spellings("pooler.dense.weight")


def test_only_layer_norms_have_old_endings():
    assert BERT.spellings("pooler.dense.bias") == ["pooler.dense.bias", "bert.pooler.dense.bias"]


def test_wrappers():
    anchor = "embeddings.word_embeddings.weight"
    for prefix, wrapper in {
        "": "",
        "bert.": "",
        "module.": "module.",
        "module.bert.": "module.",
        "0.m.": "0.m.",
    }.items():
        assert BERT.wrappers([prefix + anchor, prefix + "pooler.dense.bias", "cls.x"]) == [wrapper]
    assert BERT.wrappers(["a." + anchor, "b.bert." + anchor]) == ["a.", "b."]
    assert BERT.wrappers(["pooler.dense.bias"]) == []


def test_head_of():
    assert BERT.head_of("cls.predictions.bias") == "cls.predictions."
    assert BERT.head_of("bert.pooler.dense.bias") == BERT.head_of("pooler.dense.bias") == "pooler."
    assert BERT.head_of("bert.encoder.layer.0.output.dense.bias") is None


def test_rules_of_another_family_are_values_too():
    rules = NameRules(prefix="roberta.", heads=("lm_head.",), endings=())
    assert rules.spellings("roberta.x.LayerNorm.weight") == ["x.LayerNorm.weight", "roberta.x.LayerNorm.weight"]
