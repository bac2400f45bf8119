"""ALBERT: groups and inner groups of layers."""

from bertcore import AutoModel

TINY = {
    "model_type": "albert", "vocab_size": 40, "embedding_size": 16, "hidden_size": 24, "num_attention_heads": 2,
    "num_hidden_layers": 3, "num_hidden_groups": 2, "inner_group_num": 2, "intermediate_size": 32,
    "max_position_embeddings": 24,
}  # fmt: skip


def test_layers_of_a_group_are_one():
    layers = AutoModel(TINY).encoder.layers  # 3 passes through 2 groups of 2 layers
    assert layers[0:2] == layers[2:4] and layers[0] is not layers[1]
    assert len(layers) == 6 and len({id(layer) for layer in layers}) == 4
    assert "encoder.albert_layer_groups.1.albert_layers.1.ffn.weight" in AutoModel(TINY).expected_tensors()
