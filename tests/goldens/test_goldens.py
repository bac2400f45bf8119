"""The goldens: small, and equal to the outputs of transformers. BERT's own outputs are tested in tests/models."""

import numpy as np
import pytest

from tests.goldens import FOLDERS


def test_total_size():
    total = sum(file.stat().st_size for folder in FOLDERS for file in folder.iterdir())
    assert len(FOLDERS) == 6 and total < 1_000_000


@pytest.mark.parity
@pytest.mark.parametrize("folder", [folder for folder in FOLDERS if folder.name != "old_names"], ids=lambda f: f.name)
def test_transformers_gives_the_same(folder):
    import transformers

    from tests.goldens.make_goldens import outputs

    model = transformers.BertForPreTraining.from_pretrained(folder, attn_implementation="eager").eval().double()
    truth = np.load(folder / "io.npz")
    inputs = {name: truth[name] for name in ("input_ids", "attention_mask", "token_type_ids", "labels")}
    found = outputs(model, inputs)
    assert found.keys() | inputs.keys() == set(truth.files)
    for name, array in found.items():
        np.testing.assert_allclose(array, truth[name], rtol=1e-6 if array.dtype == np.float32 else 1e-11, atol=1e-10)
