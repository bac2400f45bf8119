"""One of the processes of a run that tests start with mpirun."""

import argparse
import ast
import os
import signal
import sys

import numpy as np

from bertcore import use_backend
from bertcore.training.processes import started_together
from tests.training.tiny_runs import At, class_trainer, classifier, language_trainer

NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def fail(event):
    raise ZeroDivisionError("a callback failed")


def ask_for_the_end(event):
    event["control"].should_training_stop = True


ACTIONS = {
    "kill": lambda event: os.kill(os.getpid(), signal.SIGKILL),
    "fail": fail,
    "stop": ask_for_the_end,
    "interrupt": lambda event: os.kill(os.getpid(), signal.SIGINT),
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--kind", choices=("language", "class"), default="language")
    parser.add_argument("--action", choices=ACTIONS)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--differ", action="store_true")
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--set", nargs="*", default=[])
    args = parser.parse_args()
    if not args.gpu:
        return run(args)
    from tests.training.nccl_over_mpi import gpus

    with gpus() as gpu, use_backend("cupy"):
        run(args)
        assert gpu.current == started_together().index, "all processes use one GPU"


def run(args):
    settings = {name: ast.literal_eval(value) for name, value in (setting.split("=") for setting in args.set)}
    callbacks = [At(4, ACTIONS[args.action])] if args.action and started_together().index == 1 else []
    if args.kind == "class":
        trainer = class_trainer(args.folder, callbacks, classifier(**NO_DROPOUT), **settings)
    else:
        trainer = language_trainer(args.folder, callbacks, **settings)
    if args.differ and not trainer.is_world_process_zero():
        next(iter(trainer.model.parameters())).change(lambda array: array.__iadd__(1))
    trainer.train(resume_from_checkpoint=args.resume)
    index = started_together().index
    np.savez(f"{args.folder}/process-{index}.npz", steps=trainer.state.global_step, **trainer.model.state_dict())


if __name__ == "__main__":
    sys.exit(main())
