"""Training data: files, read as a stream, documents, and batches."""

from bertcore.training.data.batches import Batches
from bertcore.training.data.documents import Documents, split_sentences
from bertcore.training.data.files import MalformedRecord, Record, Records
from bertcore.training.data.stored import StoredExamples, store_examples

__all__ = [
    "Batches",
    "Documents",
    "MalformedRecord",
    "Record",
    "Records",
    "StoredExamples",
    "split_sentences",
    "store_examples",
]
