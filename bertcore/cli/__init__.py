"""The command `bertcore`. `COMMANDS` lists its commands; each module is imported when its command is asked for."""

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

# The exit codes that a shell reports for a program that a signal ended: 128 and the signal's number.
INTERRUPTED, BROKEN_PIPE, TERMINATED = 130, 141, 143


@contextmanager
def _handled(number: int, usual, handler) -> Iterator[None]:
    """Return a block with another handler of a signal, unless a program that uses this one has set its own."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(number) is not usual:
        yield
        return
    signal.signal(number, handler)
    try:
        yield
    finally:
        if signal.getsignal(number) is handler:
            signal.signal(number, usual)


def _end(number, frame) -> None:
    os.write(2, b"bertcore: interrupted\n")
    os._exit(INTERRUPTED)


def _leave(number, frame) -> None:
    raise SystemExit(TERMINATED)


with _handled(signal.SIGINT, signal.default_int_handler, _end):  # Ctrl-C during the imports: one line, no traceback
    import re
    import sys
    import traceback
    import warnings

    import click
    from click.shell_completion import shell_complete

    import bertcore
    from bertcore.cli.options import UNWRITABLE, Group
    from bertcore.system import write_utf8

COMMANDS = {
    name: (f"bertcore.cli.{module}", name.replace("-", " ").title().replace(" ", ""), line)
    for name, module, line in (
        ("answer", "pipelines", "answer a question with a span of a text"),
        ("calibrate", "distill", "fit a classifier's probabilities to how often it is right"),
        ("classify", "pipelines", "classify texts"),
        ("compare", "info", "compare models side by side, as a table or a plot"),
        ("demo", "doctor", "embed a few sentences with a real model"),
        ("distill", "distill", "train a smaller model to imitate a larger one"),
        ("doctor", "doctor", "report which backends can run here, and what to install"),
        ("embed", "embed", "embed lines of text"),
        ("evaluate", "evaluate", "measure how well an encoder finds what answers queries"),
        ("explain", "plot", "attribute a classifier's answer to the tokens of a text"),
        ("export", "precision", "write a model for llama.cpp or ONNX Runtime"),
        ("fill-mask", "pipelines", "predict masked words"),
        ("finetune", "finetune", "fine-tune a model on labelled data"),
        ("generate", "pipelines", "continue texts with GPT-2"),
        ("index", "search", "embed a corpus and keep its vectors for search"),
        ("info", "info", "print a model's sizes, or list the presets"),
        ("plot", "plot", "draw attention, masking, training and embeddings"),
        ("precision", "precision", "compare low precision with float32 on your texts"),
        ("pretrain", "pretrain", "pretrain a model on raw texts"),
        ("preview", "plot", "show the examples that pretraining makes of a text"),
        ("quantize", "precision", "write a model in int8 or bfloat16"),
        ("rerank", "search", "order lines of text by how well they answer a query"),
        ("search", "search", "find the lines of a corpus that are nearest to a query"),
        ("serve", "serve", "serve models over HTTP"),
        ("tag", "pipelines", "find entities in texts"),
        ("warmup", "doctor", "compile a model's kernels ahead of time"),
    )
}

# Errors with messages for users; the type of any other error is shown, too.
EXPECTED_ERRORS = (OSError, ValueError, ImportError, RuntimeError)
PLACE = re.compile(r"^(?:texts|inputs|pairs)\[(\d+)\]")  # in a Python list, counted from 0


program = Group(
    "bertcore",
    COMMANDS,
    help="The BERT family without PyTorch, on the command line.",
    epilog="`bertcore COMMAND --help` explains a command and gives examples.",
    no_args_is_help=True,
    context_settings={"max_content_width": 100, "help_option_names": ["-h", "--help"]},
)
click.version_option(bertcore.__version__, message="bertcore %(version)s", help="print the version and exit")(program)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (the process's own by default) and return the exit code.

    The code is 0 on success, 2 for a wrong command line, and 1 for a failure; errors are one line on stderr.
    """
    try:
        write_utf8()
        with termination_cleans_up():
            return _code(sys.argv[1:] if argv is None else list(argv))
    except BrokenPipeError:  # the reader of our output has gone (`bertcore embed ... | head`)
        _drop_stdout()
        return BROKEN_PIPE
    except KeyboardInterrupt:
        print("bertcore: interrupted", file=sys.stderr)
        return INTERRUPTED


@contextmanager
def termination_cleans_up() -> Iterator[None]:
    """Return a block in which SIGTERM raises SystemExit, so that half-written files are removed.

    A second SIGTERM, which would change the exit code, is then ignored.
    """
    with _handled(signal.SIGTERM, signal.SIG_DFL, _leave):
        try:
            yield
        except SystemExit as exit:
            if exit.code == TERMINATED:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            raise


def _code(argv: list[str]) -> int:
    name = " ".join(["bertcore", *argv[:1]]) if argv and argv[0] in COMMANDS else "bertcore"
    try:
        if "_BERTCORE_COMPLETE" in os.environ:
            return shell_complete(program, {}, "bertcore", "_BERTCORE_COMPLETE", os.environ["_BERTCORE_COMPLETE"])
        code = _run(argv, name)
        if sys.stdout is not None:
            sys.stdout.flush()
        return int(code or 0)
    except BrokenPipeError:
        raise
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return 2
    except click.UsageError as error:
        print(f"{name}: {_plain(_usage(error, argv))} (see `{name} --help`)", file=sys.stderr)
        return 2
    except Exception as error:
        if "--traceback" in argv or os.environ.get("BERTCORE_TRACEBACK", "") not in ("", "0"):
            traceback.print_exc()
        else:
            # A failed write to a closed or full stdout while the help is printed is no matter of the command.
            print(f"{'bertcore' if '--help' in argv else name}: {one_line(error, argv)}", file=sys.stderr)
        try:
            if sys.stdout is not None:
                sys.stdout.flush()
        except OSError:
            _drop_stdout()
        return 1


def _run(argv: list[str], name: str) -> int | None:
    def show(message, *where):
        print(f"{name}: {_plain(message)}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.showwarning = show
        try:
            with program.make_context("bertcore", argv) as ctx:
                return program.invoke(ctx)
        except click.exceptions.Exit as exit:  # of --help and --version
            return exit.exit_code
        except KeyboardInterrupt:
            print(f"{name}: interrupted", file=sys.stderr)
            return INTERRUPTED


def _usage(error: click.UsageError, argv: Sequence[str]) -> str:
    """Return the message of a wrong command line: the option, the value, and the expected values."""
    param = getattr(error, "param", None)
    if param is None:
        return error.format_message().rstrip(".")
    label = param.opts[-1] if isinstance(param, click.Option) else param.human_readable_name
    label = next((option for option in param.opts if option in argv), label)
    if not isinstance(error, click.MissingParameter):
        return f"{label} {error.message}"
    choices = f"one of {', '.join(param.type.choices)}" if isinstance(param.type, click.Choice) else ""
    return f"{label} is missing, expected {choices or getattr(param, 'help', None) or 'a value'}"


def one_line(error: Exception, argv: Sequence[str] = ()) -> str:
    """Return an error's message as one line without control characters, with arguments named as in `argv`."""
    if isinstance(error, OSError) and isinstance(error.filename, str | os.PathLike) and error.strerror:
        return _plain(f"{os.fspath(error.filename)}: {error.strerror}")  # Python's own begins with a number
    if type(error) is OSError and error.errno in UNWRITABLE and error.filename is None:
        return f"stdout cannot be written: {error.strerror}"
    message = PLACE.sub(lambda found: f"text {int(found[1]) + 1}", _plain(error))
    name = message.partition(" is ")[0]
    for option in (word.partition("=")[0] for word in argv if word.startswith("--")):
        if option[2:].replace("-", "_").replace("_seq_", "_") == name.replace("_seq_", "_"):
            message = option + message.removeprefix(name)
    is_expected = isinstance(error, EXPECTED_ERRORS) and message
    return message if is_expected else f"{type(error).__name__}: {message} (--traceback shows where)"


def _plain(message: object) -> str:
    from bertcore.arguments import printable

    return printable(" ".join(bertcore.file_readers.naming_files(str(message)).split()))


def _drop_stdout() -> None:
    """Send buffered output nowhere, so that Python does not complain about it at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
