"""How large what is timed is: as the goals have it, or tiny, to see that the command works."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from bench.texts import ragged_lengths
from bertcore.presets import preset_config
from tests.tiny_families import tiny_config

MODEL = "bert-base-uncased"
PRODUCTS = (4096, 768, 768), (4096, 768, 3072), (4096, 3072, 768), (16, 768, 3072), (16, 3072, 768)


class Sizes(NamedTuple):
    """Rows of each width; products as (tokens, in_features, out_features); tokens of attention, cut into texts of each
    length; batches of models as lengths of texts."""

    row_tokens: int
    widths: tuple[int, ...]
    products: tuple[tuple[int, int, int], ...]
    attention_tokens: int
    heads: int
    head_dim: int
    lengths: tuple[int, ...]
    biased_lengths: tuple[int, ...]
    relative_lengths: tuple[int, ...]
    table_rows: int
    config: Mapping[str, Any]
    batch: tuple[int, ...]
    ragged: tuple[int, ...]
    single: tuple[int, ...]
    seconds: float  # of measuring, for each comparison


def full() -> Sizes:
    return Sizes(
        32 << 10, (768, 1024, 2048, 4096), PRODUCTS,
        16 << 10, 12, 64, (512, 1024, 2048, 4096, 8192), (512, 2048), (512, 2048), 512,
        preset_config(MODEL), (128,) * 32, ragged_lengths(), (128,), 0.7,
    )  # fmt: skip


def tiny() -> Sizes:
    return Sizes(
        10, (39, 64), ((5, 39, 13),), 14, 2, 16, (7,), (7,), (7,), 6, tiny_config(MODEL), (5,) * 3, (1, 5, 2), (4,), 0.0
    )  # fmt: skip
