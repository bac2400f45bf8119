"""Compile the kernels of one level into a folder, on any machine of its architecture.

compile_kernels.py LEVEL FOLDER
Kernels are compiled for what small models ask of them, without being run, so the machine need not have the level.
"""

import os
import platform
import sys
from types import SimpleNamespace

import llvmlite.binding as llvm
import numba
from numba.core.registry import CPUDispatcher

BERT = {"model_type": "bert", "vocab_size": 99, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
BERT |= {"intermediate_size": 96, "pad_token_id": 0}
MODERNBERT = BERT | {"model_type": "modernbert", "bos_token_id": 1, "cls_token_id": 1}
MODERNBERT |= {"eos_token_id": 2, "sep_token_id": 2}
DEBERTA = BERT | {"model_type": "deberta-v2", "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
DEBERTA |= {"position_buckets": 8, "norm_rel_ebd": "layer_norm", "share_att_key": True}
DTYPES = ("float32", "bfloat16", "int8")


def pretend(level: str, folder: str) -> None:
    """Make this process compile for a level, whatever the CPU has, into `folder`; before kernels are imported."""
    os.environ |= {"BERTCORE_ISA": level, "BERTCORE_CACHE_DIR": folder, "BERTCORE_BACKEND": "numba"}
    from bertcore.kernels import threads

    if platform.machine().lower() in ("arm64", "aarch64"):
        threads.auxiliary_value, threads.sysctl = lambda entry: -1, lambda name: 1
    features = SimpleNamespace(get=lambda name, default: True)
    llvm.get_host_cpu_features = lambda: features
    sys.modules["bertcore.kernels._numba.amx.permission"] = SimpleNamespace(request_tiles=lambda: None)
    from bertcore.kernels._numba.compile import isa

    isa.compile_for(isa.LEVEL, isa.LEVEL.llvm_cpu)


def compile_only() -> None:
    """From now on calls of kernels compile them and return nothing, or a size that suffices."""

    def call(self, *arguments):
        signature = tuple(map(numba.typeof, arguments))
        self.compile(signature)
        return None if self.overloads[signature].signature.return_type == numba.none else 1 << 20

    CPUDispatcher.__call__ = call


def train(config: dict) -> None:
    """Make a step of training, with dropout."""
    from bertcore import AutoModelForMaskedLM, value_and_grad
    from bertcore.training.optimizers import AdamW, clip_grad_norm

    model = AutoModelForMaskedLM.from_config(config).train(0)
    _, gradients = value_and_grad(model)([[1, 2, 3]], labels=[[1, 2, 3]])
    clip_grad_norm(gradients, 1.0)
    AdamW(model, lr=1e-3).step(gradients)


def main(level: str, folder: str) -> None:
    pretend(level, folder)
    compile_only()
    import numpy as np

    from bertcore import AutoModel, AutoModelForMaskedLM, kernels
    from bertcore.tasks.loading import warm_up

    kernels.softmax(np.zeros((2, 4), np.float32), -1)  # of bertcore doctor
    for config in (BERT, MODERNBERT, DEBERTA):
        for dtype in DTYPES:
            for kind in (AutoModel, AutoModelForMaskedLM):
                is_trained = kind is AutoModelForMaskedLM and dtype == "float32" and config is BERT
                warm_up(kind.from_config(config, dtype=dtype), gradients=is_trained)
    train(BERT)


if __name__ == "__main__":
    main(*sys.argv[1:])
