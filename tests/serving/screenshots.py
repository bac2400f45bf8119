"""Pictures of each tab of the page of `bertcore serve`, at 1280 and 400 px, light and dark: to be looked at.

    python -m tests.serving.screenshots OUT

The sentence encoder is the demonstration model. The others are made of its weights with random heads: their answers
mean nothing, but their texts are real ones.
"""

import contextlib
import json
import shutil
import sys
import tempfile
from itertools import product
from pathlib import Path

from bertcore.demo_model import demo_model_folder
from bertcore.models import auto
from tests.serving.browser import chromium, opened, run
from tests.serving.process import served
from tests.tiny_bert import write_json

TAGS = ["O", "B-PERSON", "I-PERSON", "B-PLACE", "I-PLACE", "B-WORK", "I-WORK"]
HEADS = {
    "reranker": ("AutoModelForSequenceClassification", ["relevance"]),
    "films": ("AutoModelForSequenceClassification", ["negative", "neutral", "positive", "mixed feelings"]),
    "entities": ("AutoModelForTokenClassification", TAGS),
    "masked": ("AutoModelForMaskedLM", None),
}
TABS = {  # the model of each tab's picture
    "similarity": "demo", "rank": "demo", "attention": "demo", "request": "demo", "classify": "films",
    "entities": "entities", "fill": "masked", "sparse": "sparse",
}  # fmt: skip


def save_models(root):
    """Write folders of models with random heads; return them."""
    demo = demo_model_folder()
    files = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
    for name, (kind, labels) in HEADS.items():
        options = {"num_labels": len(labels)} if labels else {}
        getattr(auto, kind).from_pretrained(demo, **options).save_pretrained(root / name)
        if labels:
            config = json.loads((root / name / "config.json").read_text())
            names = {"id2label": dict(enumerate(labels)), "label2id": {label: i for i, label in enumerate(labels)}}
            write_json(root / name / "config.json", config | names)
        for file in files:
            shutil.copyfile(demo / file, root / name / file)
    sparse = shutil.copytree(root / "masked", root / "sparse")
    kinds = {"": "models.MLMTransformer", "1_SpladePooling": "models.SpladePooling"}
    entries = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.sparse_encoder.{kind}"}
        for index, (path, kind) in enumerate(kinds.items())
    ]
    write_json(sparse / "modules.json", entries)
    write_json(sparse / "1_SpladePooling" / "config.json", {})
    return [root / name for name in (*HEADS, "sparse")]


def main(out):
    """Write OUT/TAB-WIDTH-SCHEME.png."""
    out.mkdir(parents=True, exist_ok=True)
    looks = [(width, scheme) for scheme in ("light", "dark") for width in (1280, 400)]
    with contextlib.ExitStack() as stack:
        models = save_models(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        _, port = stack.enter_context(served("demo", *models, backend="auto"))
        browser = stack.enter_context(chromium())
        for (width, scheme), (tab, model) in product(looks, TABS.items()):
            with opened(browser, port, width=width, color_scheme=scheme) as page:
                page.wait_for_selector("#main:not([hidden])")
                names = page.eval_on_selector_all("#model option", "all => all.map(each => each.text)")
                page.select_option("#model", next(name for name in names if name.startswith(f"{model} ")))
                page.click(f"#tab-{tab}")
                status = run(page, tab)
                if tab in ("rank", "request"):
                    page.click(f"#{tab} summary")
                page.screenshot(path=out / f"{tab}-{width}-{scheme}.png", full_page=True)
                print(tab, width, scheme, status, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
