"""Write a model anew in low precision: smaller, quicker to load, and loaded as what it is by every command.

int8: the weights of linear maps become 8-bit integers with a scale for each output channel, embedding tables bfloat16;
a quarter of the size. int8_weight_only: a scale for each 32 weights, beside which inputs are not rounded: a quarter of
the size, too, much nearer to float32, and about as fast as that. bfloat16: weights and tables, half the size;
transformers reads it as any other model. Heads that bertcore has no class for stay as they are. The tokenizer and the
settings of a sentence encoder are copied.

With --calibrate the encoder's int8 weights are rounded with regard to its inputs on sample texts, which brings results
nearer to float32's: some hundred texts like those to come, a line each. It runs them in float32 and takes minutes."""

import argparse
import contextlib
import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bertcore.arguments import INT8
from bertcore.cli.common import MODEL_HELP, CommandError, model_folder
from bertcore.cli.lines import input_stream, read_lines

HELP = "write a model in int8 or bfloat16"
EXAMPLES = """\
examples:
  bertcore quantize demo all-MiniLM-L6-v2-int8/
  bertcore quantize demo all-MiniLM-L6-v2-int8/ --calibrate texts.txt
  bertcore quantize bert-base-uncased/ bert-base-bf16/ --dtype bfloat16
  bertcore precision demo < texts.txt      (what it would cost, on texts of yours)"""

CALIBRATED_AT_ONCE = 32  # texts
COPIED = (".json", ".txt", ".model", ".md")  # tokenizers, settings of sentence encoders, what is said of the model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument("folder", metavar="FOLDER", help="where to write: a new or an empty folder")
    parser.add_argument("--dtype", choices=[*INT8, "bfloat16"], default="int8", help="default: int8")
    parser.add_argument(
        "--calibrate", metavar="TEXTS", help="file of sample texts, one a line, or - for stdin: int8 of less error"
    )


def run(args: argparse.Namespace) -> None:
    """Run the command."""
    source, target = model_folder(args.model), Path(args.folder)
    if args.calibrate is None:
        before, after = quantize(source, target, args.dtype)
    else:
        if args.dtype != "int8":
            raise CommandError(f"--calibrate is for --dtype int8, not for {args.dtype}")
        with input_stream(args.calibrate) as (stream, name):
            before, after = quantize(source, target, args.dtype, read_lines(stream, name), name)
    print(f"{target}: {after / 1e6:,.1f} MB in {args.dtype}, from {before / 1e6:,.1f} MB")


def quantize(
    source: Path, target: Path, dtype: str, texts: Iterable[str] | None = None, name: str = "texts"
) -> tuple[int, int]:
    """Write the model in `source` to the folder `target`; the bytes of its tensors before and after.

    A `target` that is there is empty; all is written beside it first. int8 is calibrated on the `texts`, which errors
    call `name`.
    """
    from bertcore import checkpoint
    from bertcore.checkpoint.files import CONFIG_NAME, naming
    from bertcore.tasks.sentence_encoder.settings import read_settings

    settings = read_settings(source)
    model = settings.model_folder
    _check_links(source, settings.folders)
    _check_target(target, (source, model))
    config, stored_dtype = checkpoint.split_dtype(model, checkpoint.read_config(model))
    if stored_dtype is not None:
        raise CommandError(f"{model} is in {stored_dtype} already: quantize the model it was made from")
    opened = checkpoint.open_checkpoint(model)
    calibrated = {} if texts is None else _calibrated(source, opened, texts, name)
    with checkpoint.naming_config(model):
        tensors, unquantized = converted(opened, config, dtype, calibrated)
    smoothed = any(name.endswith(checkpoint.INPUT_SCALE) for name in tensors)
    config = checkpoint.with_dtype(config, dtype, unquantized, smoothed=smoothed)
    with _written_beside(target) as beside:
        with_weights = {module.folder for module in settings.maps}  # which stay as they are
        _copy_files(source, beside, settings.folders, model / CONFIG_NAME, with_weights, target)
        with naming(target):
            checkpoint.save_checkpoint(beside / model.relative_to(source), config, tensors)
    return sum(opened[name].nbytes for name in opened), sum(array.nbytes for array in tensors.values())


def _calibrated(source: Path, opened: Any, texts: Iterable[str], name: str) -> dict[str, dict[str, Any]]:
    """The tensors that those of the encoder's weights become, by the old name."""
    from bertcore import SentenceEncoder
    from bertcore.checkpoint.parameters import find_parameters
    from bertcore.models.rounding import observed_inputs, rounded_weight

    encoder = SentenceEncoder(source, dtype="float32")
    model, found = encoder.model, {}
    rules = model.family.name_rules
    sources = find_parameters(opened, model.expected_tensors(), rules, optional=rules.heads)
    with observed_inputs(model) as statistics:
        if not _encode_all(encoder, texts):
            raise CommandError(f"{name} holds no texts")
    for parameter, of_inputs in statistics.items():
        if of_inputs.rows == 0:  # no text reached it
            continue
        label = ", ".join(parameter.names)
        rounded = _named(
            label,
            functools.partial(rounded_weight, statistics=of_inputs, parts=len(parameter.names)),
            parameter.array(),
        )
        for own_name, tensors in _stored_parts(parameter, rounded).items():
            found[sources[own_name]] = {sources[own_name] + end: array for end, array in tensors.items()}
    return found


def _encode_all(encoder: Any, texts: Iterable[str]) -> int:
    """Encode the texts, some at a time; how many there were."""
    count, texts = 0, iter(texts)
    while some := list(itertools.islice(texts, CALIBRATED_AT_ONCE)):
        encoder.encode(some, show_progress=False)
        count += len(some)
    return count


def _stored_parts(parameter: Any, rounded: Any) -> dict[str, dict[str, Any]]:
    """{name of a tensor of the parameter: {ending: tensor}} with the int8 values, their scales and their input's."""
    from bertcore.checkpoint import INPUT_SCALE, SCALE

    values, scales = dict(parameter.parts(rounded.values)), dict(parameter.parts(rounded.scale[:, None]))
    of_input = {} if rounded.input_scale is None else {INPUT_SCALE: rounded.input_scale}
    return {name: {"": values[name], SCALE: scales[name]} | of_input for name in values}


def converted(
    opened: Any, config: dict[str, Any], dtype: str, calibrated: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
) -> tuple[dict[str, Any], list[str]]:
    """The new tensors under the names of the old, and the matrices (of heads unknown here) that stay as they were.

    `calibrated` has those that are known, by the old name.
    """
    import ml_dtypes
    import numpy as np

    from bertcore.checkpoint import SCALE
    from bertcore.kernels import quantize_weight

    uses, layouts, copies = _uses(opened, config)
    tensors = {}
    for name in opened:
        array, use, layout = opened[name], uses.get(name, set()), layouts.get(name)
        if name in copies:
            continue
        if name in calibrated:
            tensors.update(calibrated[name])
            continue
        if dtype in INT8 and use == {"weight"}:
            array, is_grouped = np.asarray(array, np.float32), dtype == "int8_weight_only"
            quantize = functools.partial(quantize_weight, per_group=is_grouped)
            values, scale = _named(name, quantize, array if layout is None else layout.to_computing(array))
            tensors[name] = values if layout is None else layout.to_stored(values)
            rows = scale if is_grouped else scale[:, None]
            tensors[name + SCALE] = rows if layout is None or is_grouped else layout.to_stored(rows)
        elif use & {"weight", "table"}:
            tensors[name] = array.astype(ml_dtypes.bfloat16)
        else:
            tensors[name] = array.astype(np.float32, copy=False) if use else array
    others = [name.removesuffix(".weight") for name in opened if name.endswith(".weight") and name not in uses]
    return tensors, others


def _named(name: str, function: Any, array: Any) -> Any:
    try:
        return function(array)
    except ValueError as error:
        raise CommandError(f"{name}: {error}") from error


def _uses(opened: Any, config: dict[str, Any]) -> tuple[dict[str, set[str]], dict[str, Any], set[str]]:
    """What the models use each tensor for ("weight", "table", "vector"), its layout, and those that only repeat a tied
    one."""
    import numpy as np

    from bertcore.checkpoint import CheckpointError
    from bertcore.checkpoint.parameters import find_parameters
    from bertcore.models.architectures import models_of

    uses: dict[str, set[str]] = {}
    layouts: dict[str, Any] = {}
    for class_name, model in models_of(config).items():
        rules = model.family.name_rules
        try:
            sources = find_parameters(opened, model.expected_tensors(), rules, optional=rules.heads)
        except CheckpointError:
            if class_name == "AutoModel":  # what all have; of a head that is not of this class nothing is changed
                raise
            continue
        for parameter in model.parameters():
            for name in filter(sources.__contains__, parameter.names):
                uses.setdefault(sources[name], set()).update(parameter.uses)
                layouts[sources[name]] = parameter.layout
    pairs = [
        (name, other)
        for copy, original in rules.tied
        for name in opened
        for other in opened
        if name.endswith(copy) and other.endswith(original) and name not in uses
    ]
    return uses, layouts, {name for name, other in pairs if np.array_equal(opened[name], opened[other])}


def _check_links(source: Path, folders: Iterable[Path]) -> None:
    """CommandError for a link out of the model's folder: a model from elsewhere could copy any file of the user's.

    Links into the blobs of the Hugging Face cache that the folder is a snapshot of are what snapshots consist of.
    """
    allowed = [source.resolve()]
    if allowed[0].parent.name == "snapshots":
        allowed.append(allowed[0].parent.parent / "blobs")
    for folder in filter(Path.is_dir, folders):
        for path in (folder, *folder.iterdir()):
            if not any(path.resolve().is_relative_to(root) for root in allowed):
                raise CommandError(
                    f"{path} is a link out of the model's folder, to {path.resolve()}: "
                    "if that is meant, copy the model with what its links point to (cp -rL)"
                )


def _check_target(target: Path, sources: tuple[Path, ...]) -> None:
    if not target.exists():
        return
    if not target.is_dir():
        raise CommandError(f"{target} is not a folder")
    if any(target.samefile(source) for source in sources):
        raise CommandError(f"{target} is the model itself: give another folder")
    if any(target.iterdir()):  # an old tokenizer or shard left there would be taken for the new model's
        raise CommandError(f"{target} holds files: give a new or empty folder")


@contextlib.contextmanager
def _written_beside(target: Path) -> Iterator[Path]:
    """A new folder beside `target`, which takes its place when the block ends well."""
    from bertcore.checkpoint.files import naming, temporary_beside

    place = target.resolve()
    with naming(target):
        place.parent.mkdir(parents=True, exist_ok=True)
    with temporary_beside(place) as beside:
        with naming(target):
            beside.mkdir()
        yield beside
        with naming(target):
            if place.exists():
                place.rmdir()
            beside.rename(place)


def _copy_files(
    source: Path, beside: Path, folders: Iterable[Path], config: Path, with_weights: Iterable[Path], target: Path
) -> None:
    """Copy what is neither weights nor the file `config` from the folders of a model, which lie in `source`; all from
    those in `with_weights`. Errors of writing name `target`, those of reading the file."""
    from bertcore.checkpoint.files import naming

    for folder in filter(Path.is_dir, folders):
        place = beside / folder.relative_to(source)
        with naming(target):
            place.mkdir(parents=True, exist_ok=True)
        for file in folder.iterdir():
            is_weights = file.name.endswith(".index.json") or file == config
            if file.is_file() and (folder in with_weights or (file.suffix in COPIED and not is_weights)):
                content = file.read_bytes()
                with naming(target):
                    (place / file.name).write_bytes(content)
