"""The command `python -m bench.serving`."""

import argparse
import contextlib
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench import machine
from bench.memory import resident
from bench.options import positive
from bench.peers.cases import MODELS
from bench.peers.checkpoint import make_checkpoint
from bench.peers.command import add_common, parse, workdir
from bench.report import Column, append_csv, table
from bench.serving.load import OURS, SERVERS, Client, Load, Server, overhead, put_load, running
from bench.texts import short_texts
from bertcore import SentenceEncoder
from bertcore.demo_model import DemoModelError, demo_model_folder

CSV = Path(__file__).parents[1] / "results" / "serving.csv"
CLIENTS = (1, 8, 32)
TEXTS = 256
ENCODES = 300  # requests in turns with `encode`
VERSIONS = ("sentence-transformers", "transformers", "fastapi", "starlette", "uvicorn")
OK, WRONG = "ok", "wrong"
TOLERANCE = 1e-5  # of an embedding of length 1; two lengths of padding differ by 2e-7 in PyTorch
COLUMNS = (
    "model", "server", "clients", "status", "requests", "rounds", "p50_s", "p99_s", "texts_per_s", "spread",
    "p50_vs_ours", "p99_vs_ours", "texts_per_s_vs_ours", "encode_s", "overhead_s", "resident_mb", "error",
)  # fmt: skip
TABLE = (
    Column("server", "server"),
    Column("clients", "clients", "d"),
    Column("status", "status"),
    Column("p50_s", "p50, ms", ".2f", 1e3),
    Column("p99_s", "p99, ms", ".2f", 1e3),
    Column("texts_per_s", "texts/s", ".0f"),
    Column("spread", "±%", ".0f", 50),
    Column("p50_vs_ours", "p50 / ours", ".2f"),
    Column("texts_per_s_vs_ours", "texts/s / ours", ".2f"),
    Column("overhead_s", "over encode, ms", ".2f", 1e3),
    Column("resident_mb", "MB", ".0f"),
)
LEGEND = (
    "Each client asks for one short text after the other. p50, p99, texts/s: medians over the rounds; ±%: half the\n"
    "distance between the quartiles of texts/s; / ours: medians of the ratio within a round. over encode: the median\n"
    "of a request less that of `encode` in another process, in turns. MB: of the server after the last round."
)
Rounds = dict[tuple[str, int], list[Load]]  # by server and clients


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print, write the CSV; return 1 if the embeddings of the servers differ, else 0."""
    options = _parse(arguments)
    machine.set_threads(options.threads)
    about = machine.describe() | {name: machine.version(name) for name in VERSIONS}
    print("\n".join(f"{name}: {value}" for name, value in about.items() if value != ""), flush=True)
    with workdir(options.workdir) as folder:
        name, model = model_folder(options.model, folder)
        rows = [{**row, "model": name} for row in _compare(model, options)]
    if options.csv is not None:
        append_csv(options.csv, rows, about)
    print("", f"model: {name}", table(rows, TABLE), LEGEND, sep="\n\n")
    return 1 if any(row["status"] == WRONG for row in rows) else 0


def model_folder(chosen: Path | None, folder: Path) -> tuple[str, Path]:
    """Return name and folder of the model: the chosen one, all-MiniLM-L6-v2, or random weights if that fails."""
    if chosen is not None:
        return chosen.name, chosen
    try:
        return "all-MiniLM-L6-v2", demo_model_folder()
    except DemoModelError as error:
        print(f"{error}\nRandom weights of its shape stand in.", file=sys.stderr)
        return "minilm-l6, random weights", make_checkpoint(folder, "minilm-l6", MODELS["minilm-l6"])


def _compare(folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row for each server and number of clients; a server with wrong embeddings has no times."""
    texts, encoder = list(short_texts(TEXTS)), SentenceEncoder(folder)
    truth = encoder.encode(texts, normalize_embeddings=True)
    with contextlib.ExitStack() as stack:
        servers = {name: stack.enter_context(running(name, folder, options.threads)) for name in SERVERS}
        errors = {name: error_of(server, texts, truth) for name, server in servers.items()}
        good = {name: server for name, server in servers.items() if errors[name] <= TOLERANCE}
        served, alone = overhead(servers[OURS].port, encoder, texts, ENCODES if not options.quick else 30)
        rounds = _take_turns(good, texts, options)
        rows = []
        for clients in options.clients:
            for name, server in servers.items():
                known: dict[str, Any] = {"server": name, "clients": clients, "status": WRONG, "error": errors[name]}
                if name in good:
                    known |= figures(rounds[name, clients], rounds.get((OURS, clients)))
                    known |= {"status": OK, "resident_mb": resident(process=server.process.pid)}
                if (name, clients) == (OURS, 1):
                    known |= {"encode_s": alone, "overhead_s": served - alone}
                rows.append({column: known.get(column) for column in COLUMNS})
    return rows


def error_of(server: Server, texts: Sequence[str], truth: np.ndarray) -> float:
    """Return the largest difference of any number in a server's embeddings."""
    with contextlib.closing(Client(server.port)) as client:
        found = np.stack([client.embed(text) for text in texts])
    return float(np.nan_to_num(abs(found - truth), nan=np.inf).max())


def _take_turns(servers: Mapping[str, Server], texts: Sequence[str], options: argparse.Namespace) -> Rounds:
    """Return the loads on the servers, in a new random order in each round."""
    turns = [(name, clients) for name in servers for clients in options.clients]
    rounds: Rounds = {turn: [] for turn in turns}
    shuffle = random.Random(0).shuffle
    for number in range(options.rounds):
        shuffle(turns)
        for name, clients in turns:
            rounds[name, clients].append(put_load(servers[name].port, texts, clients, options.seconds))
        print(f"round {number + 1} of {options.rounds}: done", file=sys.stderr, flush=True)
    return rounds


def figures(loads: Sequence[Load], ours: Sequence[Load] | None) -> dict[str, Any]:
    """Return a row's figures from the rounds of one server, beside those of ours."""
    values = _values(loads)
    low, high = np.quantile(values["texts_per_s"], [0.25, 0.75])
    known = {name: float(np.median(found)) for name, found in values.items()}
    if ours is not None:
        known |= {f"{name.removesuffix('_s') if name[0] == 'p' else name}_vs_ours": float(np.median(found / own))
                  for (name, found), own in zip(values.items(), _values(ours).values(), strict=True)}  # fmt: skip
    requests = sum(len(load.seconds) for load in loads)
    return {**known, "spread": (high - low) / known["texts_per_s"], "requests": requests, "rounds": len(loads)}


def _values(loads: Sequence[Load]) -> dict[str, np.ndarray]:
    return {
        "p50_s": np.array([load.quantile(0.5) for load in loads]),
        "p99_s": np.array([load.quantile(0.99) for load in loads]),
        "texts_per_s": np.array([load.per_second for load in loads]),
    }


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.serving", description="Compare servers of one model under load."
    )
    parser.add_argument("--model", type=Path, help="folder of a sentence encoder (default: all-MiniLM-L6-v2)")
    parser.add_argument("--clients", nargs="+", type=positive, default=CLIENTS, help="at once (default: 1 8 32)")
    full = {"rounds": 7, "seconds": 4.0, "csv": CSV}
    quick = {"rounds": 1, "seconds": 1.0, "csv": None}
    add_common(parser, full, "1 round of a second each")
    return parse(parser, arguments, full, quick)


if __name__ == "__main__":
    sys.exit(main())
