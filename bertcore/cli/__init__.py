"""The command `bertcore`: one module per command, each with HELP, add_arguments(parser) and run(args).

Command modules import what is heavy inside `run`, so that `bertcore --help` answers at once.
"""

from bertcore.cli.signals import BROKEN_PIPE, INTERRUPTED, interrupts_end_at_once, termination_cleans_up

with interrupts_end_at_once():
    import argparse
    import functools
    import os
    import re
    import sys
    import traceback
    import warnings
    from collections.abc import Sequence

    import bertcore
    from bertcore.cli import (
        answer,
        calibrate,
        classify,
        compare,
        demo,
        distill,
        doctor,
        embed,
        explain,
        fill_mask,
        finetune,
        generate,
        info,
        plot,
        precision,
        pretrain,
        preview,
        quantize,
        rerank,
        search,
        serve,
        tag,
        warmup,
    )
    from bertcore.cli.outputs import UNWRITABLE
    from bertcore.cli.tables import printable
    from bertcore.kernels.dispatch import AUTO, IMPLEMENTATIONS

COMMANDS = {
    "answer": answer,
    "calibrate": calibrate,
    "classify": classify,
    "compare": compare,
    "demo": demo,
    "distill": distill,
    "doctor": doctor,
    "embed": embed,
    "explain": explain,
    "fill-mask": fill_mask,
    "finetune": finetune,
    "generate": generate,
    "info": info,
    "plot": plot,
    "precision": precision,
    "pretrain": pretrain,
    "preview": preview,
    "quantize": quantize,
    "rerank": rerank,
    "search": search,
    "serve": serve,
    "tag": tag,
    "warmup": warmup,
}

# Errors whose message tells a user what is wrong; of others the type is shown as well.
EXPECTED_ERRORS = (OSError, ValueError, ImportError, RuntimeError)
PLACE = re.compile(r"^(?:texts|inputs|pairs)\[(\d+)\]")  # in a list of Python's, counted from 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (the process's own by default) and return the exit code.

    0 on success, 2 for a wrong command line, 1 for a failure, told in one line on stderr.
    """
    try:
        with termination_cleans_up():
            return _code(sys.argv[1:] if argv is None else list(argv))
    except BrokenPipeError:  # the reader of our output has gone (`bertcore embed ... | head`)
        _drop_stdout()
        return BROKEN_PIPE
    except KeyboardInterrupt:
        print("bertcore: interrupted", file=sys.stderr)
        return INTERRUPTED


def _code(argv: list[str]) -> int:
    """Parse a command line, run it and flush its output; the exit code."""
    command, show_traceback = "bertcore", False
    try:
        try:
            args = _arguments(argv)
        except SystemExit as exit:  # --help, or a wrong command line
            code = exit.code
        else:
            command, show_traceback = f"bertcore {args.command}", args.traceback
            code = _run(args, command)
        if sys.stdout is not None:
            sys.stdout.flush()
        return int(code or 0)
    except BrokenPipeError:
        raise
    except Exception as error:
        if show_traceback:
            traceback.print_exc()
        else:
            print(f"{command}: {_one_line(error)}", file=sys.stderr)
        _drop_unwritten()
        return 1


def _run(args: argparse.Namespace, command: str) -> int | None:
    def show(message, *where):
        print(f"{command}: {_plain(message)}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.showwarning = show
        try:
            return args.run(args)
        except KeyboardInterrupt:
            print(f"{command}: interrupted", file=sys.stderr)
            return INTERRUPTED


class _Parser(argparse.ArgumentParser):
    def _print_message(self, message, file=None):
        (file or sys.stderr).write(message or "")  # argparse's own says nothing where it cannot write


def _arguments(argv: list[str]) -> argparse.Namespace:
    """The parsed command line; SystemExit for --help and for mistakes, as argparse does it."""
    parser, commands = _parsers()
    if argv and argv[0] in commands:
        # Intermixed: argparse itself loses an optional INPUT that stands after an option.
        return commands[argv[0]].parse_intermixed_args(argv[1:])
    return parser.parse_args(argv)


def _parsers() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """The parser of the whole, and that of each command."""
    formatter = functools.partial(argparse.RawDescriptionHelpFormatter, max_help_position=32)
    parser = _Parser(
        prog="bertcore",
        description="The BERT family without PyTorch, on the command line.",
        epilog="`bertcore COMMAND --help` explains a command and gives examples.",
        formatter_class=formatter,
    )
    parser.add_argument("--version", action="version", version=f"bertcore {bertcore.__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, module in COMMANDS.items():
        command = commands.add_parser(
            name,
            help=module.HELP,
            description=module.__doc__,
            epilog=module.EXAMPLES,
            formatter_class=formatter,
        )
        module.add_arguments(command)
        _add_common_arguments(command)
        command.set_defaults(run=module.run, command=name)
    return parser, commands.choices


def _add_common_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--backend",
        choices=[AUTO, *IMPLEMENTATIONS],
        help="what computes (default: the environment variable BERTCORE_BACKEND, else auto: numba)",
    )
    command.add_argument(
        "--traceback",
        action="store_true",
        default=os.environ.get("BERTCORE_TRACEBACK", "") not in ("", "0"),
        help="show where an error comes from (also: BERTCORE_TRACEBACK=1)",
    )


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and isinstance(error.filename, str | os.PathLike) and error.strerror:
        return _plain(f"{os.fspath(error.filename)}: {error.strerror}")  # Python's own begins with a number
    if type(error) is OSError and error.errno in UNWRITABLE and error.filename is None:
        return f"stdout cannot be written: {error.strerror}"
    message = PLACE.sub(lambda found: f"text {int(found[1]) + 1}", _plain(error))
    if isinstance(error, EXPECTED_ERRORS) and message:
        return message
    return f"{type(error).__name__}: {message} (--traceback shows where)"


def _plain(message: object) -> str:
    return printable(" ".join(str(message).split()))


def _drop_unwritten() -> None:
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        _drop_stdout()


def _drop_stdout() -> None:
    """Let what is still buffered go nowhere, so that Python does not complain about it at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
