"""A module of sentence-transformers: `EncoderModule` (needs sentence-transformers).

    from bertcore.plugins.sentence_transformers import EncoderModule
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(modules=[EncoderModule("all-MiniLM-L6-v2/")])
    model.encode(["Cats sleep sixteen hours a day."])
    model.save_pretrained("folder")  # loaded by SentenceTransformer("folder", trust_remote_code=True)

It is for inference: its tensors have no gradient.
"""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers.base.modules import InputModule

from bertcore.checkpoint import resolve
from bertcore.tasks.sentence_encoder import SentenceEncoder
from bertcore.tasks.sentence_encoder.encoder import checked_options


class EncoderModule(InputModule):
    """A whole sentence encoder as one module: texts in, sentence embeddings out.

    Args:
        folder: folder of a sentence encoder, or its id on the Hugging Face hub.
        options: options of `SentenceEncoder`: dtype, max_seq_length, ...
    """

    save_in_root = False  # the folder has its own modules.json

    def __init__(self, folder: str | os.PathLike, **options: Any):
        super().__init__()
        self._folder = Path(resolve(folder, "sentence_encoder"))
        self.encoder = SentenceEncoder(self._folder, **options)

    @property
    def max_seq_length(self) -> int:
        """Length that texts are cut to, in tokens."""
        return self.encoder.max_seq_length

    def get_embedding_dimension(self) -> int:
        """Return the width of an embedding."""
        return self.encoder.embedding_dimension

    def preprocess(self, inputs: Sequence[str], prompt: str | None = None, **options: Any) -> dict[str, Any]:
        """Return the token ids of texts, padded on the right, and the number of first tokens that are not pooled."""
        rows = [ids for ids, _ in self.encoder.tokenize(list(inputs), prompt or "")]
        lengths = torch.tensor([len(row) for row in rows])
        ids = torch.nn.utils.rnn.pad_sequence([torch.from_numpy(row) for row in rows], batch_first=True)
        mask = torch.arange(ids.shape[1]) < lengths[:, None]
        skipped = checked_options(self.encoder, prompt or "").skipped
        return {"input_ids": ids, "attention_mask": mask.long(), "prompt_length": skipped}

    def forward(self, features: dict[str, Any], **options: Any) -> dict[str, Any]:
        """Add "sentence_embedding", (texts, dim) float32."""
        ids, lengths = features["input_ids"].numpy(), features["attention_mask"].sum(dim=1).tolist()
        rows = [np.ascontiguousarray(row[:length], np.int32) for row, length in zip(ids, lengths, strict=True)]
        pooled = self.encoder.pooled(rows, int(features.get("prompt_length", 0)))
        features["sentence_embedding"] = torch.from_numpy(self.encoder.finished(pooled, None, None))
        return features

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **options: Any) -> None:
        """Copy the encoder's published folder."""
        shutil.copytree(self._folder, output_path, dirs_exist_ok=True)

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **options: Any) -> "EncoderModule":
        """Load a module that `save` wrote."""
        hub = {
            name: options[name] for name in ("token", "cache_folder", "revision", "local_files_only") if name in options
        }
        return cls(cls.load_dir_path(model_name_or_path, subfolder=subfolder, **hub))
