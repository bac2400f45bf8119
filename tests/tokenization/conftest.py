import pytest

from bertcore.tokenization import AutoTokenizer
from tests.demo import demo_folder  # noqa: F401  (a fixture)
from tests.tokenization.corpus import train_vocabulary, write_json
from tests.tokenization.family_folders import write_family


@pytest.fixture(scope="session")
def vocabulary_folder(tmp_path_factory):
    """An older checkpoint: a trained vocab.txt, and nothing else about the tokenizer."""
    folder = tmp_path_factory.mktemp("vocabulary")
    train_vocabulary(folder / "vocab.txt", lower_case=True)
    write_json(folder / "config.json", {"model_type": "bert"})
    return folder


@pytest.fixture(scope="session")
def tokenizer(vocabulary_folder):
    return AutoTokenizer.from_pretrained(vocabulary_folder)


@pytest.fixture
def roberta(tmp_path):
    """A folder with RoBERTa's older files."""
    write_family(tmp_path, "RobertaTokenizer")
    return tmp_path


@pytest.fixture
def albert(tmp_path):
    """A folder with ALBERT's older files."""
    write_family(tmp_path, "AlbertTokenizer")
    return tmp_path
