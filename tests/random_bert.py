"""Random BERT models of transformers and inputs for them. Imports torch and transformers: for parity tests only."""

import numpy as np
import torch
import transformers


def random_model(config: transformers.BertConfig, rng: np.random.Generator) -> transformers.BertForPreTraining:
    """BERT with both pretraining heads, every parameter drawn anew, in evaluation mode and with plain attention.

    transformers draws weights of standard deviation 0.02 and zero biases, under which every layer is close to the
    identity and most mistakes are invisible. These are large enough to tell.
    """
    model = transformers.BertForPreTraining._from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = rng.normal(0.0, 0.5 if "embeddings" in name else 0.25, parameter.shape)
            if name.endswith("LayerNorm.weight"):
                values = values + 1.0
            parameter.copy_(torch.from_numpy(values))
    return model


def random_inputs(
    config: transformers.BertConfig, lengths: list[int], rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Right-padded int64 arrays (batch, longest): input_ids, attention_mask, token_type_ids and labels.

    About two in five real tokens carry a label, the first token of the first text always; the others are -100.
    """
    shape = (len(lengths), max(lengths))
    real = np.arange(shape[1]) < np.array(lengths)[:, None]
    labelled = real & (rng.random(shape) < 0.4)
    labelled[0, 0] = True
    return {
        "input_ids": np.where(real, rng.integers(0, config.vocab_size, shape), config.pad_token_id),
        "attention_mask": real.astype(np.int64),
        "token_type_ids": np.where(real, np.sort(rng.integers(0, config.type_vocab_size, shape)), 0),
        "labels": np.where(labelled, rng.integers(0, config.vocab_size, shape), -100),
    }
