import ml_dtypes
import numpy as np
import pytest

from bertcore.checkpoint import CheckpointError, load_parameters, open_checkpoint
from bertcore.families.bert import BERT as FAMILY
from tests.checkpoint.files import write_tensors
from tests.refusals import refuses
from tests.tolerances import assert_same_arrays

BERT = FAMILY.name_rules
WORDS, NORM = "embeddings.word_embeddings.weight", "embeddings.LayerNorm.weight"
ENCODER = {WORDS: (7, 3), NORM: (3,), "encoder.layer.0.output.dense.bias": (3,)}
POOLER = {"pooler.dense.weight": (3, 3)}
HEAD = {"cls.predictions.bias": (7,), "cls.predictions.transform.LayerNorm.bias": (3,)}
UNTIED_HEAD = {
    "cls.predictions.transform.LayerNorm.bias": (3,),
    "cls.predictions.decoder.weight": (7, 3),
    "cls.predictions.decoder.bias": (7,),
}
NEXT_SENTENCE = {"cls.seq_relationship.weight": (2, 3)}


def prefixed(shapes):
    return {"bert." + name: shape for name, shape in shapes.items()}


def values(shapes, seed=0):
    random = np.random.default_rng(seed)
    return {name: random.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


def load(folder, arrays, expected, **options):
    write_tensors(folder / "model.safetensors", arrays)
    return load_parameters(open_checkpoint(folder), expected, BERT, **options)


def check_same(found, wanted):
    assert list(found) == list(wanted)
    assert_same_arrays(found, wanted)


def renamed(arrays, **names):
    """Rename arrays: old name, with _ for ., -> new one."""
    return {names.get(name.replace(".", "_"), name): array for name, array in arrays.items()}


def without(arrays, *names):
    return {name: array for name, array in arrays.items() if name not in names}


def encoder_of(arrays, shapes=ENCODER):
    """Return the arrays of the encoder, without the prefix."""
    return {name: arrays["bert." + name] for name in shapes}


@pytest.mark.parametrize("file_prefix", ["", "bert.", "module.bert.", "module.", "0.auto_model."])
@pytest.mark.parametrize("model_prefix", ["", "bert."])
@pytest.mark.parametrize("old", [False, True], ids=["today", "gamma-beta"])
def test_spelling_of_the_file(tmp_path, file_prefix, model_prefix, old):
    arrays = values(ENCODER)
    in_file = {file_prefix + name.replace("Norm.weight", "Norm.gamma" if old else "Norm.weight"): array
               for name, array in arrays.items()}  # fmt: skip
    expected = {model_prefix + name: shape for name, shape in ENCODER.items()}
    found = load(tmp_path, in_file, expected)
    check_same(found, {model_prefix + name: array for name, array in arrays.items()})


def test_nothing_is_copied_and_the_order_is_that_of_the_model(tmp_path):
    expected = dict(reversed(ENCODER.items()))
    found = load(tmp_path, values(ENCODER), expected)
    assert list(found) == list(expected)
    assert not found[WORDS].flags.owndata and not found[WORDS].flags.writeable


def test_the_dtype_is_the_stored_one(tmp_path):
    arrays = values(ENCODER)
    arrays[WORDS], arrays[NORM] = arrays[WORDS].astype(np.float16), arrays[NORM].astype(ml_dtypes.bfloat16)
    found = load(tmp_path, arrays, ENCODER)
    assert found[WORDS].dtype == np.float16 and found[NORM].dtype == ml_dtypes.bfloat16
    check_same(found, arrays)


DECODER, DECODER_BIAS, BIAS = "cls.predictions.decoder.weight", "cls.predictions.decoder.bias", "cls.predictions.bias"
BARE, TIED, UNTIED = values(ENCODER), values(prefixed(ENCODER) | HEAD), values(prefixed(ENCODER) | UNTIED_HEAD)
WITH_POOLER = values(ENCODER | POOLER)
ALL = values(prefixed(ENCODER | POOLER) | HEAD | NEXT_SENTENCE | {"classifier.weight": (2, 3)})
BUFFERS = {"embeddings.position_ids": np.arange(5)[None], "embeddings.token_type_ids": np.zeros((1, 5), np.int64)}
CLASSIFIER = prefixed(ENCODER | POOLER) | {"classifier.weight": (2, 3)}
ZEROS = np.zeros(3, np.float32)

# What a file holds, what it is read for and what that has (the same by default), and which parts it may lack.
READ = {
    "a head beside a bare encoder": ({name.removeprefix("bert."): array for name, array in TIED.items()}, TIED),
    "a head beside a wrapped encoder": ({"module." + name: array for name, array in TIED.items()}, TIED),
    "index buffers": (BARE | BUFFERS, BARE),
    "index buffers with the prefix": ({"bert." + name: array for name, array in (BARE | BUFFERS).items()},
                                      {"bert." + name: array for name, array in BARE.items()}),
    "unused heads": (ALL, encoder_of(ALL, ENCODER | POOLER)),
    "a language model of pretraining": (ALL, {name: ALL[name] for name in TIED}),
    "an optional part that is there": (WITH_POOLER, WITH_POOLER, ["pooler."]),
    "copies of tied parameters": (TIED | {DECODER: TIED["bert." + WORDS], DECODER_BIAS: TIED[BIAS]}, TIED),
    "copies in place of tied parameters": (
        renamed(TIED, bert_embeddings_word_embeddings_weight=DECODER, cls_predictions_bias=DECODER_BIAS), TIED),
    "an encoder of an untied file": (UNTIED, encoder_of(UNTIED)),
    "untied": (UNTIED, UNTIED),
    "untied, and the unused bias that transformers saves": (UNTIED | {BIAS: np.zeros(7, np.float32)}, UNTIED),
    "untied, the bias by its older name": (renamed(UNTIED, cls_predictions_decoder_bias=BIAS), UNTIED),
}  # fmt: skip
NORM_AS = r"weight \(as bert\.embeddings\.LayerNorm\.gamma\): expected \(3,\)"
TWO_ENCODERS = {prefix + name: array for prefix in ("query.", "passage.") for name, array in BARE.items()}
LONG = ENCODER | {f"encoder.layer.{layer}.output.dense.weight": (3, 3) for layer in range(13)}
REFUSED = {
    "unknown tensor in a head": (TIED | {"cls.predictions.extra": ZEROS}, TIED, r"have \(1\): cls\.predictions\.extra"),
    "unknown tensor in the pooler": (
        values(CLASSIFIER) | {"bert.pooler.dense.extra": ZEROS}, CLASSIFIER, r"have \(1\): .*pooler\.dense\.extra"),
    "an old ending that does not belong to a norm": (
        renamed(BARE, encoder_layer_0_output_dense_bias="encoder.layer.0.output.dense.beta"), BARE, r"dense\.bias"),
    "two heads missing": (encoder_of(TIED), CLASSIFIER, r"\(2\): bert\.pooler\.dense\.weight, classifier\.we"),
    "one head missing": (encoder_of(TIED), CLASSIFIER, r"missing tensors \(1\): classifier\.weight", ["pooler."]),
    "a part of an optional part": (
        WITH_POOLER, ENCODER | POOLER | {"pooler.dense.bias": (3,)}, r"missing tensors \(1\): pooler\.dense\.bias",
        ["pooler."]),
    "an optional part of another shape": (
        WITH_POOLER | {"pooler.dense.weight": np.zeros((4, 3), np.float32)}, WITH_POOLER, "wrong shape", ["pooler."]),
    "tied weight that differs": (
        TIED | {DECODER: np.zeros((7, 3), np.float32)}, TIED, rf"set tie_word_embeddings to false .*: {DECODER} and "),
    "tied bias that differs": (
        TIED | {DECODER_BIAS: np.zeros(7, np.float32)}, TIED, rf"tie_word_embeddings to false .*: {DECODER_BIAS} and "),
    "untied without its decoder": (without(UNTIED, DECODER), UNTIED, rf"missing tensors \(1\): {DECODER}"),
    "long lists": (BARE, LONG, r"missing tensors \(13\): .*layer\.9\.output.*, and 3 more"),
    "another shape under an older name": (
        without(BARE, NORM) | {"bert.embeddings.LayerNorm.gamma": np.zeros(4, np.float32)}, BARE, NORM_AS),
    "twice": (BARE | {"embeddings.LayerNorm.gamma": ZEROS}, BARE, r"twice \(1\): .*Norm\.weight \(as .* and as "),
    "two encoders": (TWO_ENCODERS, BARE, r"holds 2 encoders, expected one: passage\.\*, query\.\*"),
    "unknown tensor": (BARE | {"lm_head.bias": ZEROS}, BARE, r"the model does not have \(1\): lm_head\.bias"),
    "scalar for one element": (BARE | {NORM: np.full((), 1, np.float32)}, BARE, r"expected \(3,\), found \(\)"),
}  # fmt: skip


def shapes(expected):
    return {name: getattr(each, "shape", each) for name, each in expected.items()}


@pytest.mark.parametrize("case", READ.values(), ids=READ)
def test_read_spellings(tmp_path, case):
    in_file, wanted, optional = (*case, [])[:3]
    check_same(load(tmp_path, in_file, shapes(wanted), optional=optional), wanted)


@pytest.mark.parametrize("pooler", ["pooler.", "bert.pooler."])
def test_optional_parts_may_be_absent(tmp_path, pooler):
    arrays = {"bert." + name: array for name, array in BARE.items()}
    check_same(load(tmp_path, arrays, CLASSIFIER, optional=[pooler, "classifier."]), arrays)


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_refused_files(tmp_path, case):
    in_file, expected, problem, optional = (*case, [])[:4]
    refuses(CheckpointError, problem, load, tmp_path, in_file, shapes(expected), optional=optional)


def test_all_problems_are_in_one_error(tmp_path):
    other = "encoder.layer.1.output.dense.bias"
    arrays = without(BARE, NORM) | {WORDS: np.zeros((8, 3), np.float32), other: ZEROS}
    arrays["encoder.layer.0.output.dense.bias"] = np.zeros(3, np.int8)
    with pytest.raises(CheckpointError) as caught:
        load(tmp_path, arrays, ENCODER)
    assert str(caught.value).splitlines() == [
        f"{tmp_path}/model.safetensors does not fit the model:",
        f"  missing tensors (1): {NORM}",
        f"  tensors the model does not have (1): {other}",
        f"  tensors of the wrong shape (1): {WORDS}: expected (7, 3), found (8, 3)",
        "  tensors that are neither floating point nor int8 matrices (1): encoder.layer.0.output.dense.bias: I8",
    ]


class TestInt8:
    POOLER_WEIGHT, POOLER_SCALE = "pooler.dense.weight", "pooler.dense.weight_scale"

    def stored(self, **changes):
        """An encoder with a pooler in int8; `changes` go over the weight's and the scale's tensors."""
        weight, scale = np.arange(-4, 5, dtype=np.int8).reshape(3, 3), np.full((3, 1), 0.5, np.float32)
        pooler = {self.POOLER_WEIGHT: changes.get("weight", weight), self.POOLER_SCALE: changes.get("scale", scale)}
        return values(ENCODER) | {name: array for name, array in pooler.items() if array is not None}

    @pytest.mark.parametrize("file_prefix", ["", "bert.", "module.bert."])
    def test_scales_follow_under_the_models_names(self, tmp_path, file_prefix):
        arrays = self.stored(scale=np.full((3, 1), 0.5, np.float16))
        found = load(tmp_path, {file_prefix + name: array for name, array in arrays.items()}, ENCODER | POOLER)
        check_same(found, {**ENCODER, **dict.fromkeys((self.POOLER_WEIGHT, self.POOLER_SCALE))} | arrays)
        assert found[self.POOLER_WEIGHT].dtype == np.int8 and found[self.POOLER_SCALE].dtype == np.float32

    def test_unused_int8_tensors_are_skipped(self, tmp_path):
        check_same(load(tmp_path, self.stored(), ENCODER), {name: self.stored()[name] for name in ENCODER})

    @pytest.mark.parametrize("changes, problem", [
        ({"scale": None}, r"scales \(.*\) are missing or wrong \(1\): pooler\.dense\.weight: no scale"),
        ({"scale": np.zeros(3, np.float32)}, r"dense\.weight: expected \(3, 1\) F32, found \(3,\) F32"),
        ({"scale": np.zeros((4, 1), np.float32)}, r"dense\.weight: expected \(3, 1\) F32, found \(4, 1\) F32"),
        ({"scale": np.zeros((3, 1), np.int32)}, r"dense\.weight: expected \(3, 1\) F32, found \(3, 1\) I32"),
        ({"weight": np.zeros((3, 4), np.int8)}, r"shape \(1\): pooler\.dense\.weight: expected \(3, 3\), found"),
        ({"weight": np.zeros((3, 3), np.uint8)}, r"neither floating point nor int8 matrices \(1\): .*weight: U8"),
        ({"scale": np.array([[0.5], [0.5], [-1]])}, r"safetensors: pooler\.dense\.weight_scale\[2, 0\] is -1\.0, exp"),
        ({"scale": np.full((3, 1), np.nan)}, r"pooler\.dense\.weight_scale\[0, 0\] is nan, expected finite"),
        ({"weight": np.zeros((3, 3), np.float32)}, r"does not have \(1\): pooler\.dense\.weight_scale"),
    ])  # fmt: skip
    def test_wrong_int8_tensors(self, tmp_path, changes, problem):
        refuses(CheckpointError, problem, load, tmp_path, self.stored(**changes), ENCODER | POOLER)
