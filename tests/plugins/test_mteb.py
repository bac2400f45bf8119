"""mteb's tasks with our embeddings, on tasks made in memory, beside sentence-transformers' figures."""

import numpy as np
import pytest

from tests.lazy import lazy
from tests.plugins.texts import TEXTS, close

mteb, mock_tasks, plugin = lazy("mteb"), lazy("mteb.mocks.mock_tasks"), lazy("bertcore.plugins.mteb")
pytestmark = pytest.mark.parity
TASKS = ["MockRetrievalTask", "MockSTSTask", "MockRerankingTask", "MockClassificationTask"]
TASKS += ["MockSummarizationTask", "MockPairClassificationTask", "MockBitextMiningTask"]


def main_scores(model, task):
    found = mteb.evaluate(model, tasks=[getattr(mock_tasks, task)()], cache=None, show_progress_bar=False)
    return [entry["main_score"] for result in found for entries in result.scores.values() for entry in entries]


@pytest.mark.parametrize("task", TASKS)
def test_scores_are_those_of_sentence_transformers(folder, task):
    from sentence_transformers import SentenceTransformer

    expected = main_scores(SentenceTransformer(str(folder), device="cpu"), task)
    assert main_scores(plugin.MTEBEncoder(folder), task) == pytest.approx(expected, abs=1e-4)


def test_the_interface(folder, encoder):
    made = plugin.MTEBEncoder(folder)
    assert isinstance(made, mteb.EncoderProtocol)
    about = made.mteb_model_meta
    assert about.name == "bertcore/encoder" and about.embed_dim == encoder.embedding_dimension
    rows = encoder.encode(TEXTS)
    close(made.similarity(rows, rows), encoder.similarity(rows, rows))
    close(made.similarity_pairwise(rows, rows), np.diag(encoder.similarity(rows, rows)))


@pytest.mark.parametrize("prompts, prompt", [
    ({}, "paris is "),
    ({"query": "q: ", "Retrieval": "r: "}, "r: "),
    ({"Retrieval-query": "both: ", "Retrieval": "r: "}, "both: "),
    ({"MockRetrievalTask": "own: ", "Retrieval-query": "both: "}, "own: "),
    ({"MockRetrievalTask-query": "most: ", "MockRetrievalTask": "own: "}, "most: "),
])  # fmt: skip
def test_prompts_in_the_order_of_mteb(folder, encoder, prompts, prompt):
    made = plugin.MTEBEncoder(folder, prompts={"query": "paris is ", **prompts})
    task = mock_tasks.MockRetrievalTask().metadata
    given = {"task_metadata": task, "hf_split": "test", "hf_subset": "default"}
    batches = [{"text": TEXTS[:2]}, {"text": TEXTS[2:]}]
    found = made.encode(batches, prompt_type=mteb.types.PromptType.query, **given)
    close(found, encoder.encode(TEXTS, prompt=prompt))
