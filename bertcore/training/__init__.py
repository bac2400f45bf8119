"""Training without PyTorch: optimisers, schedules, masking, collators and data.

A loop over batches:

    optimizer = AdamW(model, lr=5e-4)
    schedule = get_scheduler("linear", optimizer, num_warmup_steps=100, num_training_steps=1000)
    for batch in batches:
        out, grads = value_and_grad(model)(**batch)
        clip_grad_norm(grads, 1.0)
        optimizer.step(grads)
        schedule.step()
"""

from bertcore.training import objectives
from bertcore.training.arguments import TrainerControl, TrainerState, TrainingArguments
from bertcore.training.callbacks import EarlyStoppingCallback, TrainerCallback
from bertcore.training.checkpoints import NotSaved
from bertcore.training.collators import (
    DataCollatorForLanguageModeling,
    DataCollatorForMultipleChoice,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    Masking,
)
from bertcore.training.eight_bits import AdamW8bit
from bertcore.training.metrics import EvalPrediction, PredictionOutput
from bertcore.training.optimizers import LAMB, SGD, AdamW, Muon, Optimizer, StableAdamW, clip_grad_norm
from bertcore.training.safeguards import TrainingDiverged
from bertcore.training.schedules import Schedule, get_scheduler
from bertcore.training.trainer import Trainer, TrainOutput

__all__ = [
    "LAMB", "SGD", "AdamW", "AdamW8bit", "DataCollatorForLanguageModeling", "DataCollatorForMultipleChoice",
    "DataCollatorForTokenClassification", "DataCollatorWithPadding", "EarlyStoppingCallback", "EvalPrediction",
    "Masking", "Muon", "NotSaved", "Optimizer", "PredictionOutput", "Schedule", "StableAdamW", "TrainOutput", "Trainer",
    "TrainerCallback", "TrainerControl", "TrainerState", "TrainingArguments", "TrainingDiverged", "clip_grad_norm",
    "get_scheduler", "objectives",
]  # fmt: skip
