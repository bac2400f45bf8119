"""Trainers of encoders: sentence-transformers' scripts, several datasets, evaluators, checkpoints, refusals."""

import json
from collections import Counter

import numpy as np
import pytest

import bertcore
from bertcore import (
    EarlyStoppingCallback,
    SentenceEncoder,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
    SparseEncoder,
    SparseEncoderTrainer,
    TrainingArguments,
    losses,
    use_backend,
)
from bertcore.checkpoint import open_checkpoint
from bertcore.evaluation import EmbeddingSimilarityEvaluator
from bertcore.training.data.batches import Batches, DistinctBatches, LabelledBatches, MixedBatches, Named
from bertcore.training.objectives import Supervised, cross_encoder
from tests.refusals import refuses
from tests.tasks.cross_encoder.tiny import save_tiny_classifier
from tests.tasks.sparse_encoder.tiny import save_tiny_router, save_tiny_splade
from tests.tiny_bert import save_tiny_encoder, write_json

SCRIPT = """
model = SentenceTransformer(folder)
rows = {
    "anchor": ["paris is", "cats", "london", "dogs eat", "x y", "is"],
    "positive": ["london is", "dogs eat", "is x", "cats", "y", "is paris"],
    "negative": ["x", "paris", "cats", "y x", "dogs", "eat"],
}
labels = {
    "scores": [0.9, 0.1, 0.5, 0.7, 0.2, 0.4],
    "pairs": [1, 0, 1, 1, 0, 0],
    "classes": [0, 1, 0, 1, 2, 2],
    "margins": [0.3, -0.1, 0.5, 0.2, 0.1, 0.0],
    "teacher": [[0.3, -0.1], [0.5, 0.2], [0.1, 0.0], [0.3, 0.3], [0.2, 0.1], [0.4, -0.2]],
    "vectors": [[0.1 * (i + j) for j in range(39)] for i in range(6)],
}
kinds = {
    "MultipleNegativesRankingLoss": (losses.MultipleNegativesRankingLoss(model), 3, None),
    "MultipleNegativesSymmetricRankingLoss": (losses.MultipleNegativesSymmetricRankingLoss(model, scale=5.0), 2, None),
    "CachedMultipleNegativesRankingLoss": (losses.CachedMultipleNegativesRankingLoss(model, 9.0), 2, None),
    "CosineSimilarityLoss": (losses.CosineSimilarityLoss(model), 2, "scores"),
    "CoSENTLoss": (losses.CoSENTLoss(model), 2, "scores"),
    "AnglELoss": (losses.AnglELoss(model), 2, "scores"),
    "TripletLoss": (losses.TripletLoss(model, losses.TripletDistanceMetric.EUCLIDEAN, triplet_margin=2.0), 3, None),
    "ContrastiveLoss": (losses.ContrastiveLoss(model, losses.SiameseDistanceMetric.COSINE_DISTANCE), 2, "pairs"),
    "OnlineContrastiveLoss": (losses.OnlineContrastiveLoss(model), 2, "pairs"),
    "BatchHardTripletLoss": (losses.BatchHardTripletLoss(model), 1, "classes"),
    "MSELoss": (losses.MSELoss(model), 1, "vectors"),
    "MarginMSELoss": (losses.MarginMSELoss(model), 3, "margins"),
    "DistillKLDivLoss": (losses.DistillKLDivLoss(model, temperature=2.0), 3, "teacher"),
    "MatryoshkaLoss": (losses.MatryoshkaLoss(model, losses.CoSENTLoss(model), [39, 8]), 2, "scores"),
    "AdaptiveLayerLoss": (losses.AdaptiveLayerLoss(model, losses.CoSENTLoss(model), n_layers_per_step=-1), 2, "scores"),
}
loss, columns, kind = kinds[name]
table = dict(list(rows.items())[:columns]) | ({} if kind is None else {"label": labels[kind]})
args = SentenceTransformerTrainingArguments(
    output_dir=output, max_steps=3, per_device_train_batch_size=6, learning_rate=0.05, optim="sgd", seed=1,
    lr_scheduler_type="constant", report_to="none", save_strategy="no", disable_tqdm=True, prompts={"anchor": "is "},
)
trainer = SentenceTransformerTrainer(model=model, args=args, train_dataset=Dataset.from_dict(table), loss=loss)
trainer.train()
trainer.save_model(output)
vectors = model.encode(["paris is", "cats"])
"""
THEIRS = """
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers import losses
"""
OURS = """
from datasets import Dataset
from bertcore import SentenceEncoder as SentenceTransformer
from bertcore import SentenceTransformerTrainer, SentenceTransformerTrainingArguments, losses
"""
OTHERS = """
from datasets import Dataset
rows = {"query": ["paris is", "cats", "london", "dogs eat"], "answer": ["london is", "dogs eat", "is x", "cats"]}
scored = Dataset.from_dict(rows | {"label": [1.0, 0.0, 0.5, 0.2]})
settings = dict(
    output_dir=output, max_steps=4, per_device_train_batch_size=4, learning_rate=0.05, optim="sgd", seed=1,
    lr_scheduler_type="constant", report_to="none", save_strategy="no", disable_tqdm=True,
)
if kind == "CrossEncoder":
    model = library.CrossEncoder(folder)
    args, loss = library.CrossEncoderTrainingArguments(**settings), cross_encoder.BinaryCrossEntropyLoss(model)
    trainer = library.CrossEncoderTrainer(model, args, train_dataset=scored, loss=loss)
if kind in ("SparseEncoder", "Router"):
    model = library.SparseEncoder(folder)
    settings |= {"router_mapping": {"query": "query", "answer": "document"}} if kind == "Router" else {}
    loss = sparse.SpladeLoss(model, sparse.SparseMultipleNegativesRankingLoss(model), 3e-3, 5e-3)
    args = library.SparseEncoderTrainingArguments(**settings)
    trainer = library.SparseEncoderTrainer(model, args, Dataset.from_dict(rows), loss=loss)
if kind == "MultiVectorEncoder":
    model = library.MultiVectorEncoder(folder)
    args = library.MultiVectorEncoderTrainingArguments(**settings)
    trainer = library.MultiVectorEncoderTrainer(model, args, Dataset.from_dict(rows))
if kind == "several datasets":
    model = SentenceTransformer(folder)
    prompts, sampler = {"pairs": {"query": "is "}, "scored": "the "}, "round_robin"
    args = library.SentenceTransformerTrainingArguments(
        **settings, prompts=prompts, batch_sampler="no_duplicates", multi_dataset_batch_sampler=sampler
    )
    loss = {"pairs": losses.MultipleNegativesRankingLoss(model), "scored": losses.CoSENTLoss}
    data = {"pairs": Dataset.from_dict(rows).select([0, 2, 3]), "scored": scored.select([0, 2])}
    trainer = library.SentenceTransformerTrainer(model, args, data, loss=loss)
trainer.train()
trainer.save_model(output)
"""
THEIR_OTHERS = """
import sentence_transformers as library
from sentence_transformers import SentenceTransformer, losses
from sentence_transformers.cross_encoder import losses as cross_encoder
from sentence_transformers.sparse_encoder import losses as sparse
"""
OUR_OTHERS = """
import bertcore as library
from bertcore import losses
from bertcore.training.objectives import cross_encoder, sparse
from bertcore import SentenceEncoder as SentenceTransformer
"""


def without_dropout(folder):
    for file in folder.rglob("config.json"):
        config = json.loads(file.read_text())
        if "hidden_size" in config:
            file.write_text(json.dumps(config | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}))
    return folder


NAMES = [line.split('"')[1] for line in SCRIPT.splitlines() if line.startswith('    "') and "(losses." in line]


@pytest.mark.parity
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_script_of_sentence_transformers_trains_to_the_same_weights(tmp_path, name, normalize):
    pytest.importorskip("sentence_transformers")
    folder, found = without_dropout(save_tiny_encoder(tmp_path / "encoder", normalize=normalize)), {}
    for library, imports in {"theirs": THEIRS, "ours": OURS}.items():
        given = {"folder": str(folder), "output": str(tmp_path / library), "name": name}
        with use_backend("numpy"):
            exec(imports + SCRIPT, given)
        found[library] = weights_in(tmp_path / library), given["vectors"]
    (ours, vectors), (theirs, expected) = found["ours"], found["theirs"]
    assert_trained_alike(ours, theirs, folder)
    np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-5)


def weights_in(folder):
    files = {file.relative_to(folder): open_checkpoint(file) for file in folder.rglob("*.safetensors")}
    return {f"{file} {name}": np.array(weights[name]) for file, weights in files.items() for name in weights}


def assert_trained_alike(ours, theirs, folder):
    before = weights_in(folder)
    assert max(np.abs(array - before[name]).max() for name, array in ours.items() if name in before) > 1e-4
    for name, array in ours.items():
        np.testing.assert_allclose(array, theirs[name], rtol=0, atol=1e-5, err_msg=name)


def save_tiny_late(folder):
    bertcore.MultiVectorEncoder(save_tiny_encoder(folder / "plain")).save_pretrained(folder)
    return folder


def saved_classifier(folder):
    save_tiny_classifier(folder)
    return folder


FOLDERS = {"CrossEncoder": saved_classifier, "SparseEncoder": save_tiny_splade, "MultiVectorEncoder": save_tiny_late}
FOLDERS |= {"Router": save_tiny_router, "several datasets": save_tiny_encoder}


@pytest.mark.parity
@pytest.mark.parametrize("kind", FOLDERS)
def test_scripts_of_other_encoders_and_several_datasets(tmp_path, on_numpy, kind):
    pytest.importorskip("sentence_transformers")
    folder, found = without_dropout(FOLDERS[kind](tmp_path / "encoder")), []
    for library, imports in {"ours": OUR_OTHERS, "theirs": THEIR_OTHERS}.items():
        exec(imports + OTHERS, {"folder": str(folder), "output": str(tmp_path / library), "kind": kind})
        found.append(weights_in(tmp_path / library))
    assert_trained_alike(*found, folder)


PAIRS = [{"anchor": "paris is", "positive": "france"}, {"anchor": "the cat", "positive": "sat on"}]
PAIRS = [*PAIRS, {"anchor": "paris is", "positive": "capital"}, {"anchor": "a mat", "positive": "the"}] * 2
SCORED = [{**row, "score": index / 8} for index, row in enumerate(PAIRS)]


def arguments(folder, **options):
    given = {"num_train_epochs": 1, "per_device_train_batch_size": 4, "learning_rate": 1e-2, "report_to": "none"}
    return SentenceTransformerTrainingArguments(folder, **given | options)


def test_checkpoints_are_encoders_and_a_resumed_run_ends_with_the_same_bits(tmp_path, on_numpy):
    folder = save_tiny_encoder(tmp_path / "encoder", {"pooling_mode_cls_token": True}, normalize=True)
    encoders = [SentenceEncoder(folder, prompts={"query": "the "}) for _ in range(2)]
    options = {"eval_strategy": "steps", "eval_steps": 2, "save_steps": 2, "load_best_model_at_end": True}
    options |= {"num_train_epochs": 2, "lr_scheduler_type": "constant"}
    options |= {"metric_for_best_model": "eval_dev_spearman_cosine", "batch_sampler": "no_duplicates"}
    evaluator = EmbeddingSimilarityEvaluator(["paris", "the", "a"], ["cat", "is", "on"], [1.0, 0.5, 0.1], name="dev")
    for encoder, steps in zip(encoders, (4, 2), strict=True):
        args = arguments(tmp_path / str(steps), max_steps=steps, **options)
        loss = losses.SoftmaxLoss(encoder, num_labels=8)
        data = {"train_dataset": [row | {"label": at} for at, row in enumerate(PAIRS)], "evaluator": evaluator}
        trainer = SentenceTransformerTrainer(encoder, args, loss=loss, **data)
        trainer.train()
    assert trainer.model is encoder and "eval_dev_pearson_cosine" in trainer.evaluate()
    args.max_steps = 4
    trainer = SentenceTransformerTrainer(encoder, args, loss=losses.SoftmaxLoss(encoder, num_labels=8), **data)
    trainer.train(resume_from_checkpoint=True)
    found = [SentenceEncoder(tmp_path / f"{steps}/checkpoint-4") for steps in (4, 2)]
    assert found[0].settings.pooling == ("cls",) and found[0].settings.normalize and found[0].prompts["query"] == "the "
    trainer = SentenceTransformerTrainer(encoder, args, loss=losses.CoSENTLoss(encoder), **data)
    refuses(ValueError, "the objective is 'CoSENTLoss', in .* it was 'SoftmaxLoss'", trainer.train, True)
    refuses(TypeError, "resume_from_checkpoint is 3, expected True or a folder", trainer.train, 3)
    vectors = [each.encode(["paris", "a cat"]) for each in (*encoders, *found)]
    np.testing.assert_array_equal(vectors[0], vectors[1])  # the best ones
    np.testing.assert_array_equal(vectors[2], vectors[3])
    trainer.save_model(tmp_path / "saved")
    np.testing.assert_array_equal(SentenceEncoder(tmp_path / "saved").encode(["paris", "a cat"]), vectors[1])
    assert (tmp_path / "2/eval/similarity_evaluation_dev_results.csv").is_file()


@pytest.mark.parity
def test_sentence_transformers_loads_a_checkpoint(tmp_path, on_numpy):
    peer = pytest.importorskip("sentence_transformers")
    encoder = SentenceEncoder(save_tiny_encoder(tmp_path / "encoder", {"pooling_mode_cls_token": True}, normalize=True))
    args = arguments(tmp_path / "run")
    SentenceTransformerTrainer(encoder, args, SCORED).train()  # the default loss
    theirs = peer.SentenceTransformer(str(tmp_path / "run/checkpoint-2"), device="cpu").encode(["paris", "a cat"])
    np.testing.assert_allclose(encoder.encode(["paris", "a cat"]), theirs, atol=1e-6)


@pytest.mark.parametrize("sampler, steps", [("proportional", 6), ("round_robin", 4)])
def test_several_datasets_each_with_its_loss(tmp_path, on_numpy, sampler, steps):
    encoder, seen = SentenceEncoder(save_tiny_encoder(tmp_path / "encoder")), []

    class Seen(losses.CoSENTLoss):
        def of_embeddings(self, embeddings, labels):
            seen.append(len(embeddings))
            return super().of_embeddings(embeddings, labels)

    args = arguments(tmp_path / "run", multi_dataset_batch_sampler=sampler, prompts={"pairs": {"anchor": "the "}})
    data = {"pairs": PAIRS * 2, "scored": SCORED}
    given = {"pairs": losses.CachedMultipleNegativesRankingLoss, "scored": Seen(encoder)}
    trainer = SentenceTransformerTrainer(encoder, args, data, {"scored": SCORED}, given)
    assert trainer.train().global_step == steps and seen == [4, 4]
    assert trainer.evaluate()["eval_scored_loss"] > 0
    parts = [Batches(Named(name, part), batch_size=4) for name, part in data.items()]
    batches = MixedBatches(parts, sampler == "proportional")
    first = [list(batches.epoch(0)), [*batches.epoch(0, skip=1, every=2)]]
    assert first[0][1::2] == first[1] and batches.num_examples == 24 and len(batches) == steps
    assert {row["dataset_name"] for row in first[0][0]} in ({"pairs"}, {"scored"})
    anchors = trainer.data_collator([{"dataset_name": "pairs", "anchor": "cat", "positive": "cat"}])["input_ids"][0]
    assert (anchors[0] != anchors[1]).any()  # the prompt


def test_batches_without_duplicates_and_of_labels():
    for drop_last, sizes in (False, [3, 3, 1, 1]), (True, [3, 3]):
        found = list(DistinctBatches(PAIRS, batch_size=3, drop_last=drop_last).epoch(0))
        texts = [[text for row in batch for text in row.values()] for batch in found]
        assert [len(batch) for batch in found] == sizes and all(len(some) == len(set(some)) for some in texts)
    rows = [{"text": str(at), "label": label} for at, label in enumerate("aaaaaaaabbbbccd")]
    for batch in LabelledBatches(rows, batch_size=4).epoch(0):
        counts = Counter(row["label"] for row in batch)
        assert len(counts) > 1 and min(counts.values()) > 1 and "d" not in counts
    refuses(ValueError, "batch_size is 5, expected an even", lambda: list(LabelledBatches(rows, batch_size=5).epoch(0)))
    for kind in (DistinctBatches, LabelledBatches):
        refuses(TypeError, "an example is str, expected a mapping", next, kind(["x"], batch_size=4).epoch(0))
    listed = LabelledBatches([{"label": [1]}], batch_size=4)
    refuses(TypeError, r"a label is \[1\], expected a number", lambda: list(listed.epoch(0)))
    refuses(ValueError, "the data has 1 labels", lambda: list(LabelledBatches(rows[:9], batch_size=4).epoch(0)))


@pytest.mark.parametrize("kind", ["CrossEncoder", "SparseEncoder", "MultiVectorEncoder"])
def test_trainers_of_other_encoders(tmp_path, on_numpy, kind):
    encoder_class = getattr(bertcore, kind)
    encoder = encoder_class(FOLDERS[kind](tmp_path / "encoder"))
    args = getattr(bertcore, f"{kind}TrainingArguments")(tmp_path / "run", max_steps=2, save_steps=2, report_to="none")
    trainer = getattr(bertcore, f"{kind}Trainer")(encoder, args, SCORED if kind == "CrossEncoder" else PAIRS)
    before = next(iter(encoder.model.parameters())).array().copy()
    trainer.train()
    assert (next(iter(encoder.model.parameters())).array() != before).any()

    def found(encoder):
        if kind == "CrossEncoder":
            return encoder.predict([("paris", "a cat")])
        rows = encoder.encode("paris", **({} if kind == "SparseEncoder" else {"task": "query"}))
        return rows.toarray() if kind == "SparseEncoder" else rows

    np.testing.assert_array_equal(found(encoder), found(encoder_class(tmp_path / "run/checkpoint-2")))


@pytest.mark.parametrize("kind", ["SentenceEncoder", "CrossEncoder"])
def test_losses_of_lower_casing_encoders_read_texts_in_lower_case(tmp_path, kind):
    folder = (saved_classifier if kind == "CrossEncoder" else save_tiny_encoder)(tmp_path)
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "BertTokenizer", "do_lower_case": False})
    write_json(folder / "sentence_bert_config.json", {"do_lower_case": True})
    encoder = getattr(bertcore, kind)(folder)
    made = cross_encoder if kind == "CrossEncoder" else losses
    collator = made.MultipleNegativesRankingLoss(encoder).collator(encoder.tokenizer)
    upper, lower = (collator([{"query": query, "answer": "Paris"}])["input_ids"] for query in ("The cat", "the cat"))
    np.testing.assert_array_equal(upper, lower)
    assert encoder.tokenizer.unk_token_id not in upper


def test_reprs(tmp_path):
    evaluator = EmbeddingSimilarityEvaluator(["a"], ["b"], [1.0], name="dev")
    assert (
        repr(evaluator) == "<EmbeddingSimilarityEvaluator, name dev, batch_size 16, sentences1 of 1, sentences2 of 1>"
    )
    assert repr(EarlyStoppingCallback(3)) == "<EarlyStoppingCallback, patience 3, threshold 0.0, failures 0>"
    trainer = SentenceTransformerTrainer(SentenceEncoder(save_tiny_encoder(tmp_path / "encoder")), arguments("run"))
    assert repr(trainer.objective) == "<CoSENTLoss, pooling mean, scale 20.0>"
    assert repr(trainer).startswith("<SentenceTransformerTrainer of <SentenceEncoder of <AutoModel: bert")
    assert repr(trainer).endswith(", CoSENTLoss, step 0, output_dir run>")


@pytest.mark.parametrize("prompts", [{"anchr": "x"}, {"score": "x"}, {"pairs": {"b": "x"}}, {"pair": {"anchor": "x"}}])
def test_prompts_of_unknown_columns(tmp_path, on_numpy, prompts):
    encoder, args = SentenceEncoder(save_tiny_encoder(tmp_path / "a")), arguments(tmp_path / "run", prompts=prompts)
    message, make = r"a key of prompts(\['pairs'\])? is '\w+', expected one of '", SentenceTransformerTrainer
    data, loss = {"pairs": PAIRS, "scored": SCORED}, dict.fromkeys(["pairs", "scored"], losses.CoSENTLoss(encoder))
    refuses(ValueError, message, make, encoder, args, data, loss=loss)
    if "anchr" in prompts:  # of the other columns of an evaluation, or of a stream
        make(encoder, args, SCORED, [{"anchr": "a", "other": "b", "score": 1}])
        refuses(ValueError, "'anchr', expected one of 'anchor', 'positive'$", make, encoder, args, SCORED, SCORED)
        args.max_steps = 1
        refuses(ValueError, message, make(encoder, args, lambda: SCORED).train)


def test_refusals(tmp_path, on_numpy):
    encoder, other = (SentenceEncoder(save_tiny_encoder(tmp_path / name)) for name in "ab")
    maximum = SentenceEncoder(save_tiny_encoder(tmp_path / "max", {"pooling_mode_max_tokens": True}))
    args, loss = arguments(tmp_path / "run"), losses.CoSENTLoss(encoder)
    make = SentenceTransformerTrainer
    refuses(TypeError, "model is AutoModel, expected a SentenceEncoder", make, encoder.model, args)
    refuses(TypeError, "args is TrainingArguments, expected Sentence", make, encoder, TrainingArguments(tmp_path / "x"))
    refuses(TypeError, "has no argument compute_metrics", make, encoder, args, compute_metrics=len)
    refuses(ValueError, "loss is a CoSENTLoss of <SentenceEncoder", make, other, args, SCORED, loss=loss)
    refuses(TypeError, "loss is Supervised, expected a loss of SentenceEncoder", make, encoder, args, loss=Supervised())
    two = {"a": SCORED, "b": SCORED}
    refuses(ValueError, "loss is for a, and train_dataset has a, b", make, encoder, args, two, loss={"a": loss})
    refuses(ValueError, "loss is for a, and eval_dataset has one dataset", make, encoder, args, None, [], {"a": loss})
    refuses(ValueError, "loss is for none, and train_dataset has one dataset", make, encoder, args, SCORED, loss={})
    refuses(ValueError, "dataset 'a' is empty, expected", make, encoder, args, {"a": [], "b": SCORED})
    refuses(TypeError, r"the columns\[0\] is int, expected str", make, encoder, args, [{1: "x", "label": 1.0}])
    refuses(
        TypeError,
        "dataset.. is NoneType, expected",
        make(encoder, arguments(tmp_path / "s", max_steps=1), lambda: None).train,
    )
    for found in (None, {"a": "b"}):
        trainer = make(encoder, args, evaluator=lambda *given, found=found: found)
        refuses(TypeError, "evaluator returned '.*' as .*, expected a number", trainer.evaluate)
    for found, error, said in (({}, ValueError, "no metrics"), ({3: 1.0}, TypeError, "the name 3, expected a string")):
        trainer = make(encoder, args, evaluator=lambda *given, found=found: found)
        refuses(error, f"evaluator returned {said}", trainer.evaluate)
    no_collator = "no argument data_collator(?!; did you mean data_collator)"
    refuses(TypeError, no_collator, make, encoder, args, data_collator=len)
    refuses(TypeError, "dataset 'a' is tuple_iterator", make, encoder, args, {"a": iter(())})
    refuses(TypeError, "dataset 'a' has str, expected mappings", make, encoder, args, {"a": ["x"], "b": ["y"]})
    refuses(TypeError, "an example is str, expected a mapping", make(encoder, args, ["x"] * 9, loss=loss).train)
    refuses(ValueError, "and there is no eval_dataset", make, encoder, arguments(tmp_path / "y", eval_strategy="epoch"))
    routed = arguments(tmp_path / "z", router_mapping={"a": "query"})
    refuses(ValueError, "router_mapping is .* model has no Router", make, encoder, routed)
    refuses(ValueError, "batch_sampler is 'hard'", arguments, tmp_path, batch_sampler="hard")
    for wrong in (5, {"anchor": 5}, {"pairs": {"anchor": None}}):
        refuses(TypeError, "prompts is .*, expected a string or a mapping", arguments, tmp_path, prompts=wrong)
    named = arguments(tmp_path / "u", prompts={"pairs": {"anchor": "the "}})
    refuses(ValueError, "prompts is for datasets pairs, expected columns", make, encoder, named, SCORED)
    refuses(TypeError, "has no argument learning_rates", arguments, tmp_path, learning_rates=1)
    refuses(ValueError, "with pooling max, expected only Transformer", losses.TripletLoss, maximum)
    refuses(TypeError, "model is float, expected a SentenceEncoder", losses.CoSENTLoss, 20.0)
    refuses(TypeError, "model and pooling are both given", losses.CoSENTLoss, encoder, pooling="cls")
    refuses(TypeError, "model and max_length are both given", losses.CoSENTLoss, encoder, max_length=5)
    refuses(TypeError, "has no argument gather_across_devices", losses.CoSENTLoss, encoder, gather_across_devices=True)
    refuses(ValueError, "expected the model of loss", losses.MatryoshkaLoss, other, loss, [8])
    refuses(TypeError, r"^CoSENTLoss has no argument scal; did you mean scale\?", losses.CoSENTLoss, encoder, scal=2)
    refuses(TypeError, "model is str, expected a SentenceEncoder", losses.CoSENTLoss, "folder")
    late = bertcore.MultiVectorEncoder(save_tiny_late(tmp_path / "late"))
    refuses(ValueError, "with pooling none, expected only Transformer", losses.CoSENTLoss, late)
    refuses(TypeError, "guide is str, expected a SentenceEncoder", losses.GISTEmbedLoss, encoder, "folder")
    refuses(TypeError, "callbacks is int, expected a list", make, encoder, args, callbacks=3)
    refuses(TypeError, "evaluator is str, expected an evaluator", make, encoder, args, evaluator="dev")
    refuses(ValueError, "train_dataset is an empty mapping", make, encoder, args, {})
    refuses(TypeError, "a dataset is called 1, expected", make, encoder, args, {1: PAIRS})
    refuses(ValueError, "warmup_ratio is 2, expected", arguments, tmp_path, warmup_ratio=2)
    for rows, message in (
        ([{"label": 1}], "an example has label, expected texts"),
        ([SCORED[0] | {"labels": 1}], "score, labels, expected texts and at most one"),
        ([*PAIRS[:2], {"anchor": "a"}], "an example has .*, as another has"),
        ([{"a": "b", "c": "d", "label": [1, 2]}], r"labels has shape \(1, 2\), expected \(1,\): one"),
        ([{"a": "b", "c": "d", "label": some} for some in ([1], [1, 2])], "labels has rows of different lengths"),
    ):
        refuses(ValueError, message, make(encoder, arguments(tmp_path / "t"), rows, loss=loss).train)
    with pytest.raises(ImportError, match="has no MegaBatchMarginLoss: use Cached"):
        from bertcore.losses import MegaBatchMarginLoss  # noqa: F401
    two = {"a": losses.SoftmaxLoss(encoder, num_labels=2), "b": losses.SoftmaxLoss(encoder, num_labels=3)}
    trainer = make(encoder, args, {"a": SCORED, "b": SCORED}, loss=two)
    refuses(ValueError, "loss has two losses with parameters of their own", trainer.train)
    sparse = SparseEncoder(save_tiny_router(tmp_path / "router"))
    refuses(ValueError, "prompts is 'x', expected None", SparseEncoderTrainer, sparse, arguments(tmp_path, prompts="x"))
    unknown = arguments(tmp_path / "u", router_mapping={"positve": "document"})
    refuses(ValueError, "a key of router_mapping is 'positve', expected", SparseEncoderTrainer, sparse, unknown, PAIRS)
    routed = arguments(tmp_path / "v", router_mapping={"positive": "query"})
    trainer = SparseEncoderTrainer(sparse, routed, PAIRS)
    refuses(ValueError, "router_mapping has 'query' for 'positive', expected 'document'", trainer.train)
    trainer = make(encoder, arguments(tmp_path / "w"), {"a": SCORED}, loss={"a": loss})
    refuses(ValueError, "an example is of dataset None, expected a", trainer.evaluate, SCORED)
