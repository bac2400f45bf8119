"""SentencePiece files: their contents, and the ways they can be broken."""

import contextlib
import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bertcore.checkpoint import CheckpointError
from bertcore.tokenization.sentencepiece_file import (
    SentencePieceModel,
    WireError,
    check_charsmap,
    read_fields,
    read_sentencepiece,
)
from tests.refusals import refuses
from tests.tokenization.sentencepiece_writer import (
    BYTE,
    CONTROL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    bytes_field,
    charsmap,
    float_field,
    integer_field,
    model,
    piece,
    varint,
)

UNK = piece("<unk>", kind=UNKNOWN)
PIECES = [UNK, piece("<s>", kind=CONTROL), piece("€", -1.0, USER_DEFINED), piece("\u2581the", -2.5)]
MAP = charsmap({"ﬁ": "fi", "\uff21": "A"})


def read(tmp_path, data):
    (tmp_path / "spiece.model").write_bytes(data)
    return read_sentencepiece(tmp_path / "spiece.model")


class TestWireFormat:
    @given(st.integers(1, 2**29 - 1), st.integers(0, 2**64 - 1), st.binary(max_size=300))
    def test_round_trip(self, number, value, content):
        message = integer_field(number, value) + bytes_field(number, content) + float_field(number, 1.5)
        fixed64 = varint(number << 3 | 1) + bytes(range(8))
        found = list(read_fields(message + fixed64))
        assert found[:2] == [(number, 0, value), (number, 2, content)]
        assert found[2:] == [(number, 5, b"\0\0\xc0\x3f"), (number, 1, bytes(range(8)))]

    @pytest.mark.parametrize(("data", "message"), [
        (b"\x08", "ends within an integer at byte 1"),
        (b"\x08\x80\x80", "ends within an integer at byte 1"),
        (b"\x08" + b"\xff" * 20, "the integer at byte 1 has more than 64 bits"),
        (b"\x08" + b"\xff" * 9 + b"\x02", "the integer at byte 1 has more than 64 bits"),
        (b"\x0a\x05abc", "field 1 at byte 1 has 5 bytes; 3 are left"),
        (b"\x0a" + varint(2**63) + b"abc", "field 1 at byte 1 has 9223372036854775808 bytes; 3 are left"),
        (b"\x0d\0\0", "field 1 at byte 1 has 4 bytes; 2 are left"),
        (b"\x09\0\0", "field 1 at byte 1 has 8 bytes; 2 are left"),
        (b"\x00\x01", "byte 0 starts field 0 of type 0, which does not exist"),
        (b"\x0b", "byte 0 starts field 1 of type 3, which does not exist"),
        (b"\x08\x01\x0e", "byte 2 starts field 1 of type 6, which does not exist"),
    ])  # fmt: skip
    def test_broken(self, data, message):
        refuses(WireError, message, list, read_fields(data))


class TestModel:
    def test_every_field(self, tmp_path):
        normalizer = bytes_field(1, b"nmt") + bytes_field(2, MAP) + integer_field(3, 0)
        found = read(tmp_path, model(PIECES, integer_field(3, 1) + integer_field(35, 1), normalizer))
        assert found == SentencePieceModel(
            pieces=(("<unk>", 0.0), ("<s>", 0.0), ("€", -1.0), ("\u2581the", -2.5)),
            symbols=(("<s>", True), ("€", False)),
            unknown="<unk>",
            charsmap=MAP,
            add_dummy_prefix=False,
            byte_fallback=True,
        )

    def test_defaults(self, tmp_path):
        found = read(tmp_path, model(PIECES) + bytes_field(4, b"self test") + integer_field(200, 7))
        assert (found.charsmap, found.add_dummy_prefix, found.byte_fallback) == (b"", True, False)

    def test_repeated_message_is_concatenated(self, tmp_path):
        """Protocol Buffers join the two parts of a repeated message."""
        data = model(PIECES, integer_field(35, 0)) + bytes_field(2, integer_field(35, 1))
        assert read(tmp_path, data).byte_fallback

    @pytest.mark.parametrize(("data", "message"), [
        (b"", "it has 0 unknown pieces, expected one"),
        (b"{}", "field 15 of type 3"),
        (b"version https://git-lfs.github.com/spec/v1\n", "which does not exist|are left"),
        (model([]), "it has 0 unknown pieces"),
        (model([UNK, piece("<x>", kind=UNKNOWN)]), "it has 2 unknown pieces"),
        (model([UNK, piece("a"), piece("a")]), "a piece occurs twice"),
        (model([UNK, piece("")]), r"pieces\[1\] is empty"),
        (model([UNK, b""]), r"pieces\[1\] is empty"),
        (model([UNK, bytes_field(1, b"\xff\xfe")]), r"pieces\[1\] is not UTF-8"),
        (model([UNK, piece("a", math.nan)]), r"pieces\[1\] has the score nan, expected a finite number"),
        (model([UNK, piece("a", -math.inf)]), r"pieces\[1\] has the score -inf"),
        (model([UNK, piece("a", kind=9)]), r"pieces\[1\] has the type 9, expected 1 to 6"),
        (model([UNK, integer_field(1, 5)]), r"pieces\[1\]\.piece is an integer, expected a length and bytes"),
        (model([UNK, piece("a") + integer_field(2, 5)]), r"pieces\[1\]\.score is an integer, expected 4 bytes"),
        (model([UNK]) + integer_field(1, 3), "model.pieces is an integer"),
        (model([UNK], bytes_field(3, b"x")), "trainer_spec.model_type is a length and bytes, expected an integer"),
        (model([UNK], integer_field(3, 2)), "its model_type is bpe, expected unigram"),
        (model([UNK], integer_field(3, 77)), "its model_type is 77, expected unigram"),
        (model([UNK], integer_field(24, 1)), "its treat_whitespace_as_suffix is true"),
        (model([UNK], b"", integer_field(5, 0)), "its escape_whitespaces is false"),
        (model([UNK], b"", bytes_field(2, b"map")), "its trie has .* bytes"),
    ])  # fmt: skip
    def test_broken(self, tmp_path, data, message):
        refuses(CheckpointError, rf"spiece\.model is not a SentencePiece model: .*({message})", read, tmp_path, data)

    def test_cut_anywhere(self, tmp_path):
        data = model(PIECES, integer_field(3, 1), bytes_field(2, MAP))
        whole = read(tmp_path, data)
        for end in [*range(80), len(data) - 300, len(data) - 1]:
            try:
                found = read(tmp_path, data[:end])
            except CheckpointError:
                continue
            assert found.pieces == whole.pieces[: len(found.pieces)]  # the end of a field: a shorter message

    @settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.data())
    def test_any_byte_changed(self, tmp_path, data):
        original = bytearray(model(PIECES, integer_field(3, 1), integer_field(3, 1)))
        for _ in range(data.draw(st.integers(1, 4))):
            original[data.draw(st.integers(0, len(original) - 1))] = data.draw(st.integers(0, 255))
        with contextlib.suppress(CheckpointError):
            read(tmp_path, bytes(original))

    def test_unreadable_file(self, tmp_path):
        with pytest.raises(CheckpointError, match=r"spiece\.model cannot be read: Is a directory"):
            (tmp_path / "spiece.model").mkdir()
            read_sentencepiece(tmp_path / "spiece.model")

    def test_other_types_of_pieces(self, tmp_path):
        found = read(tmp_path, model([UNK, piece("<0x41>", kind=BYTE), piece("old", kind=UNUSED)]))
        assert [piece for piece, _ in found.pieces] == ["<unk>", "<0x41>", "old"] and not found.symbols


class TestCharsmap:
    def normalized(self, data, text):
        from tokenizers import normalizers

        return normalizers.Precompiled(data).normalize_str(text)

    def test_valid(self):
        check_charsmap(MAP)
        assert self.normalized(MAP, "ﬁne \uff21 B") == "fine A B"
        check_charsmap(charsmap({}))

    @pytest.mark.parametrize(("data", "message"), [
        (b"", "its trie has 0 bytes"),
        (b"\x00\x04\0", "its trie has 1024 bytes, expected a multiple of 4, and at most -1"),
        (MAP[:1000], "its trie has .* bytes, expected a multiple of 4, and at most 996"),
        (b"\x07\0\0\0" + MAP[4:], "its trie has 7 bytes, expected a multiple of 4"),
        (MAP[:-5], r"its trie gives the string at 3; the strings have \d bytes|is not"),
        (MAP[:-3] + b"\xff\xff\0", "its strings are not UTF-8"),
        (MAP[:4] + b"\0\0\xff\xff" + MAP[8:], "its trie leads to unit"),
        (charsmap({"ﬁ": "é"}).replace(b"\0\0\0\x80", b"\1\0\0\x80"), "a string that starts within a character"),
    ])  # fmt: skip
    def test_broken(self, data, message):
        refuses(ValueError, message, check_charsmap, data)

    @settings(max_examples=150)
    @given(st.data())
    def test_valid_maps_do_not_panic(self, data):
        changed = bytearray(MAP)
        used = [place for place in range(4, len(MAP)) if MAP[place]] + [*range(1028, 1100)]
        for _ in range(data.draw(st.integers(1, 5))):
            changed[data.draw(st.sampled_from(used))] = data.draw(st.integers(0, 255))
        try:
            check_charsmap(bytes(changed))
        except ValueError:
            return
        for text in ["ﬁne \uff21 B", "ﬂ", "\uff21\ufb01\ufb02\uff22", "".join(map(chr, range(1, 0x250)))]:
            self.normalized(bytes(changed), text)
