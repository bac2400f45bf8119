"""Errors are one line: the argument, what came, what was expected. Exit code 2 for usage, 1 for failures."""

import json
import re
import shlex
import sys

import pytest

from bertcore.cli import main

FINETUNE = "finetune a.jsonl --model lm --out out --task"
DISTILL = "distill a.jsonl --teacher classifier --task sequence --out out"
PRETRAIN = "pretrain texts.txt --model lm --out out"
USAGE = {  # command line: the error
    "embroider": "No such command 'embroider'.",
    "embd": "No such command 'embd'. Did you mean 'embed'?",
    "embed": "MODEL is missing, expected folder of a model",
    "embed encoder --tuncation cut": "No such option '--tuncation'. Did you mean '--truncation'?",
    "embed encoder texts.txt b": "Got unexpected extra argument (b)",
    "embed encoder --format csv": "--format is 'csv', expected one of npy, jsonl",
    f"embed encoder --batch-tokens {'9' * 120}x": f"--batch-tokens is '{'9' * 99}, expected an integer from 1 up",
    "embed encoder --batch-tokens 0": "--batch-tokens is '0', expected an integer from 1 up",
    "embed encoder texts.txt --text a": "FILE is 'texts.txt' and --text is given, too; expected one of them",
    "embed encoder texts.txt -o out.parquet": "--output is out.parquet, expected a name that ends in .npy or .jsonl",
    "embed encoder texts.txt --format jsonl -o texts.txt": "the output is texts.txt, which is an input, too",
    "classify classifier texts.txt -o ./texts.txt": "the output is ./texts.txt, which is an input, too",
    "embed encoder texts.txt --column body": "--column is given without --ray",
    "embed encoder texts.txt --part-rows 3": "--part-rows is given without --ray",
    "embed encoder texts.txt --ray 2": "--ray is given without --output, expected a folder",
    "embed encoder --ray 2 -o out": "--ray is given without FILE, expected a file or a folder",
    "demo --backend tpu": "--backend is 'tpu', expected one of auto, numpy, numba, cupy",
    "fill-mask lm --text a --top-k -1": "--top-k is '-1', expected an integer from 1 up",
    "classify classifier --text a --vote hard": "--vote is given without --ensemble",
    "classify classifier --text a --template x": "--template is given without --labels",
    "classify classifier --text a --ensemble b --top-k 2": "--ensemble and --top-k are both given, expected one",
    "classify classifier --text a --ensemble b --calibration c": "--ensemble and --calibration are both given",
    "classify classifier --text a --labels a,b --ensemble b": "--labels and --ensemble are both given",
    "classify classifier --text a --labels a,b --calibration c": "--labels and --calibration are both given",
    "classify classifier --text a --text-pair b --text-pair c": "--text-pair is given 2 times, expected once for each",
    "explain classifier --text a --method rollout --label b": "--label is for --method gradients, not for rollout",
    "explain classifier --text a --method rollout --steps 3": "--steps is for --method gradients, not for rollout",
    "generate lm --text a --greedy --beams 2": "--greedy and --beams are both given, expected one of them",
    "calibrate classifier a.jsonl --out -": "--out is -, expected the name of a file",
    "calibrate classifier - --out out": "- is standard input, which can be read once",
    "search encoder texts.txt": "QUERY and --queries are both missing, expected one",
    "search encoder texts.txt a --queries -": "QUERY and --queries are both given, expected one",
    "search encoder - --queries -": "CORPUS and --queries are both standard input, expected a file for one of them",
    "search encoder texts.txt -": "QUERY is '-', expected a text",
    "search encoder --text a -": "QUERY is '-', expected a text",
    "rerank encoder - texts.txt": "QUERY is '-', expected a text",
    "answer encoder -": "QUESTION is '-', expected a text",
    "evaluate encoder --queries - --corpus - --qrels a": "--corpus and --queries are both standard input",
    "pretrain - - --model lm --out out": "CORPUS and CORPUS are both standard input",
    "serve encoder --port x": "--port is 'x', expected a port, 0 to 65535",
    "serve encoder --port 65536": "--port is '65536', expected a port, 0 to 65535",
    "quantize encoder out --calibrate texts.txt --text a": "--calibrate and --text are both given, expected one",
    "quantize encoder out --dtype bfloat16 --text a": "--dtype is bfloat16, expected int8 beside sample texts",
    "compare --training": "--training is given without NAMES",
    "compare --measure": "--measure is given without NAMES",
    "compare mini-bert --training --measure": "--training and --measure are both given, expected one of them",
    "compare mini-bert --csv --json": "--csv and --json are both given, expected one of them",
    "compare mini-bert --log": "--log is given without --plot",
    "compare mini-bert --batch 4": "--batch is given without --training or --measure",
    "compare mini-bert --plot family.pdf": "--plot is family.pdf, expected a file named *.png or *.svg",
    "plot": "FIGURE is missing, expected one of attention, components, masking",
    "plot curves log.jsonl --layer 2 -o a.png": "--layer is for FIGURE attention, components, not for curves",
    "plot masking lm --text a --head 2 -o a.png": "--head is for FIGURE attention, components, not for masking",
    "plot curves log.jsonl --no-special-tokens -o a.png": "--special-tokens is for FIGURE attention, comp",
    "plot embeddings lm a.txt --method lda -o a.png": "--method is 'lda', expected one of pca, umap, tsne",
    "plot curves log.jsonl b -o a.png": "curves has 2 inputs, expected FILE",
    "plot masking --text a -o a.png": "masking has 0 inputs, expected MODEL and FILE or --text",
    "plot masking lm texts.txt --text a -o a.png": "FILE is 'texts.txt' and --text is given, too",
    "plot temperature lm --text a --temperatures 1,x -o a.png": "--temperatures is '1,x', expected numbers above 0",
    "plot curves log.jsonl -o out.pdf": "--output is out.pdf, expected a file named *.png or *.svg",
    "finetune a.jsonl --model lm --out out": "--task is missing, expected one of sequence, token, qa, entity-class",
    "finetune a.jsonl --task pair --out out": "--model is missing, expected folder of a model",
    "finetune --model lm --task pair --out out": "DATA is missing, expected files or folders of labelled data",
    "distill a.jsonl --teacher lm --layers 1 --out out": "--task is missing, expected one of ",
    f"{FINETUNE} vision": "--task is 'vision', expected one of sequence, token, qa, entity-class",
    "finetune - --model lm --out out --task sequence": "- is standard input, which can be read once",
    f"{FINETUNE} qa --text x": "--text is for --task sequence, token, .*, not for qa",
    f"{FINETUNE} token --text-pair x": "--text-pair is for --task sequence, .*, not for token",
    f"{FINETUNE} relation-extraction --max-span-width 3": "--max-span-width is for --task span-ner, not for relation-",
    f"{FINETUNE} span-ner --negative-label x": "--negative-label is for --task entity-classification, relation-",
    f"{FINETUNE} token --label-kind classes": "--label-kind is for --task sequence, not for token",
    f"{FINETUNE} similarity --label-kind numbers": "--label-kind is for --task sequence",
    f"{FINETUNE} pair --lora-targets query": "--lora-targets is given without --lora",
    f"{FINETUNE} sequence --optim adagrad": "--optim is 'adagrad', expected",
    DISTILL: "--student and --layers are both missing, expected one of them",
    f"{DISTILL} --student a --layers 1": "--student and --layers are both given, expected one of them",
    f"{DISTILL} --layers 0": "--layers is '0', expected an integer from 1 up",
    f"{DISTILL} --layers 1 --terms hard": "--terms is 'hard', expected NAME or NAME=WEIGHT with one of soft, cosine",
    f"{DISTILL} --layers 1 --terms soft=x": "--terms is 'soft=x', expected NAME or NAME=WEIGHT",
    f"{DISTILL} --layers 1 --terms soft soft=2": "--terms has soft twice",
    f"{DISTILL} --layers 1 --take a": "--take is 'a', expected numbers of layers such as 0,2,4, or none",
    f"{DISTILL} --layers 1 --terms cosine --temperature 2": "--temperature is for the term soft",
    f"{DISTILL} --layers 1 --labelled-only": "--labelled-only is for --task mlm, not for sequence",
    f"{DISTILL} --layers 1 --task mlm --eval a": "--eval is for --task sequence, token, not for mlm",
    f"{DISTILL} --layers 1 --task mlm --label-kind classes": "--label-kind is for --task sequence, not for mlm",
    f"{PRETRAIN} --lr 0": "--lr is 0.0, expected a number above 0",
    f"{PRETRAIN} --lr nan": "--lr is nan, expected a finite number",
    f"{PRETRAIN} --max-seconds -1": "--max-seconds is -1.0, expected",
    f"{PRETRAIN} --warmup 1.5": "--warmup is 1.5, expected a number of steps, or a share of the run below 1",
    f"{PRETRAIN} --seed -1": "--seed is -1, expected",
    f"{PRETRAIN} --batch 0.5": "--batch is '0.5', expected an integer",
    f"{PRETRAIN} --learning-rate x": "--learning-rate is 'x', expected a number",
    f"{PRETRAIN} --mask-share 0": "--mask-share is 0, expected more",
    f"{PRETRAIN} --mask-share 1": "--mask-share is '1', expected a number from 0 to below 1",
    f"{PRETRAIN} --out ''": "--out is empty, expected a new or empty folder",
    f"{PRETRAIN} --objective clm --mask word": "--mask is for --objective mlm, .*, not for clm",
    f"{PRETRAIN} --objective clm --mask-share 0.3": "--mask-share is for --objective mlm",
    f"{PRETRAIN} --objective clm --embeddings tied": "--embeddings is for --objective rtd, not for clm",
    f"{PRETRAIN} --pair-column de": "--pair-column is for --objective tlm",
    f"{PRETRAIN} --objective tlm --column de --pair-column de": "--column and --pair-column are both de",
    f"{PRETRAIN} --language de": "--language is for --objective mlm.nsp, mlm.sop",
    f"{PRETRAIN} --generator-size 0.5": "--generator-size is for --objective rtd, not for mlm",
    f"{PRETRAIN} --objective rtd --lora 2": "--lora is given with --objective rtd",
    f"{PRETRAIN} --lora-targets query value": "--lora-targets is given without --lora",
}
NEW = f"{PRETRAIN} --model bert.json"
FAILURES = {
    "embed no/such/folder texts.txt": "no/such/folder does not exist, expected the folder of a model",
    "embed encoder empty": "FILE is 'empty', a folder, expected a file",
    "info no-such.gguf": "no-such.gguf does not exist, expected the folder of a model, a .gguf file",
    "fill-mask no/such/folder --text a": "no/such/folder does not exist, expected the folder of a model",
    "fill-mask empty --text a": "has no config.json",
    "fill-mask lm --text 'paris is the capital'": "has no [MASK]: put [MASK]",
    f"fill-mask lm --text '[MASK] {'a ' * 100}'": "has more than the 40 tokens that are read",
    "search encoder texts.txt --queries none.txt": r"--queries is 'none.txt', which does not exist\n",
    "search encoder none.txt cat": "CORPUS is 'none.txt', which does not exist; literal texts are given by --text",
    "distill --static --teacher encoder --out out --vocabulary none.txt": "--vocabulary is 'none.txt', which does not",
    "embed encoder texts.txt --max-length 1": "bertcore embed: --max-length is 1, expected 2 \\(the special tokens",
    "embed encoder texts.txt --max-seq-length=1": "bertcore embed: --max-seq-length is 1, expected 2",
    "tag tagger texts.txt --max-length 1": "bertcore tag: --max-length is 1, expected at least 2",
    "rerank encoder query texts.txt": "encoder is a dense encoder, expected a cross-encoder or a late",
    "info mbert": "close to it are bert-base-multilingual-cased, mini-bert",
    "plot embeddings encoder nothing.txt -o a.png": "nothing.txt holds no texts",
    "precision encoder nothing.txt": "nothing.txt holds no texts",
    "classify classifier --text a --calibration b.json": "is for the classes ['a', 'b'], and the model has",
    "classify classifier --text a --ensemble no/such/folder": "no/such/folder does not exist",
    "classify classifier --pairs --text 'the cat'": "'the cat' has 1 parts, expected two texts with a tab between them",
    "explain classifier --text a --label other": "label is 'other', expected one of CONTRADICTION",
    "tag reader --text a": "has no classifier of tokens, so it cannot do token-classification",
    "answer reader why --text ''": "context",
    "fill-mask encoder --text [MASK]": "has no masked language modeling head",
    "rerank classifier query texts.txt": "the model has 3 labels, expected one, by which to order",
    "calibrate classifier a.jsonl --out out --held-out 0": "no texts are held out, expected some",
    "warmup --backend numpy": "the backend is numpy, expected numba, which keeps compiled kernels",
    "warmup encoder --gradients --backend numba": "has no head with a loss",
    "compare mini-bert --training --length 65": "length is 65, and the model takes 64 tokens",
    "compare mini-bert --measure --length 65": "length is 65, expected at most 64, the limit of mini-bert",
    "compare mini-bert no-such-bert": "no preset is named 'no-such-bert'",
    "compare no/folder/here --measure": "no/folder/here does not exist",
    "info bert-basis": "bert-basis is not a folder here, and no preset is named 'bert-basis'; close to it are",
    "plot attention encoder texts.txt -o a.png": "attention has 2 texts, expected one",
    "plot calibration a.jsonl -o a.png": 'a.jsonl, line 1: \'{"text": "cat", "label": "x"}\', expected {',
    f"{FINETUNE} sequence --label-kind numbers": "is 'numbers', but the labels in",
    f"{FINETUNE} sequence --max-length 41": "--max-length is 41, expected at most the 40 tokens of",
    f"{FINETUNE} sequence --held-out 0.99": "holds no records to learn from beside the 10 that are held out",
    f"{FINETUNE} sequence --eval nothing.jsonl": r"nothing.jsonl .--eval. holds no records to measure",
    f"{FINETUNE} sequence --early-stopping 2 --held-out 0": "--early-stopping needs data to measure the model with",
    "finetune one.jsonl --model lm --out out --task sequence": "one.jsonl has the label x alone, expected two or more",
    "finetune one.jsonl --model lm --out out --task similarity --label score": "all pairs have the score 2.5",
    "finetune one.txt --model lm --out out --task token": "one.txt has the label O alone, expected two or more",
    f"{DISTILL} --layers 1 --max-length 41": "--max-length is 41, expected at most the 40 tokens of",
    f"{DISTILL} --layers 3": "--layers is 3, the teacher has 2",
    f"{DISTILL} --layers 1 --take 0,1": "layers has 2 entries, expected one for each of the student's 1: --take",
    f"{DISTILL} --layers 1 --take 9": "--take says which layers the student begins with, or none",
    f"{DISTILL} --student lm --take 0": "--take is for a new student",
    f"{DISTILL} --layers 1 --teacher lm": "has no head for --task sequence",
    f"{DISTILL} --layers 1 --task token": "has a head for another task than token",
    f"{PRETRAIN} --resume": "has no checkpoint to go on from",
    f"{PRETRAIN} --max-length 41": "--max-length is 41, expected at most the 40 tokens of",
    f"{PRETRAIN} --max-length 2": "--max-length is 2",
    f"{PRETRAIN} --vocab-size 50": "has a tokenizer of its own: leave out --tokenizer and --vocab-size",
    f"{PRETRAIN} --objective clm": "have no head for causal_lm",
    f"{NEW} --tokenizer x --vocab-size 50": "leave it out beside --tokenizer",
    f"{NEW} --vocab-size 8": "--vocab-size is 8",
    f"{NEW} --lora 2": "--lora trains adapters beside known weights",
    f"{PRETRAIN} --held-out 0.999": "too few to train on",
    f"{PRETRAIN} --model mini-burt": "no preset is named 'mini-burt'",
    f"{PRETRAIN} --model gpt2 --objective plm": "--objective plm needs the two streams of XLNet",
    f"{NEW} --vocab-size 70 --objective mlm+sop": "--objective mlm.sop needs a head that .* was not pretrained with",
    f"{NEW} --objective rtd --vocab-size 70": "have no head for replaced_tokens",
    "pretrain - --model bert.json --out out": "a tokenizer is learned from it first: give --tokenizer",
}


@pytest.fixture
def place(tmp_path, monkeypatch, stdin):
    """A working folder with data."""
    monkeypatch.chdir(tmp_path)
    stdin(b"a text\n")
    (tmp_path / "empty").mkdir()
    write = {
        "nothing.txt": "",
        "nothing.jsonl": "",
        "b.json": '{"method": "temperature", "labels": ["a", "b"], "temperature": 2.0}',
        "texts.txt": "the cat sat\nparis\n",
        "log.jsonl": '{"step": 1, "loss": 2.0}\n',
        "a.jsonl": '{"text": "cat", "label": "x"}\n{"text": "mat", "label": "y"}\n' * 5,
        "one.jsonl": json.dumps({"text": "cat", "text_pair": "mat", "label": "x", "score": 2.5}) + "\n",
        "one.txt": "the O\ncat O\n\nmat O\n",
    }
    for name, content in write.items():
        (tmp_path / name).write_text(content * (5 if name.startswith("one") else 1), encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("line", [*USAGE, *FAILURES])
def test_the_error(line, place, models, capsys):
    if line.startswith("plot"):
        pytest.importorskip("matplotlib")
    words = [str(models / word) if word and (models / word).exists() else word for word in shlex.split(line)]
    code = main(
        words + ([] if "--backend" in line or "embroider" in line or line == "embd" else ["--backend", "numpy"])
    )
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1 and captured.out.count("\n") <= 3
    assert code == (2 if line in USAGE else 1), captured.err
    expected = (USAGE | FAILURES)[line]
    assert expected in captured.err or re.search(expected, captured.err), captured.err
    name = f"bertcore {words[0]}: " if words[0] not in ("embroider", "embd") else "bertcore: "
    assert captured.err.startswith(name) and ("--help`" in captured.err) == (code == 2)
    assert not (place / "out").exists() or "--max-length 2" in line or "0.999" in line  # the stored examples


def test_export_without_onnx(place, models, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert main(["export", str(models / "encoder"), "out"]) == 1
    assert capsys.readouterr().err == "bertcore export: onnx is not installed, which this needs: pip install onnx\n"
