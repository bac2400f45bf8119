"""Write the golden checkpoints beside this script: python -m tests.goldens.make_goldens [NAME ...]

Needs the extra `parity` (torch, transformers). See README.md for what the files hold.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.numpy import load_file, save_file

from tests.random_bert import random_inputs, random_model

HERE = Path(__file__).parent

# Each golden is small and odd in its own way: head sizes other than powers of two, widths other than multiples of 8.
COMMON = {"vocab_size": 61, "max_position_embeddings": 13, "num_hidden_layers": 2, "pad_token_id": 0}
CONFIGS = {
    "three_heads_of_13": {"hidden_size": 39, "num_attention_heads": 3, "intermediate_size": 23},
    "five_heads_of_8_relu": {
        "hidden_size": 40, "num_attention_heads": 5, "intermediate_size": 37, "hidden_act": "relu",
        "num_hidden_layers": 1, "layer_norm_eps": 1e-3,
    },
    "one_head_gelu_new": {
        "hidden_size": 21, "num_attention_heads": 1, "intermediate_size": 50, "hidden_act": "gelu_new",
        "type_vocab_size": 1, "layer_norm_eps": 1e-5,
    },
    "untied_decoder": {
        "hidden_size": 22, "num_attention_heads": 2, "intermediate_size": 31, "num_hidden_layers": 3,
        "tie_word_embeddings": False,
    },
    "old_names": {"hidden_size": 14, "num_attention_heads": 2, "intermediate_size": 19},
    "sharded": {"hidden_size": 18, "num_attention_heads": 6, "intermediate_size": 29},
}  # fmt: skip
LENGTHS = [11, 1, 7]


def make(name: str, seed: int) -> None:
    """Write the golden `name`: a checkpoint folder with io.npz."""
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    rng = np.random.default_rng(seed)
    config = transformers.BertConfig(**COMMON | CONFIGS[name])
    model = random_model(config, rng)
    inputs = random_inputs(config, LENGTHS, rng)
    model.save_pretrained(folder, max_shard_size="12KB" if name == "sharded" else "1GB")
    if name == "old_names":
        rename_as_of_old(folder)
    np.savez_compressed(folder / "io.npz", **inputs, **outputs(model.double(), inputs))


def outputs(model: torch.nn.Module, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the outputs in the model's precision, zero at the padding, and the gradients of the masked-LM loss."""
    tensors = {key: torch.from_numpy(value) for key, value in inputs.items()}
    labels = tensors.pop("labels")
    encoded = model.bert(**tensors, output_hidden_states=True, output_attentions=True)
    logits, next_sentence_logits = model.cls(encoded.last_hidden_state, encoded.pooler_output)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
    loss.backward()
    real = tensors["attention_mask"].bool()
    result = {
        "hidden_states": torch.stack(encoded.hidden_states) * real[None, :, :, None],
        "attentions": torch.stack(encoded.attentions) * real[None, :, None, :, None],
        "pooler_output": encoded.pooler_output,
        "logits": logits * real[:, :, None],
        "seq_relationship_logits": next_sentence_logits,
        "loss": loss,
    }
    gradients = {f"grad {name}": p.grad.float() for name, p in model.named_parameters() if p.grad is not None}
    return {name: tensor.detach().numpy() for name, tensor in (result | gradients).items()}


def rename_as_of_old(folder: Path) -> None:
    """Rename tensors as conversions from TensorFlow did: no prefix, gamma and beta, position_ids stored."""
    tensors = {}
    for name, array in load_file(folder / "model.safetensors").items():
        name = name.removeprefix("bert.")
        name = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        tensors[name] = array
    tensors["embeddings.position_ids"] = np.arange(COMMON["max_position_embeddings"])[None]
    tensors["cls.predictions.decoder.weight"] = tensors["embeddings.word_embeddings.weight"].copy()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    for key in ("hidden_act", "layer_norm_eps", "tie_word_embeddings", "dtype", "transformers_version"):
        config.pop(key, None)  # absent keys mean the defaults
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


if __name__ == "__main__":
    chosen = sys.argv[1:] or list(CONFIGS)
    for number, golden in enumerate(CONFIGS):
        if golden in chosen:
            make(golden, seed=number)
