"""Training data: files, read as a stream, and batches."""

from bertcore.training.data.batches import Batches
from bertcore.training.data.files import MalformedRecord, Records

__all__ = ["Batches", "MalformedRecord", "Records"]
