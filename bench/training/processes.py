"""Speed of training by two processes divided by that of one, each with one thread.

`python -m bench.training.processes [--shape 64x64] [--rounds 5]` needs mpirun and mpi4py. Mini-BERT learns masked
words; runs of one and of two processes take turns, and each process has a batch of that shape in every step. The ratio
is of tokens a second, the median over the rounds.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.options import positive
from bench.training.cases import MASKED_LM, SHAPES, Case

STEPS, WARM_UP = 12, 4


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="64x64")
    parser.add_argument("--rounds", type=positive, default=5)
    parser.add_argument("--as-process", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.as_process:
        _train(given.shape)
        return
    rates: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(given.rounds):
        for count, found in rates.items():
            found.append(tokens_per_second(count, given.shape))
    ratios = [two / one for one, two in zip(*rates.values(), strict=True)]
    for count, found in rates.items():
        print(f"{count} process{'es' * (count > 1)}: {statistics.median(found):,.0f} tokens/s")
    print(f"ratio {statistics.median(ratios):.2f} ({', '.join(f'{ratio:.2f}' for ratio in ratios)})")


def tokens_per_second(count: int, shape: str) -> float:
    """Return the tokens a second of a run of `count` processes."""
    mpirun = shutil.which("mpirun", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if mpirun is None:
        raise SystemExit("mpirun is not here: pip install mpich mpi4py")
    command = [mpirun, "-n", str(count), sys.executable, "-m", "bench.training.processes", "--shape", shape]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run([*command, "--as-process"], env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return float(ended.stdout)


def _train(shape: str) -> None:
    """Train as one of the processes; the first prints tokens a second of the steps after the warm-up."""
    from bertcore import AutoModelForMaskedLM
    from bertcore.training import Trainer, TrainingArguments

    case = Case("mini-bert", shape, MASKED_LM)
    batches = case.batches()
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            output_dir=folder,
            max_steps=STEPS,
            per_device_train_batch_size=1,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        model = AutoModelForMaskedLM.from_config(case.config)
        # An example is a batch: what is measured is the steps.
        examples = [{"number": number} for number in range(4 * len(batches))]
        trainer = Trainer(model, args, lambda some: batches[some[0]["number"] % len(batches)], examples)
        trainer.train()
    first, last = (trainer.state.log_history[index] for index in (WARM_UP - 1, STEPS - 1))
    if trainer.is_world_process_zero():
        print((last["tokens"] - first["tokens"]) / (last["seconds"] - first["seconds"]))


if __name__ == "__main__":
    main()
