"""A string is not a list of strings, whatever the argument: it would be read letter by letter."""

import re

import pytest

from bertcore import SentenceEncoder
from bertcore.serving.models import ServerSettings
from bertcore.tasks.encoder_pool import EncoderPool
from bertcore.training.metrics import answer_scores, span_f1
from bertcore.training.objectives.objective import CustomLoss
from tests.refusals import refuses


@pytest.mark.parametrize(("name", "call"), [
    ("allowed_hosts", lambda text: ServerSettings(allowed_hosts=text)),
    ("cors_origins", lambda text: ServerSettings(cors_origins=text)),
    ("target_devices", lambda text: EncoderPool(SentenceEncoder, {}, text)),
    ("answers", lambda text: answer_scores(text, [["a"]])),
    ("references[0]", lambda text: answer_scores(["a"], [text])),
    ("names", span_f1),
    ("targets", lambda text: CustomLoss(lambda out, **targets: out, text)),
])  # fmt: skip
def test_a_string_is_not_a_list_of_strings(name, call):
    refuses(TypeError, f"^{re.escape(name)} is 'O', expected a list of strings", call, "O")
