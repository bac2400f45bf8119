"""Masked words and entities: examples of texts with mentions, batches, the loss, and a run that goes on."""

import numpy as np
import pytest

from bertcore import AutoModelForMaskedLM, AutoTokenizer
from bertcore.training import Masking, metrics
from bertcore.training.collators import IGNORED
from bertcore.training.objectives import EntityMaskedLM
from tests.refusals import refuses
from tests.slopes import assert_slope
from tests.tiny_bert import save_tiny_bert
from tests.tiny_families import drawn_anew, tiny_config
from tests.tokenization.corpus import write_json
from tests.tokenization.family_folders import write_family
from tests.training.objectives.students import mean_cross_entropy
from tests.training.tiny_runs import assert_resumes, objective_trainer

pytestmark = pytest.mark.usefixtures("on_numpy")

ENTITIES = {"[PAD]": 0, "[UNK]": 1, "[MASK]": 2, "[MASK2]": 3} | {name: 4 + i for i, name in enumerate("ABCDEFGHIJ")}
TEXT = "the value the values"  # the, Ġvalue, Ġthe, Ġvalue, s
RECORDS = [
    {"text": TEXT, "entity_spans": [(0, 3), (14, 20), (4, 4), (4, 13)], "entities": ["A", "B", "C", "nowhere"]},
    {"text": "", "entity_spans": [], "entities": []},
    {"text": "the the", "entity_spans": [], "entities": []},
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("luke")
    write_family(folder, "LukeTokenizer")
    write_json(folder / "entity_vocab.json", ENTITIES)
    return AutoTokenizer.from_pretrained(folder)


def model(dtype="float64", **changes):
    return AutoModelForMaskedLM.from_config(tiny_config("luke-base") | changes, dtype=dtype)


def random_examples(counts):
    """Texts of as many entities each, of mentions of up to 3 tokens."""
    rng, made = np.random.default_rng(0), []
    for count in counts:
        places = [list(range(start, start + length)) for start, length in rng.integers(1, 4, (count, 2)).tolist()]
        entities = rng.integers(4, 14, count).tolist()
        ids = [0, *rng.integers(6, 20, rng.integers(7, 12)).tolist(), 2]
        made.append({"input_ids": ids, "entity_ids": entities, "entity_position_ids": places})
    return made


def test_examples_are_pieces_with_the_entities_within_them(tokenizer):
    whole = tokenizer(TEXT)["input_ids"]
    made = list(EntityMaskedLM().examples(RECORDS, tokenizer, max_length=30))
    assert [row["input_ids"] for row in made] == [whole, tokenizer("the the")["input_ids"]]
    assert made[0]["entity_ids"] == [4, 5, 1] and made[1]["entity_ids"] == []  # no token is no mention
    assert made[0]["entity_position_ids"] == [[1], [4, 5], [2, 3]]
    expected = tokenizer(TEXT, entity_spans=RECORDS[0]["entity_spans"], entities=RECORDS[0]["entities"])
    rows = [[place for place in row if place >= 0] for row in expected["entity_position_ids"]]
    assert made[0]["entity_position_ids"] == [row for row in rows if row]
    made = list(EntityMaskedLM().examples(RECORDS[:1], tokenizer, max_length=5))
    assert [row["input_ids"] for row in made] == [[*whole[:4], whole[-1]], [whole[0], *whole[4:]]]
    assert [row["entity_ids"] for row in made] == [[4, 1], [5]]
    assert [row["entity_position_ids"] for row in made] == [[[1], [2, 3]], [[1, 2]]]


def test_a_share_of_known_entities_is_masked_whole(tokenizer):
    examples, objective = random_examples((20, 1, 0, 7)), EntityMaskedLM(Masking(0.4), 0.3)
    examples[3]["entity_ids"][:6] = [1, 2, 3, 1, 1, 2]  # unknown or masked already: not for prediction
    batch = objective.collator(tokenizer, seed=3)(examples)
    ids, labels = batch["entity_ids"], batch["entity_labels"]
    assert (labels != IGNORED).sum(axis=1).tolist() == [6, 1, 0, 1]
    assert batch["entity_attention_mask"].sum(axis=1).tolist() == [20, 1, 0, 7]
    for row, example in enumerate(examples):
        count, chosen = len(example["entity_ids"]), labels[row] != IGNORED
        assert (ids[row][chosen] == 2).all() and not ids[row, count:].any()
        assert np.where(chosen, labels[row], ids[row])[:count].tolist() == example["entity_ids"]
        for place, columns in enumerate(batch["entity_position_ids"][row]):
            expected = example["entity_position_ids"][place] if place < count else []
            assert [column for column in columns.tolist() if column >= 0] == expected
    words = objective.collator(tokenizer, seed=3)
    assert objective.weight(batch) == (batch["labels"] != IGNORED).sum() > 0
    np.testing.assert_array_equal(words(examples)["entity_labels"], labels)
    assert (words(examples)["entity_labels"] != labels).any()  # dynamic


def test_the_loss_is_the_sum_of_both_means(tokenizer):
    luke, objective = drawn_anew(model()), EntityMaskedLM(entity_share=0.5)
    batch = objective.collator(tokenizer, seed=1)(random_examples((4, 0, 9, 1)))
    out, grads = objective.value_and_grad(luke, batch)
    inputs = {name: array for name, array in batch.items() if "labels" not in name}
    scored = luke(**inputs)
    losses = [mean_cross_entropy(scored.logits, batch["labels"])]
    losses.append(mean_cross_entropy(scored.entity_logits, batch["entity_labels"]))
    np.testing.assert_allclose([out.loss, out.mlm_loss, out.mep_loss], [sum(losses), *losses], rtol=1e-12)
    assert grads["luke.entity_embeddings.entity_embeddings.weight"].any()


def test_the_sampled_loss_is_importance_sampling(tokenizer):
    """Beside the definition, for a sample with some of the labels; and its gradients beside differences."""
    luke = drawn_anew(model(entity_vocab_size=len(ENTITIES)))
    objective = EntityMaskedLM(entity_share=0.5, entity_samples=5)
    batch = objective.collator(tokenizer, seed=1)(random_examples((4, 0, 9, 1)))
    found, grads = objective.value_and_grad(luke, batch)
    inputs = {name: array for name, array in batch.items() if "labels" not in name and name != "entity_sample"}
    kept = batch["entity_labels"] != IGNORED
    logits, labels, sample = luke(**inputs).entity_logits[kept], batch["entity_labels"][kept], batch["entity_sample"]
    assert len(set(sample)) == 5 and np.isin(labels, sample).any() and not np.isin(labels, sample).all()
    losses = []
    for row, label in zip(np.exp(logits), labels, strict=True):
        others = row[sample[sample != label]].sum() * len(ENTITIES) / 5
        losses.append(np.log(row[label] + others) - np.log(row[label]))
    np.testing.assert_allclose(found.mep_loss, np.mean(losses), rtol=1e-10)
    for names in (["entity_predictions.bias"], None):
        assert_slope(luke, grads, lambda: objective.loss(luke, batch).loss, names)


@pytest.mark.parametrize("counts, share", [((0, 0), 0.5), ((3, 2), 0.0)])
def test_without_a_masked_entity_the_loss_is_that_of_the_words(tokenizer, counts, share):
    luke, objective = model(), EntityMaskedLM(entity_share=share)
    batch = objective.collator(tokenizer)(random_examples(counts))
    out, grads = objective.value_and_grad(luke, batch)
    assert np.isfinite(out.loss) and out.loss == out.mlm_loss
    assert not grads["entity_predictions.bias"].any()


def test_what_is_refused(tokenizer, tmp_path):
    refuses(ValueError, "entity_share is 2, expected a number from 0 to 1", EntityMaskedLM, entity_share=2)
    refuses(ValueError, "entity_samples is 0", EntityMaskedLM, entity_samples=0)
    refuses(ValueError, "expected 0 with entity_samples", EntityMaskedLM, entity_samples=3, label_smoothing=0.1)
    with pytest.raises(ValueError, match="entity_samples is 15, expected at most the 14 entities"):
        EntityMaskedLM(entity_samples=15).collator(tokenizer)
    with pytest.raises(ValueError, match=r"documents\[0\] has no entities, it has text, entity_spans"):
        list(EntityMaskedLM().examples([{"text": "the", "entity_spans": []}], tokenizer, max_length=9))
    with pytest.raises(TypeError, match=r"documents\[0\] is list, expected a mapping"):
        list(EntityMaskedLM().examples([["the"]], tokenizer, max_length=9))
    with pytest.raises(ValueError, match="tokenizer has no entity_vocab"):
        EntityMaskedLM().collator(AutoTokenizer.from_pretrained(save_tiny_bert(tmp_path)))
    with pytest.raises(ValueError, match=r"examples\[0\] has no entity_ids"):
        EntityMaskedLM().collator(tokenizer)([{"input_ids": [0, 7, 2]}])


def test_a_run_that_goes_on_has_the_bits_of_one_that_was_not_stopped(tokenizer, tmp_path):
    examples = random_examples((3, 0, 1, 8, 2, 5, 0, 1, 4))

    def trainer(folder, share=0.15, **settings):
        measure = {"compute_metrics": metrics.masked_accuracy, "preprocess_logits_for_metrics": metrics.predicted_words}
        objective, luke = EntityMaskedLM(entity_share=share), model("float32")
        return objective_trainer(folder, luke, objective, examples, tokenizer, settings=settings, **measure)

    _, again = assert_resumes(trainer, tmp_path, 2)
    assert 0 <= again.evaluate()["eval_masked_accuracy"] <= 1
    with pytest.raises(ValueError, match=r"masking is .*'entity_share': 0\.3.* it was .*'entity_share': 0\.15"):
        trainer(tmp_path / "part", share=0.3).train(resume_from_checkpoint=True)
