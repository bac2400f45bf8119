"""Numeric kernels of bertcore: plain functions over NumPy, CuPy and PyTorch arrays.

Each operation is a folder with one contract (its __init__.py) and up to three implementations: reference.py (NumPy, the
definition), cpu.py (Numba) and cuda.py (raw CUDA through CuPy). The folder uses relative imports only: copy it into
another project, under any name, and it works. `torch.py` has the operations with PyTorch's gradients.
"""

# The public functions are imported here, eagerly: an operation's folder has its function's name, and a later
# `import bertcore.kernels.softmax.cpu` must not put the module in the function's place.
from .activation import ActivationSaved, GELUSaved, activation, activation_backward, gelu, gelu_backward
from .adam_update import adam_update
from .affine import AffineSaved, affine, affine_backward
from .attention import (
    AttentionGradients,
    AttentionSaved,
    RelativePositions,
    alibi_positions,
    attention,
    attention_backward,
    bucketed_distances,
)
from .cast import cast
from .clip_norm import clip_norm, joint_norm
from .cross_entropy import CrossEntropySaved, cross_entropy, cross_entropy_backward
from .dispatch import (
    array_module,
    current_gpu,
    get_backend,
    on_device_of,
    resolve_backend,
    set_backend,
    to_backend,
    to_host,
    unavailable_reason,
    use_backend,
    uses_gpu,
)
from .dropout import DropoutSaved, dropout, dropout_backward
from .dropout_layer_norm import DropoutLayerNormSaved, dropout_layer_norm, dropout_layer_norm_backward
from .embedding import EmbeddingSaved, embedding, embedding_backward
from .errors import BackendUnavailable
from .gated_activation import GatedActivationSaved, gated_activation, gated_activation_backward
from .layer_norm import LayerNormSaved, layer_norm, layer_norm_backward
from .linear import (
    LinearSaved,
    PreparedWeight,
    linear,
    linear_backward,
    linear_weight_gradient,
    prepare_weight,
    quantize_weight,
)
from .lstm import LSTMSaved, lstm, lstm_backward
from .maxsim import MaxsimSaved, maxsim, maxsim_backward
from .muon_update import muon_update
from .nearest_codes import Nearest, nearest_codes
from .pooling import PoolingSaved, pooling, pooling_backward
from .rms_norm import RMSNormSaved, rms_norm, rms_norm_backward
from .rotary import RotarySaved, rotary, rotary_backward, rotary_tables
from .settings import is_batch_invariant, set_batch_invariant
from .softmax import SoftmaxSaved, softmax, softmax_backward
from .threads import get_num_threads, set_num_threads

__all__ = [
    "ActivationSaved", "AffineSaved", "AttentionGradients", "AttentionSaved", "BackendUnavailable", "CrossEntropySaved",
    "DropoutLayerNormSaved", "DropoutSaved", "EmbeddingSaved", "GELUSaved", "GatedActivationSaved",
    "LSTMSaved", "LayerNormSaved", "LinearSaved", "MaxsimSaved", "Nearest", "PoolingSaved", "PreparedWeight",
    "RMSNormSaved", "RelativePositions", "RotarySaved", "SoftmaxSaved", "activation", "activation_backward",
    "adam_update", "affine", "affine_backward", "alibi_positions", "array_module", "attention", "attention_backward",
    "bucketed_distances", "cast", "clip_norm", "cross_entropy", "cross_entropy_backward", "current_gpu", "dropout",
    "dropout_backward", "dropout_layer_norm", "dropout_layer_norm_backward", "embedding", "embedding_backward",
    "gated_activation", "gated_activation_backward", "gelu", "gelu_backward", "get_backend", "get_num_threads",
    "is_batch_invariant", "joint_norm", "layer_norm", "layer_norm_backward", "linear", "linear_backward",
    "linear_weight_gradient", "lstm", "lstm_backward", "maxsim", "maxsim_backward", "muon_update", "nearest_codes",
    "on_device_of", "pooling", "pooling_backward", "prepare_weight", "quantize_weight", "resolve_backend", "rms_norm",
    "rms_norm_backward", "rotary", "rotary_backward", "rotary_tables", "set_backend", "set_batch_invariant",
    "set_num_threads", "softmax", "softmax_backward", "to_backend", "to_host", "unavailable_reason", "use_backend",
    "uses_gpu",
]  # fmt: skip
