"""A persistent vector index: memory-mapped files, searched exactly or by codes with rescoring.

A folder has index.json (version, dimension, precision, and the size and SHA-256 of every file) and, in parts/, arrays
in NumPy's format. `build` and each `add` write one part. Files appear together with the index.json that names them, or
not at all, and are never changed.
"""

import contextlib
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertcore.arguments import as_float32, check_count, check_path
from bertcore.checkpoint.files import (
    CheckpointError,
    NpyStream,
    digest_of,
    listed,
    locked,
    made_folder,
    map_npy,
    naming,
    read_json_object,
    replacing,
)
from bertcore.kernels import checks
from bertcore.kernels.arrays import ArrayLike
from bertcore.tasks.quantization import Codes
from bertcore.tasks.search import BestRows, best_codes, check_table, multiplier, rescored
from bertcore.tasks.similarity import normalized
from bertcore.tasks.texts import checked_text

NAME, PARTS, VERSION = "index.json", "parts", 1
PRECISIONS = ("float32", "float16", "int8", "binary")
SAMPLE = 1 << 14  # first rows, from which the ranges and the center are computed
BLOCK = 1 << 23  # numbers of rows that are multiplied at once
ROWS = 4096  # written at once
FLOATS = {"float32": "<f4", "float16": "<f2"}


class VectorIndex:
    """An index of vectors in a folder, opened without reading the vectors.

        index = VectorIndex.build("notes/", encoder.encode_document_stream(texts), texts=texts, precision="binary")
        index = VectorIndex("notes/")
        index.search(encoder.encode_query(["how do cats rest"]), top_k=3)
        index.add(encoder.encode_document(more), texts=more)

    Args:
        folder: the folder that `build` made.

    Attributes:
        folder: the folder.
        dimension: the length of a vector.
        precision: "float32", "float16", "int8" or "binary": the form that is searched.
        rescore_precision: "float32", "float16" or "int8": the form by which the best are rescored; None for the codes.
        similarity: "cosine" or "dot".
        metadata: the mapping of texts that was passed to `build`.
        has_texts: whether the index also stores the texts.

    Raises CheckpointError for a folder without an index, for files that are missing or have the wrong size or form, and
    for unknown versions and settings. Nothing in the folder is run or unpickled.
    """

    def __init__(self, folder: str | os.PathLike[str]):
        self.folder = check_path("folder", folder)
        if not self.folder.is_dir():
            what = "is a file" if self.folder.exists() else "does not exist"
            raise CheckpointError(f"{self.folder} {what}, expected the folder of an index")
        self._open(read_json_object(self.folder / NAME))

    def _open(self, facts: Mapping[str, Any]) -> None:
        if facts.get("format") != "bertcore index" or facts.get("version") != VERSION:
            found = f"format {facts.get('format')!r:.40}, version {facts.get('version')!r:.40}"
            raise CheckpointError(f"{self.folder / NAME} has {found}, expected 'bertcore index', version {VERSION}")
        try:
            self.dimension = check_count("dimension", facts.get("dimension"), most=1 << 20)
            self.precision, self.similarity = facts.get("precision"), facts.get("similarity")
            self.rescore_precision = facts.get("rescore_precision")
            _check_settings(self.precision, self.similarity, self.rescore_precision)
            self.has_texts = checks.boolean("has_texts", facts.get("has_texts"))
            self.metadata = _checked_metadata(facts.get("metadata"))
            self._codes = Codes.read(facts, self.dimension)
            self._facts, parts = dict(facts), facts.get("parts")
            if not isinstance(parts, list) or not parts or not all(isinstance(part, dict) for part in parts):
                raise TypeError("parts is not a list of objects, expected one of each addition")
            self._parts = [self._part(number, part) for number, part in enumerate(parts)]
        except CheckpointError:
            raise
        except (ValueError, TypeError, OverflowError) as error:
            raise CheckpointError(f"{self.folder / NAME}: {error}") from error
        self._starts = np.cumsum([0, *(len(part["ids"]) for part in self._parts)])

    def _part(self, number: int, facts: Mapping[str, Any]) -> dict[str, np.ndarray]:
        rows, files = check_count("rows", facts.get("rows")), facts.get("files")
        sizes = check_count("characters", facts.get("characters"), 0)
        forms = self._forms(rows, sizes)
        if not isinstance(files, dict) or files.keys() != forms.keys():
            raise ValueError(f"files of part {number} is {files!r:.80}, expected {', '.join(forms)}")
        found = {}
        for kind, (dtype, shape) in forms.items():
            found[kind] = map_npy(file := self._file(number, kind), dtype, shape)
            noted = files[kind].get("bytes") if isinstance(files[kind], dict) else None
            if (size := file.stat().st_size) != noted:
                raise CheckpointError(f"{file} has {size} bytes, expected {noted!r:.40}")
        return found

    def _file(self, number: int, kind: str, folder: Path | None = None) -> Path:
        return (folder or self.folder) / PARTS / f"{number:06}-{kind}.npy"

    def _forms(self, rows: int, characters: int) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return the dtype and shape of each array of a part."""
        forms: dict[str, tuple[str, tuple[int, ...]]] = {"ids": ("<i8", (rows,))}
        if self.precision == "binary":
            forms["bits"] = "|u1", (rows, -(-self.dimension // 8))
        for kept in {self.precision, self.rescore_precision} - {"binary", None}:
            forms[kept] = FLOATS.get(kept, "|i1"), (rows, self.dimension)
        if self.has_texts:
            forms |= {"texts": ("|u1", (characters,)), "offsets": ("<i8", (rows + 1,))}
        return forms

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __repr__(self) -> str:
        form = f"{len(self)} vectors of {self.dimension}, {self.precision}"
        return f"VectorIndex({str(self.folder)!r}: {form}, rescored by {self.rescore_precision})"

    @classmethod
    def build(
        cls,
        folder: str | os.PathLike[str],
        embeddings: ArrayLike,
        *,
        ids: Iterable[int] | None = None,
        texts: Iterable[str] | None = None,
        precision: str = "float32",
        rescore_precision: str | None = "default",
        similarity: str = "cosine",
        metadata: Mapping[str, str] | None = None,
    ) -> "VectorIndex":
        """Build an index in a new or empty folder, in bounded memory, and open it. It appears whole or not at all.

        Args:
            folder: the folder of the index.
            embeddings: an array (rows, dim), or an iterable of rows (dim,) or blocks of rows.
            ids: a unique integer for each row; by default counted from 0. An iterable is read along with the rows.
            texts: a text for each row, which results then include. An iterable is read along with the rows.
            precision: the form that is searched: "float32" or "float16" numbers, which are multiplied exactly; "int8":
                the range of each dimension in 256 steps; "binary": for each dimension whether it is above its mean.
                Ranges and means come from the first 16,384 rows; with fewer than 100, all dimensions share one range.
            rescore_precision: the form by which the best are rescored: "float32", "float16" or "int8", or None to store
                only the codes (default: "int8" for "binary", else None).
            similarity: "cosine", for which rows are scaled to length 1, or "dot".
            metadata: texts by name to store in index.json, such as the model.

        Raises:
            ValueError: for a folder that is not empty, no rows, rows of different lengths, inf or NaN, repeated ids,
                and a number of ids or texts that differs from the number of rows.
            TypeError: for non-numbers, and for ids and texts of another type.
            OSError: if the folder cannot be written.
        """
        checks.choice("precision", precision, PRECISIONS)
        if rescore_precision == "default":
            rescore_precision = "int8" if precision == "binary" else None
        _check_settings(precision, similarity, rescore_precision)
        index, path = cls.__new__(cls), check_path("folder", folder)
        index.folder, index.precision, index.similarity = path, precision, similarity
        index.rescore_precision, index.has_texts = rescore_precision, texts is not None
        index.metadata = _checked_metadata(metadata)
        existed = path.exists()
        made_folder(folder)
        if held := sorted(file.name for file in path.iterdir() if not file.name.startswith(".")):
            raise ValueError(f"folder is {path}, which holds {listed(held)}, expected a new or empty one")
        try:
            blocks = _row_blocks(embeddings, ids, texts)
            first = list(itertools.islice(blocks, SAMPLE // ROWS))
            index.dimension, index._starts = first[0][0].shape[1], np.zeros(1, np.int64)
            sample = np.concatenate([index._scaled(rows) for rows, *_ in first])
            index._codes, index._parts = Codes.of_sample(sample), []
            index._facts = {
                "format": "bertcore index", "version": VERSION, "dimension": index.dimension, "similarity": similarity,
                "precision": precision, "rescore_precision": rescore_precision, "has_texts": index.has_texts,
                "metadata": index.metadata, **index._codes.facts(), "parts": [],
            }  # fmt: skip
            index._append(itertools.chain(first, blocks))
        except BaseException:
            if not existed:
                with contextlib.suppress(OSError):
                    path.rmdir()
            raise
        return index

    def add(
        self, embeddings: ArrayLike, *, ids: Iterable[int] | None = None, texts: Iterable[str] | None = None
    ) -> "VectorIndex":
        """Append rows; arguments and errors are as for `build`.

        Processes that add at the same time wait for each other. An index that another process has opened does not
        change there. Returns the index itself.
        """
        if (texts is not None) != self.has_texts:
            found, wanted = ("None", "a text for each row") if self.has_texts else ("given", "None")
            raise ValueError(f"texts is {found}, expected {wanted}, as in the call of `build`")
        with locked(self.folder / PARTS):
            self._open(read_json_object(self.folder / NAME))  # other processes may have added rows
            self._append(_row_blocks(embeddings, ids, texts, len(self)))
        return self

    def _append(self, blocks: Iterable[tuple[np.ndarray, np.ndarray, list[bytes]]]) -> None:
        """Write one part, and the index.json with it."""
        number = len(self._parts)
        with replacing(self.folder, NAME) as new, contextlib.ExitStack() as files:
            self._file(0, "", new).parent.mkdir()
            arrays = {}
            for kind, (dtype, shape) in self._forms(0, 0).items():
                with naming(self._file(number, kind)):
                    stream = files.enter_context(self._file(number, kind, new).open("wb"))
                arrays[kind] = NpyStream(stream, dtype, shape[1:])
            found, end = [part["ids"] for part in self._parts], 0
            if self.has_texts:
                arrays["offsets"].write(np.zeros(1))
            for rows, ids, texts in blocks:
                if rows.shape[1] != self.dimension:
                    raise ValueError(f"embeddings has rows of {rows.shape[1]} numbers, expected {self.dimension}")
                found.append(ids)
                rows = self._scaled(rows)
                for kind in arrays.keys() - {"texts", "offsets"}:
                    arrays[kind].write(ids if kind == "ids" else self._stored(kind, rows))
                if self.has_texts:
                    arrays["texts"].write(np.frombuffer(b"".join(texts), np.uint8))
                    offsets = end + np.cumsum(list(map(len, texts)))
                    arrays["offsets"].write(offsets)
                    end = int(offsets[-1])
            values, counts = np.unique(np.concatenate(found), return_counts=True)
            if counts.max() > 1:
                twice = f"{values[counts.argmax()]} {counts.max()} times"
                raise ValueError(f"ids has {twice}, expected each once in the index")
            for array in arrays.values():
                array.finish()
            files.close()
            made = {kind: self._file(number, kind, new) for kind in arrays}
            noted = {kind: {"bytes": file.stat().st_size, "sha256": digest_of(file)} for kind, file in made.items()}
            part = {"rows": arrays["ids"].rows, "characters": end, "files": noted}
            facts = {**self._facts, "parts": [*self._facts["parts"], part]}
            (new / NAME).write_text(json.dumps(facts, indent=1), encoding="utf-8")
        self._open(facts)

    def _scaled(self, rows: np.ndarray) -> np.ndarray:
        """Return rows, float32, in the form that is multiplied; squares are computed in float64."""
        return normalized(rows.astype(np.float64)).astype(np.float32) if self.similarity == "cosine" else rows

    def _stored(self, kind: str, rows: np.ndarray) -> np.ndarray:
        """Return rows in one of the stored forms."""
        if kind in FLOATS:
            with np.errstate(over="ignore"):
                made = rows.astype(FLOATS[kind])
            if not np.isfinite(made).all():
                raise ValueError(f"embeddings holds numbers beyond the range of {kind}, expected smaller ones")
            return made
        return self._codes.bits(rows) if kind == "bits" else self._codes.int8(rows)

    def search(
        self,
        queries: np.ndarray,
        top_k: int = 10,
        *,
        rescore: bool = True,
        rescore_multiplier: int | None = None,
        query_chunk_size: int = 100,
    ) -> list[list[dict[str, Any]]]:
        """Find the rows nearest to each query.

        The search runs on the CPU, in NumPy if that is the active backend; vectors are read as they are needed.

        Args:
            queries: (queries, dim), or (dim,) for one.
            top_k: number of results per query; all rows if there are fewer.
            rescore: with codes, rescore the best by `rescore_precision`, or by the codes if it is None.
            rescore_multiplier: how many times `top_k` rows are rescored (default: 4, or 64 for bits).
            query_chunk_size: queries compared at once; does not change the result.

        Returns:
            For each query a list of {"corpus_id": id, "score": float}, best first, ties by row; also with "text" if the
            index stores texts. Without rescoring, a score is an estimate of the similarity.

        Raises ValueError for a wrong dimension, inf or NaN, and sizes that are not positive; TypeError for non-numbers.
        """
        queries = as_float32("queries", check_table("queries", queries))
        if queries.shape[1] != self.dimension:
            raise ValueError(f"queries has shape {queries.shape}, expected (queries, {self.dimension})")
        again = multiplier(self.precision, rescore_multiplier)
        check_count("top_k", top_k)
        step, found = check_count("query_chunk_size", query_chunk_size), []
        for start in range(0, len(queries), step):
            some = self._scaled(queries[start : start + step])
            if self.precision in FLOATS:
                scores, rows = self._multiplied(some, top_k)
            else:
                count = min(top_k * again if rescore else top_k, len(self))
                arrays = [part["bits" if self.precision == "binary" else "int8"] for part in self._parts]
                scores, rows = best_codes(some, arrays, self._codes, count)
                if rescore:
                    scores, rows = rescored(some, rows, self._decoded, top_k)
            found += [self._results(*pair) for pair in zip(scores.tolist(), rows.tolist(), strict=True)]
        return found

    def _multiplied(self, queries: np.ndarray, top_k: int) -> tuple[np.ndarray, np.ndarray]:
        best, step = BestRows(len(queries), top_k), max(1, BLOCK // self.dimension)
        for part in self._parts:
            for start in range(0, len(part["ids"]), step):
                rows = part[self.precision][start : start + step]
                best.add(queries @ rows.astype(np.float32, copy=False).T)
        return best.scores, best.indices

    def _decoded(self, rows: np.ndarray) -> np.ndarray:
        """Return the vectors of some rows, in the form for rescoring, as float32."""
        kind = self.rescore_precision or ("bits" if self.precision == "binary" else self.precision)
        parts = np.searchsorted(self._starts, rows, side="right") - 1
        made = np.empty((len(rows), self.dimension), np.float32)
        for number in np.unique(parts).tolist():
            here = parts == number
            taken = self._parts[number][kind][rows[here] - self._starts[number]]
            made[here] = taken if kind in FLOATS else self._codes.decoded(taken)
        return made

    def vectors(self, rows: int = ROWS) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield blocks of ids, int64 (rows,), and vectors, float32 (rows, dim), from the most exact stored form."""
        for number, start in enumerate(self._starts[:-1].tolist()):
            for first in range(0, len(self._parts[number]["ids"]), check_count("rows", rows)):
                ids = self._parts[number]["ids"][first : first + rows]
                yield np.array(ids), self._decoded(start + first + np.arange(len(ids)))

    def texts(self, rows: Sequence[int]) -> list[str]:
        """Return the texts of rows by their indices. Raises ValueError if the index stores no texts."""
        if not self.has_texts:
            raise ValueError("the index stores no texts, expected one that was built with texts")
        found = []
        for row in rows:
            row = check_count("row", row, 0, len(self) - 1)
            number = int(np.searchsorted(self._starts, row, side="right")) - 1
            part, place = self._parts[number], row - self._starts[number]
            first, end = (int(offset) for offset in part["offsets"][place : place + 2])
            if not 0 <= first <= end <= len(part["texts"]):
                raise CheckpointError(f"{self._file(number, 'offsets')} does not fit the texts: it was altered")
            try:
                found.append(part["texts"][first:end].tobytes().decode("utf-8"))
            except UnicodeDecodeError as error:
                raise CheckpointError(f"{self._file(number, 'texts')} is not UTF-8: it was altered") from error
        return found

    def _results(self, scores: list[float], rows: list[int]) -> list[dict[str, Any]]:
        parts = np.searchsorted(self._starts, rows, side="right") - 1
        ids = [int(self._parts[part]["ids"][row - self._starts[part]]) for part, row in zip(parts, rows, strict=True)]
        found = [{"corpus_id": each, "score": score} for each, score in zip(ids, scores, strict=True)]
        if self.has_texts:
            for entry, text in zip(found, self.texts(rows), strict=True):
                entry["text"] = text
        return found

    def verify(self) -> None:
        """Read every file. Raises CheckpointError for a file whose SHA-256 differs from the one in index.json."""
        for number, part in enumerate(self._facts["parts"]):
            for kind, noted in part["files"].items():
                if digest_of(file := self._file(number, kind)) != noted.get("sha256"):
                    raise CheckpointError(f"{file} was altered: its SHA-256 is not the one in {NAME}")


def merged(found: Sequence[list[list[dict[str, Any]]]], top_k: int = 10) -> list[list[dict[str, Any]]]:
    """Merge the results of several indices, shards of one corpus; each has a list for each query."""
    check_count("top_k", top_k)
    return [
        sorted(itertools.chain.from_iterable(each), key=lambda entry: -entry["score"])[:top_k]
        for each in zip(*found, strict=True)
    ]


def _check_settings(precision: Any, similarity: object, rescore_precision: object) -> None:
    checks.choice("precision", precision, PRECISIONS)
    checks.choice("similarity", similarity, ("cosine", "dot"))
    kept = {"int8": ("float32", "float16", None), "binary": ("float32", "float16", "int8", None)}
    checks.choice("rescore_precision", rescore_precision, kept.get(precision, (None,)))


def _checked_metadata(metadata: Mapping[str, str] | None) -> dict[str, str]:
    found = {} if metadata is None else metadata
    if not isinstance(found, Mapping) or not all(isinstance(text, str) for pair in found.items() for text in pair):
        raise TypeError(f"metadata is {metadata!r:.80}, expected texts by name")
    return dict(found)


def _row_blocks(
    embeddings: ArrayLike, ids: Iterable[int] | None, texts: Iterable[str] | None, start: int = 0
) -> Iterator[tuple[np.ndarray, np.ndarray, list[bytes]]]:
    """Yield rows, float32 (rows, dim), with as many ids and encoded texts."""
    for name, given in (("ids", ids), ("texts", texts)):
        if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable | None):
            raise TypeError(f"{name} is {type(given).__name__}, expected one for each row")
    iterators = {name: iter(given) for name, given in (("ids", ids), ("texts", texts)) if given is not None}
    done = 0
    for rows in _rows(embeddings):
        some = {name: list(itertools.islice(given, len(rows))) for name, given in iterators.items()}
        for name, found in some.items():
            if len(found) != len(rows):
                raise ValueError(f"{name} has {done + len(found)} entries, expected one for each row")
        numbers, words = some.get("ids", start + done + np.arange(len(rows))), some.get("texts", ())
        made = np.array([_id(done + at, each) for at, each in enumerate(numbers)], np.int64)
        yield rows, made, [checked_text(f"texts[{done + at}]", each).encode() for at, each in enumerate(words)]
        done += len(rows)
    for name, rest in iterators.items():
        if next(rest, None) is not None:
            raise ValueError(f"{name} has more than {done} entries, expected one for each row")
    if not done:
        raise ValueError("embeddings holds no rows, expected one or more")


def _id(place: int, value: object) -> int:
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise TypeError(f"ids[{place}] is {value!r:.80}, expected an integer")
    if not -(1 << 63) <= value < 1 << 63:
        raise ValueError(f"ids[{place}] is {value}, expected an integer of 64 bits")
    return int(value)


def _rows(embeddings: Any) -> Iterator[np.ndarray]:
    """Yield blocks of ROWS rows, float32, the last of fewer."""
    if hasattr(embeddings, "shape") and len(embeddings.shape) == 2:
        table = embeddings
        embeddings = (table[at : at + ROWS] for at in range(0, len(table), ROWS))
    elif isinstance(embeddings, str | bytes | Mapping) or not isinstance(embeddings, Iterable):
        raise TypeError(f"embeddings is {type(embeddings).__name__}, expected an array (rows, dim), or rows")
    waiting: list[np.ndarray] = []
    count = 0
    for place, some in enumerate(embeddings):
        if isinstance(some, int | float | np.number):
            raise ValueError(f"embeddings[{place}] is one number, expected a row (dim,) or rows (rows, dim)")
        rows = check_table(f"embeddings[{place}]", some)
        if not rows.shape[1] or (waiting and rows.shape[1] != waiting[0].shape[1]):
            expected = str(waiting[0].shape[1]) if waiting else "one or more"
            raise ValueError(f"embeddings[{place}] has {rows.shape[1]} numbers, expected {expected}")
        waiting.append(as_float32(f"embeddings[{place}]", rows))
        count += len(rows)
        if count >= ROWS:
            joined, whole = np.concatenate(waiting), count - count % ROWS
            yield from (joined[at : at + ROWS] for at in range(0, whole, ROWS))
            waiting, count = [joined[whole:]], count - whole
    if count:
        yield np.concatenate(waiting)
