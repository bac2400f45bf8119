"""Embed a corpus with Ray Data's workers, store it in shards of an index, and search all of them.

    python examples/shards.py [--texts 2000] [--workers 2] [--rows 600] [--out shards]

The corpus is in files of JSON lines. Actors embed it, and tasks write each 600 rows as a shard, an index of its own;
both run on any of Ray's machines that share the folder. A query searches all shards at once; their merged results equal
those of one index. A shard appears whole or not at all, so that Ray can safely repeat a task after a failure.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import numpy as np
import ray
from corpora import package_descriptions
from runs import count

from bertcore import SentenceEncoder, VectorIndex
from bertcore.demo_model import demo_model_folder
from bertcore.plugins.ray import BatchEmbedder
from bertcore.tasks.index import merged

FILES, TOP = 4, 5


def write_corpus(folder: Path, texts: list[str]) -> list[str]:
    """Write the texts with their numbers into files of JSON lines, and return their names."""
    folder.mkdir(parents=True)
    for part in range(FILES):
        lines = (json.dumps({"id": number, "text": texts[number]}) for number in range(part, len(texts), FILES))
        (folder / f"{part}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return [str(file) for file in sorted(folder.iterdir())]


def write_shard(batch: dict[str, np.ndarray], folder: str) -> dict[str, np.ndarray]:
    """Write an index of a batch's rows in a folder named after its lowest id."""
    order = np.argsort(batch["id"])
    ids = batch["id"][order].tolist()
    name = Path(folder, f"{ids[0]:09}")
    if not name.exists():
        VectorIndex.build(name, batch["embedding"][order], ids=ids, texts=batch["text"][order].tolist())
    return {"shard": np.array([str(name)]), "rows": np.array([len(ids)])}


@ray.remote
def search_shard(folder: str, queries: np.ndarray) -> list:
    """Return the best results of a shard for each query."""
    return VectorIndex(folder).search(queries, TOP)


def build(files: list[str], model: Path, given: argparse.Namespace) -> dict[str, int]:
    """Embed the files and write the shards; return their numbers of rows by folder."""
    rows = ray.data.read_json(files, override_num_blocks=FILES)
    actors = ray.data.ActorPoolStrategy(size=given.workers)
    rows = rows.map_batches(
        BatchEmbedder, fn_constructor_args=[str(model)], fn_constructor_kwargs={"truncation": True},
        compute=actors, num_cpus=1, batch_size=128,
    )  # fmt: skip
    made = rows.map_batches(write_shard, fn_args=[str(given.out / "shards")], batch_size=given.rows).take_all()
    return {row["shard"]: row["rows"] for row in made}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=count, default=2000, help="the number of texts (default: %(default)s)")
    parser.add_argument("--workers", type=count, default=2, help="actors that embed (default: %(default)s)")
    parser.add_argument("--rows", type=count, default=600, help="rows of a shard, about (default: %(default)s)")
    parser.add_argument("--out", default=Path("shards"), type=Path, help="folder of corpus and shards")
    given = parser.parse_args()
    given.out, model = given.out.absolute(), demo_model_folder()
    shutil.rmtree(given.out, ignore_errors=True)
    described = package_descriptions()[: given.texts]
    files = write_corpus(given.out / "corpus", [long for *_, long in described])

    # Each actor holds a CPU to the end, so tasks that read and write need one more.
    ray.init(num_cpus=given.workers + 1, include_dashboard=False, log_to_driver=False)
    shards = build(files, model, given)
    encoder = SentenceEncoder(model)
    queries = encoder.encode_query([short for _, short, _ in described[:: max(1, given.texts // 100)]])
    found = merged(ray.get([search_shard.remote(folder, queries) for folder in shards]), TOP)
    ray.shutdown()

    whole = encoder.encode_document([long for *_, long in described], truncation=True)
    expected = VectorIndex.build(given.out / "whole", whole).search(queries, TOP)
    same = [[one["corpus_id"] for one in best] == [one["corpus_id"] for one in right]
            for best, right in zip(found, expected, strict=True)]  # fmt: skip
    print(f"{sum(shards.values()):,} texts in {len(shards)} shards by {given.workers} workers")
    print(f"{sum(same)} of {len(same)} queries have the same results, in the same order, as with one index")


if __name__ == "__main__":
    main()
