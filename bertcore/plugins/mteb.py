"""mteb's encoder: `MTEBEncoder` (needs mteb).

    import mteb
    from bertcore.plugins.mteb import MTEBEncoder

    mteb.evaluate(MTEBEncoder("all-MiniLM-L6-v2/"), tasks=mteb.get_tasks(tasks=["NanoNQRetrieval"]))

It implements mteb's EncoderProtocol.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mteb.models import ModelMeta
from mteb.models.abs_encoder import get_prompt_name
from mteb.models.model_meta import ScoringFunction
from mteb.types import PromptType

from bertcore.plugins import opened


class MTEBEncoder:
    """Embeddings of a sentence encoder, for mteb's tasks.

    A text gets the first of the model's prompts named after, in mteb's order: the task and the kind of text
    ("NFCorpus-query"), the task, the task's type and the kind, the type, the kind; otherwise the model's prompt for
    queries or documents.

    `model` is a folder, or an id on the Hugging Face hub; `truncation` is as for `SentenceEncoder.encode`, other
    arguments are as for `SentenceEncoder`.
    """

    def __init__(
        self, model: str | os.PathLike[str], revision: str | None = None, *, device: str | None = None,
        truncation: bool | str = True, **options: Any,
    ):  # fmt: skip
        self.encoder = opened(model, revision=revision, device=device, **options)
        self._name, self._revision, self._truncation = os.fspath(model), revision, truncation

    def encode(
        self, inputs: Iterable[Mapping[str, Any]], *, task_metadata: Any, hf_split: str, hf_subset: str,
        prompt_type: PromptType | None = None, batch_size: int = 32, show_progress_bar: bool = False, **options: Any,
    ) -> np.ndarray:  # fmt: skip
        """Return the embeddings, float32 (texts, dim), of the column "text" of mteb's batches.

        `options` are further options of `SentenceEncoder.encode`.
        """
        name = get_prompt_name(dict(self.encoder.prompts), task_metadata, prompt_type)
        encoders = {None: self.encoder.encode, "query": self.encoder.encode_query}
        encode = encoders.get(prompt_type and prompt_type.value, self.encoder.encode_document)
        options |= {"batch_size": batch_size, "show_progress_bar": show_progress_bar, "truncation": self._truncation}
        return encode([text for batch in inputs for text in batch["text"]], prompt_name=name, **options)

    def similarity(self, embeddings1: np.ndarray, embeddings2: np.ndarray) -> torch.Tensor:
        """Return the model's similarities, (texts, other texts); of two vectors mteb makes a number, as of a tensor."""
        return torch.as_tensor(self.encoder.similarity(embeddings1, embeddings2))

    def similarity_pairwise(self, embeddings1: np.ndarray, embeddings2: np.ndarray) -> np.ndarray:
        """Return the model's similarities of corresponding rows, (texts,)."""
        return self.encoder.similarity_pairwise(embeddings1, embeddings2)

    @property
    def mteb_model_meta(self) -> ModelMeta:
        """The model's description for mteb, named by its id on the hub, or "bertcore/" and the folder's name."""
        is_folder = Path(self._name).is_dir() or self._name.count("/") != 1
        name = f"bertcore/{Path(self._name).resolve().name}" if is_folder else self._name
        facts = {"name": name, "revision": self._revision or "no_revision", "max_tokens": self.encoder.max_seq_length}
        similarity = {"similarity_fn_name": ScoringFunction(self.encoder.similarity_fn_name)}
        return ModelMeta.create_empty(facts | similarity | {"embed_dim": self.encoder.embedding_dimension})
