"""ModernBERT: keys of today and of before, names of files."""

from bertcore import AutoModel, AutoModelForMaskedLM
from tests.models.family_checks import check_loads, check_refused, drawn_anew
from tests.models.family_table import FAMILIES
from tests.refusals import refuses

TINY = FAMILIES["modernbert"].config


def test_the_decoder_may_stand_beside_the_words(tmp_path):
    model = drawn_anew(AutoModelForMaskedLM.from_config(TINY))
    words = model.state_dict()["model.embeddings.tok_embeddings.weight"]
    check_loads(model, tmp_path, model.state_dict() | {"decoder.weight": words})


def test_old_keys_say_the_same_as_new_ones():
    rope = {"full_attention": {"rope_theta": 30.0, "rope_type": "default"}, "sliding_attention": {"rope_theta": 20.0}}
    kinds = ["full_attention", "sliding_attention"] * 2
    new = AutoModel(TINY | {"rope_parameters": rope, "layer_types": kinds})
    old = {"global_rope_theta": 30.0, "local_rope_theta": 20, "global_attn_every_n_layers": 2}
    assert AutoModel(TINY | old).spec == new.spec
    assert {layer.rotary.theta for layer in AutoModel(TINY | {"local_rope_theta": None}).spec.layers} == {160_000}
    assert [layer.window for layer in new.spec.layers] == [None, (5, 5)] * 2
    assert [layer.rotary.theta for layer in AutoModel(TINY).spec.layers] == [160_000, 10_000, 10_000, 160_000]


def test_configs_that_are_refused():
    check_refused(AutoModel, TINY, {"layer_types": ["full_attention", "chunked", "full_attention", {}]})
    for section, message in (
        ({"rope_type": "yarn"}, r"rope_parameters\.full_attention\.rope_type is 'yarn'"),
        ({"rope_theta": 0}, r"rope_parameters\.full_attention\.rope_theta is 0"),
        ({"rope_type": "linear", "factor": 0.5}, r"rope_parameters\.full_attention\.factor is 0\.5"),
    ):
        refuses(ValueError, message, AutoModel, TINY | {"rope_parameters": {"full_attention": section}})
    refuses(ValueError, "heads are 3 wide, expected an even width", AutoModel, TINY | {"num_attention_heads": 12})
