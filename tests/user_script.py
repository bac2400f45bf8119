"""A user's script, for type checkers to read (`test_installation.py`); it is not run."""

from typing import assert_type

import numpy as np

from bertcore import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoTokenizer,
    CrossEncoder,
    SentenceEncoder,
    Trainer,
    TrainingArguments,
    evaluation,
    get_scheduler,
    load_model,
    pipeline,
    use_backend,
    util,
    value_and_grad,
)
from bertcore.kernels import attention, linear, prepare_weight, softmax
from bertcore.models.outputs import EncoderOutput
from bertcore.training import AdamW
from bertcore.training import clip_grad_norm as clip
from bertcore.training.metrics import accuracy
from bertcore.training.objectives import MaskedLM

folder = "all-MiniLM-L6-v2"
tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder, dtype="int8")
out = assert_type(model(**tokenizer(["one text", "or many"], padding=True)), EncoderOutput)
print(out.last_hidden_state.shape, out.pooler_output.shape, out["last_hidden_state"])
with use_backend("numpy"):
    print(model([[101, 102]]).last_hidden_state.mean())

encoder = SentenceEncoder(folder)
vectors = encoder.encode(["one text", "or many"], normalize_embeddings=True)
print(vectors @ vectors.T, util.cos_sim(vectors, vectors))
print(evaluation.TripletEvaluator(["a"], ["a"], ["b"])(encoder))
print(CrossEncoder(folder).rank("query", ["one document"])[0]["score"])
for answer in pipeline("fill-mask", folder)("Paris is the [MASK] of France."):
    print(answer["score"])

learner = AutoModelForMaskedLM.from_config("mini-bert")
optimizer = AdamW(learner, lr=1e-3)
schedule = get_scheduler("linear", optimizer, num_warmup_steps=1, num_training_steps=2)
batch = {"input_ids": [[101, 103]], "labels": [[-100, 3000]]}
out, grads = value_and_grad(learner)(**batch)
clip(grads, 1.0)
optimizer.step(grads)
schedule.step()
print(out.loss, {name: gradient.shape for name, gradient in grads.items()})
learner.save_pretrained("my-model")
print(load_model("my-model").eval()([[101, 102]]).loss)
arguments = TrainingArguments("out", num_train_epochs=1, learning_rate=1e-4)
trainer = Trainer(
    learner, arguments, train_dataset=[{"input_ids": [1]}], objective=MaskedLM(), compute_metrics=accuracy
)
trainer.train(resume_from_checkpoint=True)
print(trainer.evaluate()["eval_loss"])

rows = np.ones((4, 8), "float32")
print(softmax(rows) + linear(rows, prepare_weight(np.ones((3, 8), "float32")))[:, :1])
print(attention(*np.ones((3, 1, 2, 4, 8), "float32"), is_causal=True).shape)
