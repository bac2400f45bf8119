import ml_dtypes
import numpy as np
import pytest

from bertcore.checkpoint import CheckpointError, load_parameters, open_checkpoint
from bertcore.families.bert import BERT as FAMILY
from tests.checkpoint.files import write_tensors

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
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array)


def test_same_names(tmp_path):
    arrays = values(ENCODER)
    check_same(load(tmp_path, arrays, ENCODER), arrays)


def test_order_is_that_of_the_model(tmp_path):
    arrays = values(ENCODER)
    expected = dict(reversed(ENCODER.items()))
    assert list(load(tmp_path, arrays, expected)) == list(expected)


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


def test_head_beside_a_bare_encoder_and_a_wrapped_one(tmp_path):
    expected = prefixed(ENCODER) | HEAD
    arrays = values(expected)
    bare = {name.removeprefix("bert."): array for name, array in arrays.items()}
    check_same(load(tmp_path, bare, expected), arrays)
    wrapped = {"module." + name: array for name, array in arrays.items()}
    check_same(load(tmp_path, wrapped, expected), arrays)


def test_index_buffers_are_skipped(tmp_path):
    arrays = values(ENCODER)
    buffers = {"embeddings.position_ids": np.arange(5)[None], "embeddings.token_type_ids": np.zeros((1, 5), np.int64)}
    check_same(load(tmp_path, arrays | buffers, ENCODER), arrays)
    buffers = {"bert." + name: array for name, array in buffers.items()}
    arrays = {"bert." + name: array for name, array in arrays.items()}
    check_same(load(tmp_path, arrays | buffers, prefixed(ENCODER)), arrays)


class TestHeads:
    def test_unused_heads_are_left_unread(self, tmp_path):
        arrays = values(prefixed(ENCODER | POOLER) | HEAD | NEXT_SENTENCE | {"classifier.weight": (2, 3)})
        found = load(tmp_path, arrays, ENCODER | POOLER)
        check_same(found, {name: arrays["bert." + name] for name in ENCODER | POOLER})

    def test_masked_lm_from_a_pretraining_file(self, tmp_path):
        arrays = values(prefixed(ENCODER | POOLER) | HEAD | NEXT_SENTENCE)
        expected = prefixed(ENCODER) | HEAD
        check_same(load(tmp_path, arrays, expected), {name: arrays[name] for name in expected})

    def test_unknown_tensor_in_an_expected_head(self, tmp_path):
        arrays = values(prefixed(ENCODER) | HEAD | {"cls.predictions.extra": (2,)})
        with pytest.raises(CheckpointError, match=r"does not have \(1\): cls\.predictions\.extra"):
            load(tmp_path, arrays, prefixed(ENCODER) | HEAD)

    def test_missing_head_is_an_error_unless_optional(self, tmp_path):
        arrays = values(prefixed(ENCODER))
        expected = prefixed(ENCODER | POOLER) | {"classifier.weight": (2, 3)}
        with pytest.raises(CheckpointError, match=r"missing tensors \(2\): bert\.pooler\.dense\.weight, classifier"):
            load(tmp_path, arrays, expected)
        with pytest.raises(CheckpointError, match=r"missing tensors \(1\): classifier\.weight"):
            load(tmp_path, arrays, expected, optional=["pooler."])
        for pooler in ("pooler.", "bert.pooler."):
            check_same(load(tmp_path, arrays, expected, optional=[pooler, "classifier."]), arrays)

    def test_optional_part_must_be_absent_as_a_whole(self, tmp_path):
        expected = ENCODER | POOLER | {"pooler.dense.bias": (3,)}
        with pytest.raises(CheckpointError, match=r"missing tensors \(1\): pooler\.dense\.bias"):
            load(tmp_path, values(ENCODER | POOLER), expected, optional=["pooler."])

    def test_optional_part_that_is_there_is_read_and_checked(self, tmp_path):
        arrays = values(ENCODER | POOLER)
        check_same(load(tmp_path, arrays, ENCODER | POOLER, optional=["pooler."]), arrays)
        arrays["pooler.dense.weight"] = np.zeros((4, 3), np.float32)
        with pytest.raises(CheckpointError, match="wrong shape"):
            load(tmp_path, arrays, ENCODER | POOLER, optional=["pooler."])


class TestTied:
    TIED = prefixed(ENCODER) | HEAD
    UNTIED = prefixed(ENCODER) | UNTIED_HEAD

    def test_copies_in_the_file_are_fine(self, tmp_path):
        arrays = values(self.TIED)
        copies = {
            "cls.predictions.decoder.weight": arrays["bert." + WORDS],
            "cls.predictions.decoder.bias": arrays["cls.predictions.bias"],
        }
        check_same(load(tmp_path, arrays | copies, self.TIED), arrays)

    def test_copy_stands_in_for_an_absent_original(self, tmp_path):
        arrays = values(self.TIED)
        in_file = dict(arrays)
        in_file["cls.predictions.decoder.weight"] = in_file.pop("bert." + WORDS)
        in_file["cls.predictions.decoder.bias"] = in_file.pop("cls.predictions.bias")
        check_same(load(tmp_path, in_file, self.TIED), arrays)

    @pytest.mark.parametrize("copy", ["cls.predictions.decoder.weight", "cls.predictions.decoder.bias"])
    def test_copy_that_differs_is_an_error(self, tmp_path, copy):
        arrays = values(self.TIED)
        arrays[copy] = np.zeros(UNTIED_HEAD[copy], np.float32)
        with pytest.raises(CheckpointError, match=rf"set tie_word_embeddings to false .*: {copy} and "):
            load(tmp_path, arrays, self.TIED)

    def test_encoder_alone_does_not_care(self, tmp_path):
        arrays = values(self.UNTIED)
        check_same(load(tmp_path, arrays, ENCODER), {name: arrays["bert." + name] for name in ENCODER})

    def test_untied_reads_both(self, tmp_path):
        arrays = values(self.UNTIED)
        check_same(load(tmp_path, arrays, self.UNTIED), arrays)

    def test_untied_ignores_the_unused_bias_that_transformers_saves(self, tmp_path):
        arrays = values(self.UNTIED)
        check_same(load(tmp_path, arrays | {"cls.predictions.bias": np.zeros(7, np.float32)}, self.UNTIED), arrays)

    def test_untied_takes_the_bias_by_its_older_name(self, tmp_path):
        arrays = values(self.UNTIED)
        in_file = dict(arrays)
        in_file["cls.predictions.bias"] = in_file.pop("cls.predictions.decoder.bias")
        check_same(load(tmp_path, in_file, self.UNTIED), arrays)

    def test_untied_needs_its_decoder(self, tmp_path):
        arrays = values(self.UNTIED)
        del arrays["cls.predictions.decoder.weight"]
        with pytest.raises(CheckpointError, match=r"missing tensors \(1\): cls\.predictions\.decoder\.weight"):
            load(tmp_path, arrays, self.UNTIED)


class TestProblems:
    def test_all_are_named_in_one_error(self, tmp_path):
        arrays = values(ENCODER)
        del arrays[NORM]
        arrays[WORDS] = np.zeros((8, 3), np.float32)
        arrays["encoder.layer.1.output.dense.bias"] = np.zeros(3, np.float32)
        arrays["encoder.layer.0.output.dense.bias"] = np.zeros(3, np.int8)
        with pytest.raises(CheckpointError) as caught:
            load(tmp_path, arrays, ENCODER)
        assert str(caught.value).splitlines() == [
            f"{tmp_path}/model.safetensors does not fit the model:",
            f"  missing tensors (1): {NORM}",
            "  tensors the model does not have (1): encoder.layer.1.output.dense.bias",
            f"  tensors of the wrong shape (1): {WORDS}: expected (7, 3), found (8, 3)",
            "  tensors that are neither floating point nor int8 matrices (1): encoder.layer.0.output.dense.bias: I8",
        ]

    def test_long_lists_are_cut(self, tmp_path):
        expected = ENCODER | {f"encoder.layer.{layer}.output.dense.weight": (3, 3) for layer in range(13)}
        with pytest.raises(CheckpointError, match=r"missing tensors \(13\): .*layer\.9\.output.*, and 3 more"):
            load(tmp_path, values(ENCODER), expected)

    def test_wrong_shape_names_the_spelling_of_the_file(self, tmp_path):
        arrays = values(ENCODER)
        arrays["bert.embeddings.LayerNorm.gamma"] = np.zeros(4, np.float32)
        del arrays[NORM]
        with pytest.raises(CheckpointError, match=r"weight \(as bert\.embeddings\.LayerNorm\.gamma\): expected \(3,\)"):
            load(tmp_path, arrays, ENCODER)

    def test_same_parameter_twice(self, tmp_path):
        arrays = values(ENCODER) | {"embeddings.LayerNorm.gamma": np.zeros(3, np.float32)}
        with pytest.raises(CheckpointError, match=r"stored twice \(1\): embeddings\.LayerNorm\.weight \(as .* and as "):
            load(tmp_path, arrays, ENCODER)

    def test_two_encoders_in_a_file(self, tmp_path):
        arrays = {prefix + name: array for prefix in ("query.", "passage.") for name, array in values(ENCODER).items()}
        with pytest.raises(CheckpointError, match=r"holds 2 encoders, expected one: passage\.\*, query\.\*"):
            load(tmp_path, arrays, ENCODER)

    def test_unknown_tensor(self, tmp_path):
        with pytest.raises(CheckpointError, match=r"the model does not have \(1\): lm_head\.bias"):
            load(tmp_path, values(ENCODER | {"lm_head.bias": (7,)}), ENCODER)

    def test_scalar_is_not_one_element(self, tmp_path):
        arrays = values(ENCODER) | {NORM: np.full((), 1, np.float32)}
        with pytest.raises(CheckpointError, match=r"expected \(3,\), found \(\)"):
            load(tmp_path, arrays, ENCODER)


class TestDtype:
    def test_is_the_stored_one(self, tmp_path):
        arrays = values(ENCODER)
        arrays[WORDS] = arrays[WORDS].astype(np.float16)
        arrays[NORM] = arrays[NORM].astype(ml_dtypes.bfloat16)
        found = load(tmp_path, arrays, ENCODER)
        assert found[WORDS].dtype == np.float16 and found[NORM].dtype == ml_dtypes.bfloat16
        check_same(found, arrays)

    def test_nothing_is_copied(self, tmp_path):
        found = load(tmp_path, values(ENCODER), ENCODER)
        assert not found[WORDS].flags.owndata and not found[WORDS].flags.writeable


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

    def test_unused_ones_are_left_unread(self, tmp_path):
        check_same(load(tmp_path, self.stored(), ENCODER), {name: self.stored()[name] for name in ENCODER})

    @pytest.mark.parametrize(
        "changes, problem",
        [
            ({"scale": None}, r"scales \(.*\) are missing or wrong \(1\): pooler\.dense\.weight: no scale"),
            ({"scale": np.zeros(3, np.float32)}, r"dense\.weight: expected \(3, 1\) F32, found \(3,\) F32"),
            ({"scale": np.zeros((4, 1), np.float32)}, r"dense\.weight: expected \(3, 1\) F32, found \(4, 1\) F32"),
            ({"scale": np.zeros((3, 1), np.int32)}, r"dense\.weight: expected \(3, 1\) F32, found \(3, 1\) I32"),
            (
                {"weight": np.zeros((3, 4), np.int8)},
                r"shape \(1\): pooler\.dense\.weight: expected \(3, 3\), found",
            ),
            ({"weight": np.zeros((3, 3), np.uint8)}, r"neither floating point nor int8 matrices \(1\): .*weight: U8"),
            ({"weight": np.zeros((3, 3), np.float32)}, r"does not have \(1\): pooler\.dense\.weight_scale"),
        ],
    )
    def test_what_is_wrong_is_told(self, tmp_path, changes, problem):
        with pytest.raises(CheckpointError, match=problem):
            load(tmp_path, self.stored(**changes), ENCODER | POOLER)
