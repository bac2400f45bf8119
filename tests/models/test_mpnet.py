"""MPNet: buckets of relative position."""

import numpy as np
import pytest

from bertcore import kernels


@pytest.mark.parity
def test_buckets_are_those_of_transformers():
    import torch
    from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

    distances = np.arange(-128, 129)
    expected = MPNetEncoder.relative_position_bucket(torch.from_numpy(-distances))
    np.testing.assert_array_equal(kernels.bucketed_distances(), expected)
