"""Training data: files read as a stream, documents, labelled texts, questions, stored examples and batches."""

from bertcore.training.data.batches import Batches
from bertcore.training.data.files import Documents, MalformedRecord, Record, Records, split_sentences
from bertcore.training.data.labelled import LabelledTexts, LabelledWords, QueriedTexts, TextColumns, TextMentions
from bertcore.training.data.spans import (
    LabelledEntities,
    LabelledMentions,
    Questions,
    SpanCollator,
    answer_metrics,
    best_answers,
)
from bertcore.training.data.stored import StoredExamples, Subset, store_examples

__all__ = [
    "Batches", "Documents", "LabelledEntities", "LabelledMentions", "LabelledTexts", "LabelledWords", "MalformedRecord",
    "QueriedTexts", "Questions", "Record", "Records", "SpanCollator", "StoredExamples", "Subset", "TextColumns",
    "TextMentions", "answer_metrics", "best_answers", "split_sentences", "store_examples",
]  # fmt: skip
