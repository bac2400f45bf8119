"""Files that torch.save itself wrote, against torch.load."""

import zipfile

import numpy as np
import pytest

from bertcore.checkpoint import CheckpointError
from bertcore.checkpoint.pickle_file import PickleFile
from tests.refusals import refuses

pytestmark = pytest.mark.parity

FORMATS = {"zip": {}, "stream": {"_use_new_zipfile_serialization": False}}
PROTOCOLS = (2, 3, 4, 5)


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.fixture(params=FORMATS.values(), ids=FORMATS)
def save(request, torch, tmp_path):
    """Save a value in each format and open it."""

    def save(value, **options):
        torch.save(value, tmp_path / "pytorch_model.bin", **request.param, **options)
        return PickleFile(tmp_path / "pytorch_model.bin")

    return save


def numbers(torch, tensor):
    """Convert a tensor to NumPy, bfloat16 to float32."""
    tensor = tensor.detach()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def check(torch, file, tensors):
    assert list(file.info) == list(tensors)
    for name, tensor in tensors.items():
        found, expected = file.read(name), numbers(torch, tensor)
        assert found.shape == expected.shape == file.info[name].shape and found.flags.aligned
        assert found.dtype == expected.dtype or tensor.dtype == torch.bfloat16
        np.testing.assert_array_equal(found.astype(expected.dtype), expected)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_dtype(torch, save, protocol):
    names = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]
    values = torch.arange(39).reshape(3, 13)
    tensors = {name: values.to(getattr(torch, name)) for name in [*names, "uint16", "uint32", "uint64"]}
    check(torch, save(tensors, pickle_protocol=protocol), tensors)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_views_and_shared_storages(torch, save, protocol):
    base = torch.randn(7, 39)
    tensors = {
        "base": base, "transposed": base.T, "slice": base[1:5, 3:30:4], "row": base[6], "one": base[3, 3],
        "permuted": torch.randn(2, 3, 5).permute(2, 0, 1), "expanded": torch.arange(11).expand(1, -1),
        "empty": torch.zeros(0, 39), "scalar": torch.tensor(2.5), "parameter": torch.nn.Parameter(base[:2]),
        "tied": base,
    }  # fmt: skip
    file = save(tensors, pickle_protocol=protocol)
    check(torch, file, tensors)


def test_state_dict_of_a_module(torch, save):
    module = torch.nn.Sequential(torch.nn.Embedding(7, 3), torch.nn.LayerNorm(3), torch.nn.BatchNorm1d(3))
    module.half()
    file = save(module.state_dict())  # an OrderedDict with _metadata
    check(torch, file, module.state_dict())


def test_parameter_with_attributes(torch, save):
    parameter = torch.nn.Parameter(torch.randn(5))
    parameter.note = "kept by torch alone"
    check(torch, save({"w": parameter}), {"w": parameter})


def test_refused(torch, save):
    refused = {
        "a module": torch.nn.Linear(2, 2),
        "complex numbers": {"w": torch.zeros(2, dtype=torch.complex64)},
        "sparse": {"w": torch.eye(3).to_sparse()},
        "quantised": {"w": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)},
        "more than a state dict": {"epoch": 3, "model": {"w": torch.ones(2)}},
        "expanded beyond its storage": {"w": torch.ones(1).expand(9)},
    }
    for name, value in refused.items():
        with pytest.raises(CheckpointError, match=r"pytorch_model\.bin is not a readable file of tensors"):
            save(value)
            pytest.fail(name)


def test_script(torch, tmp_path):
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), tmp_path / "pytorch_model.bin")
    refuses(CheckpointError, "TorchScript program", PickleFile, tmp_path / "pytorch_model.bin")


def test_big_endian_archive(torch, tmp_path):
    """An archive as torch.save writes it on a big-endian machine; torch.load reads the same."""
    file = tmp_path / "pytorch_model.bin"
    values = torch.randn(39)
    torch.save({"w": values}, file)
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    changed = {"pytorch_model/byteorder": b"big", "pytorch_model/data/0": values.numpy().astype(">f4").tobytes()}
    assert changed.keys() <= members.keys()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in (members | changed).items():
            archive.writestr(name, content)
    np.testing.assert_array_equal(torch.load(file)["w"].numpy(), values.numpy())
    np.testing.assert_array_equal(PickleFile(file).read("w"), values.numpy())
