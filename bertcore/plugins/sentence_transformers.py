"""A module of sentence-transformers: `EncoderModule` (needs sentence-transformers).

    from bertcore.plugins.sentence_transformers import EncoderModule
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(modules=[EncoderModule("all-MiniLM-L6-v2/")])
    model.encode(["Cats sleep sixteen hours a day."])
    model.save_pretrained("folder")  # loaded by SentenceTransformer("folder", trust_remote_code=True)

It is for inference only: its tensors have no gradient.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from sentence_transformers.base.modules import InputModule

from bertcore import kernels
from bertcore.tasks.sentence_encoder import SentenceEncoder
from bertcore.tokenization import Tokenizer

MODEL_INPUTS = "input_ids", "attention_mask", "token_type_ids"


class EncoderModule(InputModule):
    """A whole sentence encoder as one module: texts in, sentence embeddings out.

    Args:
        folder: folder of a sentence encoder, or its id on the Hugging Face hub.
        options: options of `SentenceEncoder`: dtype, max_seq_length, ...
    """

    save_in_root = False  # the folder has its own modules.json

    def __init__(self, folder: str | os.PathLike[str], **options: Any):
        super().__init__()
        self.encoder = SentenceEncoder(folder, **options)

    @property
    def max_seq_length(self) -> int:
        """The most tokens of a text; longer ones are cut."""
        return self.encoder.max_seq_length

    @max_seq_length.setter
    def max_seq_length(self, value: int) -> None:
        self.encoder.max_seq_length = value

    @property
    def tokenizer(self) -> Tokenizer:
        return self.encoder.tokenizer

    def get_embedding_dimension(self) -> int:
        return self.encoder.embedding_dimension

    def preprocess(
        self, inputs: Sequence[Any], prompt: str | None = None, processing_kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """Return the model's inputs (see `SentenceEncoder.preprocess`) and the number of first tokens not pooled."""
        found = self.encoder.preprocess(inputs, prompt, processing_kwargs)
        features = {name: torch.from_numpy(column) for name, column in found.items()}
        skipped = self.encoder.skipped_tokens(prompt or "")
        return {**features, "prompt_length": skipped, "modality": "text"}

    def forward(self, features: dict[str, Any], **options: Any) -> dict[str, Any]:
        """Add "token_embeddings", (texts, tokens, hidden), and "sentence_embedding", (texts, dim), both float32."""
        arrays = {name: features[name].numpy() for name in MODEL_INPUTS if name in features}
        mask, types = arrays["attention_mask"] > 0, arrays.get("token_type_ids")
        lengths = mask.sum(axis=1)
        if types is not None and types[mask].any():
            hidden = self.encoder.model(**arrays).last_hidden_state[mask]
            offsets = np.cumsum([0, *lengths]).astype(np.int32)
        else:
            rows = [ids[kept].astype(np.int32) for ids, kept in zip(arrays["input_ids"], mask, strict=True)]
            hidden, offsets = self.encoder.model.encode_packed(rows)
        pooled = self.encoder.pooled_states(hidden, offsets, int(features.get("prompt_length", 0)))
        states = np.zeros((*mask.shape, hidden.shape[1]), np.float32)
        states[mask] = kernels.to_host(hidden)
        features["token_embeddings"] = torch.from_numpy(states)
        features["sentence_embedding"] = torch.from_numpy(self.encoder.finished(pooled, None, None))
        return features

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **options: Any) -> None:
        """Copy the encoder's published folder."""
        shutil.copytree(self.encoder.folder, output_path, dirs_exist_ok=True)

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **options: Any) -> "EncoderModule":
        """Load a module that `save` wrote."""
        names = ("token", "cache_folder", "revision", "local_files_only")
        hub = {name: options[name] for name in names if name in options}
        return cls(cls.load_dir_path(model_name_or_path, subfolder=subfolder, **hub))
