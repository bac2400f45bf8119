"""bertcore fill-mask: what the pipeline answers, as lines and as JSON."""

import json

import pytest

from bertcore import pipeline, use_backend
from bertcore.cli import main

TEXT = "[MASK] is the [MASK] of France."


def fill_mask(capsys, *arguments, code=0):
    assert main(["fill-mask", *map(str, arguments), "--backend", "numpy"]) == code
    captured = capsys.readouterr()
    return captured.err if code else captured.out


@pytest.fixture(scope="module")
def fill(masked_lm_folder):
    with use_backend("numpy"):
        return pipeline("fill-mask", masked_lm_folder)


@pytest.mark.usefixtures("on_numpy")
def test_lines_and_json(masked_lm_folder, fill, capsys):
    expected = fill(TEXT, top_k=3)
    assert json.loads(fill_mask(capsys, masked_lm_folder, "--text", TEXT, "--json", "--top-k", 3)) == expected
    blocks = fill_mask(capsys, masked_lm_folder, "--text", TEXT, "--top-k", 3).strip().split("\n\n")
    for number, (block, words) in enumerate(zip(blocks, expected, strict=True), 1):
        title, *lines = block.splitlines()
        assert title == f"mask {number}"
        assert [line.split() for line in lines] == [[word["token_str"], f"{word['score']:.4f}"] for word in words]
    lines = fill_mask(capsys, masked_lm_folder, "--text", "the [MASK] sat", "--top-k", 2).splitlines()
    assert [line.split()[0] for line in lines] == [word["token_str"] for word in fill("the [MASK] sat", top_k=2)]
    found = json.loads(fill_mask(capsys, masked_lm_folder, "--text", "the [MASK]", "--targets", "cat,mat", "--json"))
    assert found == fill("the [MASK]", targets=["cat", "mat"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *((text, "has no [MASK]: put [MASK]") for text in ("paris is the capital", "", "paris is the [mask]")),
        ("[MASK] " + "a " * 100, "has more than the 40 tokens that are read"),
    ],
)
def test_texts_without_masks_are_refused(masked_lm_folder, text, message, capsys):
    said = fill_mask(capsys, masked_lm_folder, "--text", text, code=1)
    assert message in said and said.count("\n") == 1


def test_a_tokenizer_without_a_mask(masked_lm_folder, monkeypatch, capsys):
    from bertcore.tokenization.tokenizer import Tokenizer

    monkeypatch.setattr(Tokenizer, "mask_token", property(lambda self: None, lambda self, value: None), raising=False)
    assert "tokenizer has no mask token" in fill_mask(capsys, masked_lm_folder, "--text", TEXT, code=1)
