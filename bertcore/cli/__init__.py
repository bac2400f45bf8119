"""The command `bertcore`: one module per command, each with HELP, add_arguments(parser) and run(args).

Command modules import what is heavy inside `run`, so that `bertcore --help` answers at once.
"""

import argparse
import functools
import os
import sys
import traceback
from collections.abc import Sequence

import bertcore
from bertcore.cli import compare, demo, doctor, embed, fill_mask, info, precision, quantize, warmup
from bertcore.kernels.dispatch import AUTO, IMPLEMENTATIONS

COMMANDS = {
    "compare": compare,
    "demo": demo,
    "doctor": doctor,
    "embed": embed,
    "fill-mask": fill_mask,
    "info": info,
    "precision": precision,
    "quantize": quantize,
    "warmup": warmup,
}

# What a shell reports for a program that a signal ended: 128 and the signal's number.
INTERRUPTED, BROKEN_PIPE = 130, 141

# Errors whose message tells a user what is wrong; of others the type is shown as well.
EXPECTED_ERRORS = (OSError, ValueError, ImportError, RuntimeError)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (the process's own by default) and return the exit code.

    0 on success, 2 for a wrong command line, 1 for a failure, told in one line on stderr.
    """
    try:
        try:
            args = _arguments(sys.argv[1:] if argv is None else list(argv))
        except SystemExit as exit:  # --help, or a wrong command line
            code = exit.code
        else:
            code = _run(args)
        if sys.stdout is not None:
            sys.stdout.flush()
        return int(code or 0)
    except BrokenPipeError:  # the reader of our output has gone (`bertcore embed ... | head`)
        _drop_stdout()
        return BROKEN_PIPE


def _run(args: argparse.Namespace) -> int | None:
    try:
        return args.run(args)
    except BrokenPipeError:
        raise
    except KeyboardInterrupt:
        print(f"bertcore {args.command}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        if args.traceback:
            traceback.print_exc()
        else:
            print(f"bertcore {args.command}: {_one_line(error)}", file=sys.stderr)
        return 1


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
    parser = argparse.ArgumentParser(
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
    message = " ".join(str(error).split())
    if isinstance(error, EXPECTED_ERRORS) and message:
        return message
    return f"{type(error).__name__}: {message} (--traceback shows where)"


def _drop_stdout() -> None:
    """Let what is still buffered go nowhere, so that Python does not complain about it at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
