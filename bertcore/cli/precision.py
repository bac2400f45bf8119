"""Tell what low precision costs on texts of your own: how far embeddings and hidden states move from float32, whether
nearest texts and predicted words stay the same, and what is won in size and speed.

The texts are lines, as for `bertcore embed`; repeated ones count once. The cosine is that of a text's embedding in low
precision with its embedding in float32. Speed is the median, over groups of texts, of the time in float32 over the time
in low precision, measured in turns."""

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from bertcore import kernels
from bertcore.arguments import INT8
from bertcore.cli.common import MODEL_HELP, CommandError, chosen_backend, model_folder
from bertcore.cli.lines import input_stream, read_lines

HELP = "compare low precision with float32 on your texts"
EXAMPLES = """\
examples:
  bertcore precision demo < texts.txt
  bertcore precision bert-base-uncased/ --texts texts.txt --dtype int8 --json"""

GROUP = 32  # texts that are embedded at once, and timed
LOW = ["bfloat16", *INT8]
SHOWN = 60  # characters of the worst text in the table


@dataclass(frozen=True)
class Comparison:
    """A model in low precision beside itself in float32.

    Attributes:
        dtype: of the model.
        megabytes: the size of its tensors, 10^6 bytes.
        speed: how many times as fast as float32.
        cosine_mean, cosine_percentile_1, cosine_worst: of the embeddings with those in float32.
        worst_text: the text with the worst cosine.
        nearest_agreement: the share of texts whose nearest other text is the same; None with fewer than three texts.
        hidden_error: the length of the difference of all hidden states, relative to their length.
        word_agreement: the share of tokens at which the masked-LM head puts the same word first; None without a head.
    """

    dtype: str
    megabytes: float
    speed: float
    cosine_mean: float
    cosine_percentile_1: float
    cosine_worst: float
    worst_text: str
    nearest_agreement: float | None
    hidden_error: float
    word_agreement: float | None


ROWS = {
    "megabytes": ("size, MB", ".1f"),
    "speed": ("speed, times that of float32", ".2f"),
    "cosine_mean": ("cosine, mean", ".5f"),
    "cosine_percentile_1": ("cosine, 1st percentile", ".5f"),
    "cosine_worst": ("cosine, worst text", ".5f"),
    "nearest_agreement": ("same nearest text", ".2%"),
    "hidden_error": ("hidden states, relative error", ".2e"),
    "word_agreement": ("same first word (masked LM)", ".2%"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument("--texts", metavar="FILE", default="-", help="file of texts (default: -, stdin)")
    parser.add_argument("--dtype", nargs="+", choices=LOW, default=LOW[:2], help=f"default: {LOW[0]} and {LOW[1]}")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> None:
    """Run the command."""
    folder = model_folder(args.model)
    with input_stream(args.texts) as (stream, name):
        texts = list(dict.fromkeys(read_lines(stream, name)))
    if not texts:
        raise CommandError(f"{name} holds no texts")
    with chosen_backend(args):
        size, comparisons = compare(folder, texts, list(dict.fromkeys(args.dtype)))
    if args.json:
        found = {"texts": len(texts), "float32": {"megabytes": size}} | {
            each.dtype: asdict(each) for each in comparisons
        }
        print(json.dumps(found, ensure_ascii=False))
    else:
        print(f"{len(texts)} different texts\n\n{table(size, comparisons)}")


def compare(folder: Any, texts: list[str], dtypes: list[str]) -> tuple[float, list[Comparison]]:
    """The size of the model in float32 in megabytes, and its comparison with each of `dtypes`."""
    from bertcore.tasks.sentence_encoder import SentenceEncoder

    exact = SentenceEncoder(folder, dtype="float32")
    found = [_comparison(folder, exact, dtype, texts) for dtype in dtypes]
    return _megabytes(exact.model), found


def _comparison(folder: Any, exact: Any, dtype: str, texts: list[str]) -> Comparison:
    import numpy as np

    from bertcore.tasks.sentence_encoder import SentenceEncoder
    from bertcore.tasks.similarity import pairwise_similarity

    low = SentenceEncoder(folder, dtype=dtype)
    speed, expected, found = _embed_in_turns(exact, low, texts)
    cosines = pairwise_similarity("cosine", expected, found)
    worst = int(cosines.argmin())
    return Comparison(
        dtype=dtype,
        megabytes=_megabytes(low.model),
        speed=speed,
        cosine_mean=float(cosines.mean()),
        cosine_percentile_1=float(np.percentile(cosines, 1)),
        cosine_worst=float(cosines[worst]),
        worst_text=texts[worst],
        nearest_agreement=float((_nearest(expected) == _nearest(found)).mean()) if len(texts) > 2 else None,
        hidden_error=_hidden_error(exact, low, texts),
        word_agreement=_word_agreement(exact, dtype, texts),
    )


def _megabytes(model: Any) -> float:
    return sum(array.nbytes for parameter in model.parameters() for _, array in parameter.tensors()) / 1e6


def _embed_in_turns(exact: Any, low: Any, texts: list[str]) -> tuple[float, Any, Any]:
    """How many times as fast `low` is as `exact`, and the embeddings of both in float64."""
    import numpy as np

    for encoder in (exact, low):
        encoder.encode(texts[:GROUP], show_progress=False)  # what is prepared or compiled at first is not timed
    embeddings: tuple[list, list] = ([], [])
    ratios = []
    for group in _grouped(texts):
        seconds = []
        for encoder, found in zip((exact, low), embeddings, strict=True):
            start = time.perf_counter()
            found.append(encoder.encode(group, show_progress=False))
            seconds.append(time.perf_counter() - start)
        ratios.append(seconds[0] / seconds[1])
    return statistics.median(ratios), *(np.concatenate(found).astype(np.float64) for found in embeddings)


def _grouped(texts: list[str]) -> Iterator[list[str]]:
    return (texts[first : first + GROUP] for first in range(0, len(texts), GROUP))


def _nearest(embeddings: Any) -> Any:
    """The index of the nearest other row (by cosine) to each row."""
    import numpy as np

    from bertcore.tasks.search import semantic_search

    found = semantic_search(embeddings, embeddings, top_k=2)  # one of the two may be the row itself
    return np.array(
        [next(each["corpus_id"] for each in two if each["corpus_id"] != row) for row, two in enumerate(found)]
    )


def _ids(encoder: Any, texts: list[str]) -> list[Any]:
    return [ids for ids, _ in encoder.tokenize(texts)]


def _hidden_error(exact: Any, low: Any, texts: list[str]) -> float:
    import numpy as np

    difference = length = 0.0
    for group in _grouped(texts):
        ids = _ids(exact, group)
        expected, found = (
            kernels.to_host(each.model.encode_packed(ids)[0]).astype(np.float64) for each in (exact, low)
        )
        difference += np.square(found - expected).sum()
        length += np.square(expected).sum()
    return float(np.sqrt(difference / length)) if length else 0.0


def _word_agreement(exact: Any, dtype: str, texts: list[str]) -> float | None:
    from bertcore import AutoModelForMaskedLM
    from bertcore.models.model import NewlyInitialisedWarning
    from bertcore.models.with_heads import head_specs

    model_folder = exact.settings.model_folder
    if "masked_lm" not in head_specs(exact.model.config):
        return None
    with warnings.catch_warnings():  # that there is no head is an answer here
        warnings.simplefilter("ignore", NewlyInitialisedWarning)
        models = [AutoModelForMaskedLM.from_pretrained(model_folder, dtype=each) for each in ("float32", dtype)]
    if models[0].newly_initialised:
        return None
    same = tokens = 0
    for text in texts:  # one by one: a score for each word of the vocabulary at each token takes memory
        expected, found = (kernels.to_host(model(_ids(exact, [text])).logits)[0].argmax(axis=-1) for model in models)
        same += int((expected == found).sum())
        tokens += len(expected)
    return same / tokens


def table(size: float, comparisons: list[Comparison]) -> str:
    """The comparisons side by side, and the worst text of each."""
    lines = [f"{'':<30}{'float32':>10}" + "".join(f"{each.dtype:>10}" for each in comparisons)]
    for key, (title, form) in ROWS.items():
        values = [getattr(each, key) for each in comparisons]
        if any(value is not None for value in values):
            first = {"megabytes": format(size, form), "speed": "1.00"}.get(key, "")
            lines.append(f"{title:<30}{first:>10}" + "".join(f"{format(value, form):>10}" for value in values))
    lines += [""] + [f"worst text in {each.dtype}: {_shortened(each.worst_text)}" for each in comparisons]
    return "\n".join(lines)


def _shortened(text: str) -> str:
    return repr(text if len(text) <= SHOWN else text[: SHOWN - 3] + "...")
