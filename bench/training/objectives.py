"""Time of a step of each objective divided by that of the forward and backward passes in it.

`python -m bench.training.objectives [--objective rtd plm] [--quick]` takes turns between a step (the loss and its
gradients, without the optimiser) and its passes, each alone, in one thread, and compares CPU time. Before, each step's
loss and the norm of its gradients on Numba are compared with NumPy's.
"""

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench import machine
from bench.measure import Times, Variant, measure
from bench.report import Column, append_csv, table
from bertcore import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForSpanBoundary,
    ReplacedTokenModel,
    student_from_teacher,
    use_backend,
    value_and_grad,
)
from bertcore.gradients import differentiate
from bertcore.heads import find_boundaries
from bertcore.models import losses
from bertcore.models.outputs import LogitsOutput
from bertcore.models.student import with_layers
from bertcore.passes import Pass
from bertcore.presets import preset_config
from bertcore.training import clip_grad_norm
from bertcore.training.objectives import (
    AttentionDistributions,
    AttentionScores,
    Distillation,
    HiddenCosine,
    HiddenStates,
    MaskedLM,
    Objective,
    PermutationLM,
    Relations,
    ReplacedToken,
    SoftTargets,
    SpanBoundary,
    Supervised,
    TranslationLM,
)

CSV = Path(__file__).parents[1] / "results" / "objectives.csv"
TOLERANCE = 1e-3  # of the loss and of the norm of its gradients, relative to NumPy's
LABELLED, PREDICTED = 0.15, 1 / 6  # shares of the tokens
Call = Callable[[], Any]
COLUMNS = (
    Column("objective", "objective"),
    Column("step_s", "step, ms", ".1f", 1e3),
    Column("passes_s", "passes, ms", ".1f", 1e3),
    Column("ratio", "step / passes", ".2f"),
    Column("spread", "±%", ".0f", 50),
)


class Case(NamedTuple):
    """An objective's step, and the passes that it consists of."""

    objective: Objective
    model: Any
    batch: Mapping[str, np.ndarray]
    passes: Sequence[Call]

    def step(self) -> tuple[float, float]:
        """Return (loss, norm of the gradients)."""
        out, grads = self.objective.value_and_grad(self.model, self.batch)
        return float(out.loss), clip_grad_norm(grads, np.inf)


class Sizes(NamedTuple):
    """Sizes of the texts and of the model."""

    texts: int = 32
    length: int = 64
    layers: int = 4
    width: int = 256
    words: int = 8192

    @property
    def config(self) -> dict[str, Any]:
        """Mini-BERT's config with these sizes, without dropout."""
        heads, without = self.width // 64 or 1, {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        sizes = {"hidden_size": self.width, "intermediate_size": 4 * self.width, "vocab_size": self.words}
        return preset_config("mini-bert") | sizes | without | {
            "num_hidden_layers": self.layers, "num_attention_heads": heads, "max_position_embeddings": self.length,
        }  # fmt: skip

    def ids(self, rng: np.random.Generator) -> np.ndarray:
        """Return random ids, (texts, length)."""
        return rng.integers(5, self.words, (self.texts, self.length))


def masked(sizes: Sizes, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return random texts with labels for some of their tokens, in pairs."""
    ids = sizes.ids(rng)
    chosen = np.repeat(rng.random((sizes.texts, sizes.length // 2)) < LABELLED, 2, axis=1)
    return {"input_ids": np.where(chosen, 4, ids), "labels": np.where(chosen, ids, losses.IGNORED)}


def rtd(sizes: Sizes, rng: np.random.Generator) -> Case:
    """Replaced tokens: the generator's pass and the discriminator's."""
    config = {**sizes.config, "model_type": "electra", "embedding_size": sizes.width}
    model, batch = ReplacedTokenModel.from_config(config, embeddings="separate"), masked(sizes, rng)
    replaced = {"input_ids": batch["input_ids"], "labels": (rng.random(batch["labels"].shape) < 0.1).astype(int)}
    passes = [lambda: value_and_grad(model.generator)(**batch), lambda: value_and_grad(model.discriminator)(**replaced)]
    return Case(ReplacedToken(), model, batch | {"draws": rng.random(batch["labels"].shape)}, passes)


def plm(sizes: Sizes, rng: np.random.Generator) -> Case:
    """Permutations: the first stream with the scores, and a stream of the predicted tokens alone."""
    heads, ids = sizes.config["num_attention_heads"], sizes.ids(rng)
    config = {"model_type": "xlnet", "vocab_size": sizes.words, "d_model": sizes.width, "n_layer": sizes.layers}
    config |= {"n_head": heads, "d_inner": 4 * sizes.width, "dropout": 0.0}
    model, count = AutoModelForCausalLM.from_config(config), round(PREDICTED * sizes.length)
    orders = np.array([rng.permutation(sizes.length)[:count] for _ in range(sizes.texts)])
    rank, rows = np.full(ids.shape, -1), np.arange(sizes.texts)[:, None]
    rank[rows, orders] = np.arange(count)
    mask = (rank[:, None] >= 0) & (rank[:, None] >= rank[:, :, None])
    mapping = np.zeros((sizes.texts, count, sizes.length), np.float32)
    mapping[rows, np.arange(count), orders] = 1
    batch = {"input_ids": ids, "perm_mask": mask, "target_mapping": mapping, "labels": ids[rows, orders]}
    labels = np.where(rank >= 0, ids, losses.IGNORED)
    few = np.where(np.arange(count) == 0, ids[:, :count], losses.IGNORED)
    passes = [
        lambda: value_and_grad(model)(input_ids=ids, labels=labels),
        lambda: value_and_grad(model)(input_ids=ids[:, :count], labels=few),
    ]
    return Case(PermutationLM(), model, batch, passes)


def sbo(sizes: Sizes, rng: np.random.Generator) -> Case:
    """Span boundaries: the masked language model's pass, and the second head's."""
    model, batch = AutoModelForSpanBoundary.from_config(sizes.config), masked(sizes, rng)
    plain, head = AutoModelForMaskedLM.from_config(sizes.config), model.heads[1]
    hidden = rng.standard_normal((sizes.texts * sizes.length, sizes.width)).astype(np.float32)
    labels = batch["labels"].reshape(-1)
    rows, *beside = find_boundaries(labels, sizes.length * np.arange(sizes.texts + 1), head.most)

    def second_head() -> LogitsOutput:
        run = Pass.begin()
        return LogitsOutput(loss=losses.cross_entropy(run, head(run, hidden, *beside), labels[rows]))

    passes = [lambda: value_and_grad(plain)(**batch), lambda: differentiate(head, second_head)]
    return Case(SpanBoundary(), model, batch, passes)


def tlm(sizes: Sizes, rng: np.random.Generator) -> Case:
    """Translation: the masked language model's pass."""
    model, batch = AutoModelForMaskedLM.from_config(sizes.config), masked(sizes, rng)
    restart = np.tile([sizes.length // 2, 1], (sizes.texts, 1))
    return Case(TranslationLM(), model, batch | {"restart": restart}, [lambda: value_and_grad(model)(**batch)])


def distillation(*terms: Any) -> Callable[[Sizes, np.random.Generator], Case]:
    """Return distillation by some terms: the teacher's forward, and the student's pass."""

    def case(sizes: Sizes, rng: np.random.Generator) -> Case:
        teacher = AutoModelForSequenceClassification.from_config(sizes.config, num_labels=2).eval()
        student = student_from_teacher(with_layers(teacher.config, max(1, sizes.layers // 2)), teacher)
        texts, labels = {"input_ids": sizes.ids(rng)}, {"labels": rng.integers(0, 2, sizes.texts)}
        objective = Distillation(teacher, *terms, objective=Supervised())
        passes = [lambda: teacher(**texts), lambda: value_and_grad(student)(**texts, **labels)]
        return Case(objective, student, texts | labels, passes)

    return case


def distilled_words(labelled_only: bool) -> Callable[[Sizes, np.random.Generator], Case]:
    """Return distillation of scores of all tokens or of labelled ones: the teacher's forward, the student's pass."""

    def case(sizes: Sizes, rng: np.random.Generator) -> Case:
        teacher = AutoModelForMaskedLM.from_config(sizes.config).eval()
        student = student_from_teacher(with_layers(teacher.config, max(1, sizes.layers // 2)), teacher)
        batch = masked(sizes, rng)
        scored = batch if labelled_only else {"input_ids": batch["input_ids"], "labels": sizes.ids(rng)}
        passes = [lambda: teacher(**scored), lambda: value_and_grad(student)(**scored)]
        objective = Distillation(teacher, SoftTargets(labelled_only=labelled_only), objective=MaskedLM())
        return Case(objective, student, batch, passes)

    return case


CASES: Mapping[str, Callable[[Sizes, np.random.Generator], Case]] = {
    "rtd": rtd,
    "plm": plm,
    "mlm+sbo": sbo,
    "tlm": tlm,
    "soft targets": distillation(SoftTargets()),
    "soft targets of words": distilled_words(False),
    "soft targets of masked words": distilled_words(True),
    "cosine": distillation(HiddenCosine()),
    "hidden states": distillation(HiddenStates()),
    "scores": distillation(AttentionScores()),
    "attention": distillation(AttentionDistributions()),
    "relations": distillation(Relations()),
}


def error_of(case: Case) -> float:
    """Return the relative error of loss and norm of the gradients on Numba from NumPy's."""
    found = []
    for backend in ("numba", "numpy"):
        with use_backend(backend):
            found.append(np.array(case.step()))
    return float(np.nan_to_num(abs(found[0] / found[1] - 1), nan=np.inf).max())


def ratio_of(case: Case, rounds: int, seconds: float) -> dict[str, Any]:
    """Return the times of the step and of all passes, and their ratio."""
    calls: dict[str, Call] = {"step": case.step}
    calls |= {f"pass {number}": call for number, call in enumerate(case.passes)}
    with use_backend("numba"):
        times = measure({name: Variant(call, thread_clock) for name, call in calls.items()}, rounds, seconds)
    passes = Times(sum(found.samples for name, found in times.items() if name != "step"), 1)
    step = times["step"]
    return {"step_s": step.median, "passes_s": passes.median, "ratio": step.ratio(passes), "spread": step.spread}


def thread_clock(call: Call, repeats: int) -> float:
    """Return CPU seconds of this thread, which other processes do not change."""
    start = time.thread_time()
    for _ in range(repeats):
        call()
    return time.thread_time() - start


def main(arguments: Sequence[str] | None = None) -> int:
    """Check, measure, print, write the CSV; return 1 if a step is wrong, else 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objective", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--quick", action="store_true", help="small models, 3 rounds, no CSV")
    parser.add_argument("--csv", type=Path, default=CSV)
    given = parser.parse_args(arguments)
    machine.set_threads(1)
    sizes, rounds, seconds = (Sizes(4, 16, 2, 64, 100), 3, 0.5) if given.quick else (Sizes(), 21, 20.0)
    rows = []
    for name in given.objective:
        case = CASES[name](sizes, np.random.default_rng(0))
        error = error_of(case)
        if error > TOLERANCE:
            print(f"{name}: loss or gradients on numba are {error:.1e} off those on numpy", file=sys.stderr)
            return 1
        rows.append({"objective": name, "error": error} | ratio_of(case, rounds, seconds))
        print(f"{name}: done", file=sys.stderr, flush=True)
    if not given.quick:
        append_csv(given.csv, rows, machine.describe())
    print(table(rows, COLUMNS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
