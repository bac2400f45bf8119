"""bertcore: the BERT family without PyTorch.

    from bertcore import AutoModel, AutoTokenizer, SentenceEncoder, use_backend

Everything is loaded at first use: `import bertcore` does not import NumPy, Numba, CuPy or tokenizers.
"""

import importlib
from typing import TYPE_CHECKING, Any

from bertcore.file_readers import FILE_READERS

if TYPE_CHECKING:  # for type checkers, which do not see __getattr__; `as` marks a re-export
    from bertcore import evaluation as evaluation
    from bertcore import kernels as kernels
    from bertcore import lora as lora
    from bertcore import losses as losses
    from bertcore import training as training
    from bertcore import util as util
    from bertcore.gradients import value_and_grad as value_and_grad
    from bertcore.gradients import vjp as vjp
    from bertcore.kernels import BackendUnavailable as BackendUnavailable
    from bertcore.kernels import get_backend as get_backend
    from bertcore.kernels import get_num_threads as get_num_threads
    from bertcore.kernels import is_batch_invariant as is_batch_invariant
    from bertcore.kernels import set_backend as set_backend
    from bertcore.kernels import set_batch_invariant as set_batch_invariant
    from bertcore.kernels import set_num_threads as set_num_threads
    from bertcore.kernels import use_backend as use_backend
    from bertcore.models.architectures import load_model as load_model
    from bertcore.models.auto import AutoConfig as AutoConfig
    from bertcore.models.auto import AutoModel as AutoModel
    from bertcore.models.auto import AutoModelForCausalLM as AutoModelForCausalLM
    from bertcore.models.auto import AutoModelForMaskedLM as AutoModelForMaskedLM
    from bertcore.models.auto import AutoModelForMultipleChoice as AutoModelForMultipleChoice
    from bertcore.models.auto import AutoModelForNextSentencePrediction as AutoModelForNextSentencePrediction
    from bertcore.models.auto import AutoModelForQuestionAnswering as AutoModelForQuestionAnswering
    from bertcore.models.auto import AutoModelForSequenceClassification as AutoModelForSequenceClassification
    from bertcore.models.auto import AutoModelForTokenClassification as AutoModelForTokenClassification
    from bertcore.models.entities import AutoModelForEntityClassification as AutoModelForEntityClassification
    from bertcore.models.entities import AutoModelForEntityPairClassification as AutoModelForEntityPairClassification
    from bertcore.models.entities import AutoModelForEntitySpanClassification as AutoModelForEntitySpanClassification
    from bertcore.models.pretraining import AutoModelForPreTraining as AutoModelForPreTraining
    from bertcore.models.pretraining import AutoModelForSpanBoundary as AutoModelForSpanBoundary
    from bertcore.models.replaced_tokens import ReplacedTokenModel as ReplacedTokenModel
    from bertcore.models.student import student_from_teacher as student_from_teacher
    from bertcore.passes import autocast as autocast
    from bertcore.tasks.cross_encoder import CrossEncoder as CrossEncoder
    from bertcore.tasks.gliner import GLiNER as GLiNER
    from bertcore.tasks.gliner2 import GLiNER2 as GLiNER2
    from bertcore.tasks.hard_negatives import mine_hard_negatives as mine_hard_negatives
    from bertcore.tasks.index import VectorIndex as VectorIndex
    from bertcore.tasks.multi_vector import MultiVectorEncoder as MultiVectorEncoder
    from bertcore.tasks.pipelines import pipeline as pipeline
    from bertcore.tasks.quantization import quantize_embeddings as quantize_embeddings
    from bertcore.tasks.sentence_encoder import SentenceEncoder as SentenceEncoder
    from bertcore.tasks.similarity import SimilarityFunction as SimilarityFunction
    from bertcore.tasks.sparse_encoder import SparseEncoder as SparseEncoder
    from bertcore.tokenization import AutoTokenizer as AutoTokenizer
    from bertcore.training.arguments import TrainerControl as TrainerControl
    from bertcore.training.arguments import TrainerState as TrainerState
    from bertcore.training.arguments import TrainingArguments as TrainingArguments
    from bertcore.training.callbacks import EarlyStoppingCallback as EarlyStoppingCallback
    from bertcore.training.callbacks import TrainerCallback as TrainerCallback
    from bertcore.training.collators import DataCollatorForLanguageModeling as DataCollatorForLanguageModeling
    from bertcore.training.collators import DataCollatorForMultipleChoice as DataCollatorForMultipleChoice
    from bertcore.training.collators import DataCollatorForTokenClassification as DataCollatorForTokenClassification
    from bertcore.training.collators import DataCollatorWithPadding as DataCollatorWithPadding
    from bertcore.training.encoder_trainers import BatchSamplers as BatchSamplers
    from bertcore.training.encoder_trainers import CrossEncoderTrainer as CrossEncoderTrainer
    from bertcore.training.encoder_trainers import CrossEncoderTrainingArguments as CrossEncoderTrainingArguments
    from bertcore.training.encoder_trainers import MultiDatasetBatchSamplers as MultiDatasetBatchSamplers
    from bertcore.training.encoder_trainers import MultiVectorEncoderTrainer as MultiVectorEncoderTrainer
    from bertcore.training.encoder_trainers import (
        MultiVectorEncoderTrainingArguments as MultiVectorEncoderTrainingArguments,
    )
    from bertcore.training.encoder_trainers import SentenceTransformerTrainer as SentenceTransformerTrainer
    from bertcore.training.encoder_trainers import (
        SentenceTransformerTrainingArguments as SentenceTransformerTrainingArguments,
    )
    from bertcore.training.encoder_trainers import SparseEncoderTrainer as SparseEncoderTrainer
    from bertcore.training.encoder_trainers import SparseEncoderTrainingArguments as SparseEncoderTrainingArguments
    from bertcore.training.metrics import EvalPrediction as EvalPrediction
    from bertcore.training.schedules import get_scheduler as get_scheduler
    from bertcore.training.trainer import Trainer as Trainer

__version__ = "0.1.0"

_LAZY = {
    name: f"bertcore.{module}"
    for module, names in {
        "gradients": "value_and_grad vjp",
        "kernels": "BackendUnavailable get_backend get_num_threads is_batch_invariant set_backend set_batch_invariant "
        "set_num_threads use_backend",
        "models.architectures": "load_model",
        "models.auto": "AutoConfig AutoModel AutoModelForCausalLM AutoModelForMaskedLM AutoModelForMultipleChoice "
        "AutoModelForNextSentencePrediction AutoModelForQuestionAnswering AutoModelForSequenceClassification "
        "AutoModelForTokenClassification",
        "models.entities": "AutoModelForEntityClassification AutoModelForEntityPairClassification "
        "AutoModelForEntitySpanClassification",
        "models.pretraining": "AutoModelForPreTraining AutoModelForSpanBoundary",
        "models.replaced_tokens": "ReplacedTokenModel",
        "models.student": "student_from_teacher",
        "passes": "autocast",
        "tasks.cross_encoder": "CrossEncoder",
        "tasks.gliner": "GLiNER",
        "tasks.gliner2": "GLiNER2",
        "tasks.hard_negatives": "mine_hard_negatives",
        "tasks.index": "VectorIndex",
        "tasks.multi_vector": "MultiVectorEncoder",
        "tasks.pipelines": "pipeline",
        "tasks.quantization": "quantize_embeddings",
        "tasks.sentence_encoder": "SentenceEncoder",
        "tasks.similarity": "SimilarityFunction",
        "tasks.sparse_encoder": "SparseEncoder",
        "tokenization": "AutoTokenizer",
        "training.arguments": "TrainerControl TrainerState TrainingArguments",
        "training.callbacks": "EarlyStoppingCallback TrainerCallback",
        "training.collators": "DataCollatorForLanguageModeling DataCollatorForMultipleChoice "
        "DataCollatorForTokenClassification DataCollatorWithPadding",
        "training.encoder_trainers": "BatchSamplers CrossEncoderTrainer CrossEncoderTrainingArguments "
        "MultiDatasetBatchSamplers MultiVectorEncoderTrainer MultiVectorEncoderTrainingArguments "
        "SentenceTransformerTrainer SentenceTransformerTrainingArguments SparseEncoderTrainer "
        "SparseEncoderTrainingArguments",
        "training.metrics": "EvalPrediction",
        "training.schedules": "get_scheduler",
        "training.trainer": "Trainer",
    }.items()
    for name in names.split()
}

_MODULES = {name: f"bertcore.{name}" for name in ("evaluation", "kernels", "lora", "losses", "training", "util")}

__all__ = sorted([*_LAZY, *_MODULES])


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    if name not in _LAZY:
        raise AttributeError(f"module 'bertcore' has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


FILE_READERS[".gguf"] = lambda file: importlib.import_module("bertcore.formats.gguf_model").unpacked(file)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
