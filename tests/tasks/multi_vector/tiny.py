"""Folders of tiny random late-interaction encoders, in the formats that publish them."""

import json
from pathlib import Path

import numpy as np

from bertcore import AutoModel
from bertcore.checkpoint import open_checkpoint, save_checkpoint
from tests.tiny_bert import CONFIG, VOCABULARY, WIDTH, save_tiny_bert, write_json, write_modules

DIM = 21
# Words of the vocabulary come first, so that the ids of the other tests stay; brackets are words of Stanford's format.
MARKED = [*VOCABULARY, "[unused0]", "[unused1]", ",", "!"]
ST = "sentence_transformers"
BASE = f"{ST}.base.modules"
MASK = f"{ST}.multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask"
POOLING = f"{ST}.multi_vector_encoder.modules.token_pooling.HierarchicalTokenPooling"
IDENTITY = {"bias": False, "activation_function": "torch.nn.modules.linear.Identity"}
EXPANSION = {"strategy": "fixed", "attend": False, "length": 17}
DEEP = ((WIDTH, 48, {"bias": True, "use_residual": True}), (48, 48, {"use_residual": True}), (48, 9, {}))


def save_dense(folder: Path, features: tuple[int, int] = (WIDTH, DIM), *, seed: int = 3, **config) -> None:
    """A Dense module with random weights."""
    rng, (inner, outer) = np.random.default_rng(seed), features
    tensors = {"linear.weight": rng.normal(0, 0.3, (outer, inner)).astype(np.float32)}
    if config.get("bias"):
        tensors["linear.bias"] = rng.normal(0, 0.3, outer).astype(np.float32)
    if config.get("use_residual") and inner != outer:
        tensors["residual.weight"] = rng.normal(0, 0.3, (outer, inner)).astype(np.float32)
    save_checkpoint(folder, {"in_features": inner, "out_features": outer, **IDENTITY, **config}, tensors)


def save_tiny_late(folder: Path, *, transformer=None, mask=None, pooling=None, dense=((WIDTH, DIM, {}),), **settings):
    """Sentence-transformers' format."""
    save_tiny_bert(folder)
    names = {"module_input_name": "token_embeddings"}
    kinds = {"": f"{BASE}.transformer.Transformer"}
    for number, (inner, outer, config) in enumerate(dense, 1):
        save_dense(folder / f"{number}_Dense", (inner, outer), seed=number, **names, **config)
        kinds[f"{number}_Dense"] = f"{BASE}.dense.Dense"
    kinds |= {"8_MultiVectorMask": MASK, "9_Normalize": f"{BASE}.normalize.Normalize"}
    write_json(folder / "9_Normalize" / "config.json", names)
    write_json(folder / "8_MultiVectorMask" / "config.json", {"skiplist_words": [".", "zz"], **(mask or {})})
    if pooling:
        kinds["99_HierarchicalTokenPooling"] = POOLING
        write_json(folder / "99_HierarchicalTokenPooling" / "config.json", pooling)
    write_modules(folder, kinds)
    lengths = {"query_length": None, "document_length": 30, "query_expansion": EXPANSION}
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 35, **lengths, **(transformer or {})})
    given = {"model_type": "MultiVectorEncoder", "prompts": {"query": "the ", "document": "paris "}, **settings}
    write_json(folder / "config_sentence_transformers.json", given)
    return folder


def save_tiny_pylate(folder: Path, **settings) -> Path:
    """PyLate's format: prefixes are added tokens that end with a space."""
    from tokenizers import AddedToken

    from bertcore import AutoTokenizer

    save_tiny_bert(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens([AddedToken(text, normalized=True) for text in ("[Q] ", "[D] ")])
    tokenizer.save_pretrained(folder)
    save_dense(folder / "1_Dense")
    write_modules(folder, {"": f"{ST}.models.Transformer", "1_Dense": "pylate.models.Dense.Dense"})
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 29, "do_lower_case": False})
    given = {
        "model_type": "ColBERT", "prompts": {}, "similarity_fn_name": "MaxSim", "query_prefix": "[Q] ",
        "document_prefix": "[D] ", "query_length": 13, "document_length": 20, "attend_to_expansion_tokens": False,
        "skiplist_words": [".", ",", "!"], "do_query_expansion": True,
    }  # fmt: skip
    write_json(folder / "config_sentence_transformers.json", given | settings)
    return folder


def save_tiny_stanford(folder: Path, **metadata) -> Path:
    """Stanford's format: the map beside BERT's weights, lengths in artifact.metadata."""
    config = CONFIG | {"vocab_size": len(MARKED) + 3}
    AutoModel.from_config(config, seed=7).save_pretrained(folder)
    tensors = {f"bert.{name}": array for name, array in open_checkpoint(folder).items()}
    tensors["linear.weight"] = np.random.default_rng(2).normal(0, 0.3, (DIM, WIDTH)).astype(np.float32)
    config = json.loads((folder / "config.json").read_text()) | {"architectures": ["HF_ColBERT"]}
    save_checkpoint(folder, config, tensors)
    (folder / "vocab.txt").write_text("\n".join(MARKED) + "\n", encoding="utf-8")
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "BertTokenizer", "do_lower_case": True})
    given = {
        "query_token_id": "[unused0]", "doc_token_id": "[unused1]", "query_maxlen": 12, "doc_maxlen": 22,
        "attend_to_mask_tokens": False, "mask_punctuation": True,
    }  # fmt: skip
    write_json(folder / "artifact.metadata", given | metadata)
    return folder
