"""bertcore: the BERT family without PyTorch.

    from bertcore import AutoModel, AutoTokenizer, SentenceEncoder, use_backend

Everything is loaded at first use: `import bertcore` costs neither NumPy nor Numba nor CuPy nor tokenizers.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_LAZY = {
    "AutoModel": "bertcore.models.auto",
    "AutoModelForCausalLM": "bertcore.models.auto",
    "AutoModelForEntityClassification": "bertcore.families.luke.models",
    "AutoModelForEntityPairClassification": "bertcore.families.luke.models",
    "AutoModelForEntitySpanClassification": "bertcore.families.luke.models",
    "AutoModelForMaskedLM": "bertcore.models.auto",
    "AutoModelForMultipleChoice": "bertcore.models.auto",
    "AutoModelForNextSentencePrediction": "bertcore.models.auto",
    "AutoModelForPreTraining": "bertcore.models.pretraining",
    "AutoModelForQuestionAnswering": "bertcore.models.auto",
    "AutoModelForSequenceClassification": "bertcore.models.auto",
    "AutoModelForSpanBoundary": "bertcore.models.span_boundary",
    "AutoModelForTokenClassification": "bertcore.models.auto",
    "AutoTokenizer": "bertcore.tokenization",
    "BackendUnavailable": "bertcore.kernels",
    "CrossEncoder": "bertcore.tasks.cross_encoder",
    "ReplacedTokenModel": "bertcore.models.replaced_tokens",
    "SentenceEncoder": "bertcore.tasks.sentence_encoder",
    "SparseEncoder": "bertcore.tasks.sparse_encoder",
    "autocast": "bertcore.nn.autocast",
    "get_backend": "bertcore.kernels",
    "get_num_threads": "bertcore.kernels",
    "load_model": "bertcore.models.architectures",
    "pipeline": "bertcore.tasks.pipelines",
    "set_backend": "bertcore.kernels",
    "set_num_threads": "bertcore.kernels",
    "student_from_teacher": "bertcore.models.student",
    "use_backend": "bertcore.kernels",
    "value_and_grad": "bertcore.gradients",
    "vjp": "bertcore.gradients",
}

__all__ = [
    "AutoModel",
    "AutoModelForCausalLM",
    "AutoModelForEntityClassification",
    "AutoModelForEntityPairClassification",
    "AutoModelForEntitySpanClassification",
    "AutoModelForMaskedLM",
    "AutoModelForMultipleChoice",
    "AutoModelForNextSentencePrediction",
    "AutoModelForPreTraining",
    "AutoModelForQuestionAnswering",
    "AutoModelForSequenceClassification",
    "AutoModelForSpanBoundary",
    "AutoModelForTokenClassification",
    "AutoTokenizer",
    "BackendUnavailable",
    "CrossEncoder",
    "ReplacedTokenModel",
    "SentenceEncoder",
    "SparseEncoder",
    "autocast",
    "get_backend",
    "get_num_threads",
    "load_model",
    "pipeline",
    "set_backend",
    "set_num_threads",
    "student_from_teacher",
    "use_backend",
    "value_and_grad",
    "vjp",
]


def __getattr__(name: str) -> Any:
    if name == "kernels":
        return importlib.import_module("bertcore.kernels")
    if name not in _LAZY:
        raise AttributeError(f"module 'bertcore' has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
