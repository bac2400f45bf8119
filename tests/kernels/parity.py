"""Outputs and gradients of PyTorch functions, as NumPy arrays, in float64."""

import numpy as np
import pytest


def torch_gradients(function, grad_output, *arrays):
    """(output, gradient of each array) of sum(grad_output * function(*arrays)); None for None."""
    torch = pytest.importorskip("torch")
    tensors = [None if array is None else torch.tensor(array, dtype=torch.float64) for array in arrays]
    for tensor in tensors:
        if tensor is not None:
            tensor.requires_grad_(True)
    output = function(*tensors)
    wanted = [tensor for tensor in tensors if tensor is not None]
    gradients = iter(torch.autograd.grad(output, wanted, torch.tensor(np.asarray(grad_output), dtype=torch.float64)))
    return output.detach().numpy(), *(None if tensor is None else next(gradients).numpy() for tensor in tensors)
