"""Several classifiers as one."""

import numpy as np
import pytest

from bertcore import pipeline
from bertcore.tasks.calibration import TemperatureScaling
from bertcore.tasks.ensemble import Ensemble
from tests.refusals import refuses
from tests.tasks.pipelines.folders import LABELS, TEXTS, save_head

NAMES = list(LABELS.values())

pytestmark = pytest.mark.usefixtures("on_numpy")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = [tmp_path_factory.mktemp("member") for _ in range(3)]
    for seed, folder in enumerate(made):
        save_head(folder, "AutoModelForSequenceClassification", LABELS, seed=seed)
    return made


def table(folders, text):
    """(members, classes)."""
    rows = []
    for folder in folders:
        found = pipeline("text-classification", folder, truncation=True)(text, top_k=None)
        rows.append([{each["label"]: each["score"] for each in found}[name] for name in NAMES])
    return np.array(rows)


@pytest.mark.parametrize("weights", [None, [1, 2, 5]])
@pytest.mark.parametrize("vote", ["soft", "hard"])
def test_answers(folders, vote, weights):
    ensemble = Ensemble.from_pretrained(folders, vote=vote, weights=weights, truncation=True)
    share = np.full(3, 1 / 3) if weights is None else np.array(weights) / 8
    answers = ensemble(TEXTS)
    assert ensemble(TEXTS[0])["label"] == answers[0]["label"] and list(ensemble(iter(TEXTS))) == answers
    for text, answer in zip(TEXTS, answers, strict=True):
        rows = table(folders, text)
        mean = share @ rows
        own = np.array([NAMES[i] for i in rows.argmax(axis=1)])
        votes = np.array([share[own == name].sum() for name in NAMES])
        shares = mean if vote == "soft" else votes
        assert list(answer["scores"]) == NAMES
        np.testing.assert_allclose(list(answer["scores"].values()), shares, rtol=1e-4, atol=1e-9)
        assert answer["score"] == pytest.approx(shares.max(), rel=1e-4)
        assert answer["disagreement"] == pytest.approx(share[own != answer["label"]].sum(), abs=1e-9)
        kl = share @ (rows * np.log(rows / mean)).sum(axis=1)  # the same by its other definition
        assert answer["divergence"] == pytest.approx(kl, rel=1e-4)
    assert {answer["disagreement"] for answer in answers} - {0.0}


def test_invalid_ensembles(folders, tmp_path):
    members = [pipeline("text-classification", folder) for folder in folders]
    other = save_head(tmp_path, "AutoModelForSequenceClassification", {"0": "a", "1": "b"})
    for given, options, message in (
        (members[:1], {}, "members has 1, expected at least two"),
        (members, {"vote": "loud"}, "vote is 'loud'"),
        (members, {"weights": [1, 0, 1]}, "weights is"),
        ([members[0], pipeline("text-classification", other)], {}, r"members\[1\] has the classes \['a', 'b'\]"),
    ):
        refuses(ValueError, message, Ensemble, given, **options)
    refuses(TypeError, "members is NoneType, expected a list", Ensemble, None)
    refuses(TypeError, "top_k cannot be given to an ensemble", Ensemble(members), "a", top_k=1)


def test_a_calibrated_member_votes_with_its_own_probabilities(folders):
    scaling = TemperatureScaling()
    scaling.temperature = 5.0
    members = [pipeline("text-classification", folder, truncation=True) for folder in folders[:2]]
    calibrated = pipeline("text-classification", folders[0], truncation=True, calibration=scaling)
    (soft,) = calibrated([TEXTS[0]], top_k=None)
    (own,) = members[1]([TEXTS[0]], top_k=None)
    rows = [{each["label"]: each["score"] for each in row} for row in (soft, own)]
    answer = Ensemble([calibrated, members[1]])(TEXTS[0])
    for name in NAMES:
        assert answer["scores"][name] == pytest.approx((rows[0][name] + rows[1][name]) / 2)
    assert answer["score"] != pytest.approx(Ensemble(members)(TEXTS[0])["score"])
    refuses(TypeError, "calibration cannot be given to an ensemble", Ensemble(members), "a", calibration=scaling)


def test_wrong_inputs_are_named_at_once(folders):
    ensemble = Ensemble.from_pretrained(folders[:2])
    for wrong in (None, 5, b"a", np.array("a")):
        refuses(TypeError, r"inputs is .*, expected a string", ensemble, wrong)
    refuses(TypeError, r"inputs\[70\] is int", ensemble, ["a"] * 70 + [5])
    refuses(TypeError, "unexpected option 'topk'", ensemble, [], topk=1)
