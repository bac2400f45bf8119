"""Runs of each objective that were stopped and go on: the bits of runs that were not."""

import pytest

from bertcore import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForPreTraining, AutoModelForSpanBoundary
from bertcore.training.objectives import MaskedLM, NextSentence, PermutationLM, SpanBoundary, TranslationLM
from tests.tiny_bert import CONFIG, random_texts
from tests.tiny_families import tiny_config
from tests.training.tiny_runs import assert_resumes, objective_trainer

pytestmark = pytest.mark.usefixtures("on_numpy")

TEXTS = [f"the {text}" for text in random_texts(20)]
DOCUMENTS, PAIRS = [[text, "on an mat"] for text in TEXTS], list(zip(TEXTS, TEXTS[::-1], strict=True))
RUNS = {  # objective, the class of its model, a config, documents
    "masked words and pairs": (MaskedLM() + NextSentence(), AutoModelForPreTraining, CONFIG, DOCUMENTS),
    "permutations": (PermutationLM(), AutoModelForCausalLM, tiny_config("xlnet-base-cased"), DOCUMENTS),
    "span boundaries": (SpanBoundary(), AutoModelForSpanBoundary, CONFIG, DOCUMENTS),
    "translations": (TranslationLM(), AutoModelForMaskedLM, CONFIG, PAIRS),
}


@pytest.mark.parametrize("name", RUNS)
def test_weights_and_evaluations_are_the_same(tokenizer, tmp_path, name):
    objective, kind, config, documents = RUNS[name]
    examples = list(objective.examples(documents, tokenizer, max_length=20, seed=0))

    def trainer(folder, **settings):
        model = kind.from_config(config | dict.fromkeys(("hidden_dropout_prob", "dropout"), 0.1), seed=3)
        return objective_trainer(folder, model, objective, examples, tokenizer, settings=settings)

    whole, again = assert_resumes(trainer, tmp_path, 2)
    assert again.evaluate()["eval_loss"] == again.evaluate()["eval_loss"] == whole.evaluate()["eval_loss"]
