"""The command `explain`: a classifier's answer, attributed to the tokens of a text."""

import json
from typing import Annotated, Any

from bertcore.arguments import printable
from bertcore.cli.inputs import PairsCommand, aligned, model_folder
from bertcore.cli.options import File, Positive

STEPS = 50
WIDEST = 24  # characters of a bar


class Explain(PairsCommand):
    """Attribute the class that a classifier gives a text to the tokens of the text.

      gradients  the amount that a token adds to the score of a class, by integrated gradients (Sundararajan et al.
                 2017): the amounts sum to what the text adds to the class's score over a text of padding alone, up to
                 the error that is printed, which shrinks with more --steps
      rollout    the share of a token in the state that is classified, through the attention of all layers (Abnar and
                 Zuidema 2020); it does not depend on a class, and the shares sum to 1

    The model computes in float32, whatever the dtype of its file.

    Examples:
        bertcore explain sentiment/ --text "What a film."
        bertcore explain mnli/ --text "A cat sleeps." --text-pair "An animal is awake." --label contradiction
        bertcore explain sentiment/ reviews.txt --method rollout --json

    Attributes:
        model: folder or id of a model with a classifier of texts.
        method: method of attribution.
        label: the class, for gradients (default: the predicted class).
        steps: steps of the integral, for gradients (default: 50).
        max_length: tokens that are read (default: the model's).
        truncation: treatment of a longer text.
        json: print a JSON object for each text.
    """

    only_for = ("label method gradients", "steps method gradients")

    model: File
    method: Annotated[str, ("gradients", "rollout")] = "gradients"
    label: str | None = None
    steps: Positive | None = None
    max_length: Positive | None = None
    truncation: Annotated[str, ("error", "cut")] = "error"
    json: bool = False

    def run(self) -> None:
        from bertcore.tasks.pipelines import pipeline

        folder = model_folder(self.model)
        options = {"max_length": self.max_length, "truncation": True if self.truncation == "cut" else "error"}
        with self.inputs() as texts, self.chosen_backend():
            classifier = pipeline("text-classification", folder, dtype="float32", **options)
            for number, text in enumerate(texts):
                found = self.explained(classifier, text)
                lines = json.dumps(found, ensure_ascii=False) if self.json else explanation(found)
                print(lines if self.json or not number else f"\n{lines}")

    def explained(self, classifier: Any, text: Any) -> dict[str, Any]:
        from bertcore.tasks.attribution import attention_rollout, integrated_gradients

        classes = classifier(text, top_k=None)
        if self.method == "rollout":
            found = attention_rollout(classifier, text)
        else:
            found = integrated_gradients(classifier, text, label=self.label, steps=self.steps or STEPS)
        rows = zip(found.tokens, found.offsets, found.scores.tolist(), strict=True)
        tokens = [{"token": token, "start": start, "end": end, "score": score} for token, (start, end), score in rows]
        about = {"label": found.label, "gap": found.gap} if found.label is not None else {}
        return {"method": self.method, "classes": classes, **about, "tokens": tokens}


def explanation(found: dict[str, Any]) -> str:
    classes = "  ".join(f"{printable(each['label'])} {each['score']:.4f}" for each in found["classes"])
    scores = [each["score"] for each in found["tokens"]]
    widest = max(map(abs, scores)) or 1.0
    bars = [("+" if score > 0 else "-") * round(WIDEST * abs(score) / widest) for score in scores]
    rows = [[each["token"], f"{each['score']:.4f}", bar] for each, bar in zip(found["tokens"], bars, strict=True)]
    parts = [classes, aligned(rows, ["token", "score", ""], right=[False, True, False])]
    if "label" in found:
        total, label = f"together {sum(scores):.4f}", printable(found["label"])
        parts.append(f"{total}, what the text adds to the score of {label}; error {found['gap']:.4f}")
    return "\n\n".join(parts)
