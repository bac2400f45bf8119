"""ALBERT: groups and inner groups of layers."""

from bertcore import AutoModel
from tests.models.family_table import FAMILIES

TINY = FAMILIES["albert"].with_changes(FAMILIES["albert"].everything)


def test_layers_of_a_group_are_one():
    layers = AutoModel(TINY).encoder.layers  # 3 passes through 2 groups of 2 layers
    assert layers[0:2] == layers[2:4] and layers[0] is not layers[1]
    assert len(layers) == 6 and len({id(layer) for layer in layers}) == 4
    assert "encoder.albert_layer_groups.1.albert_layers.1.ffn.weight" in AutoModel(TINY).expected_tensors()
