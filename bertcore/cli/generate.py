"""Continue texts, word by word, with a causal language model (GPT-2)."""

import argparse

from bertcore.cli.common import CommandError, positive, whole
from bertcore.cli.pipelines import add_pipeline_arguments, add_texts_arguments, given, run_pipeline, texts_of
from bertcore.cli.tables import printable

HELP = "continue texts with GPT-2"
EXAMPLES = """\
examples:
  bertcore generate gpt2/ "Once upon a time" --max-new-tokens 40 --seed 1
  bertcore generate gpt2/ "The capital of France is" --greedy --max-new-tokens 5
  bertcore generate gpt2/ "The capital of France is" --beams 4 --count 2 --json

Words are drawn, unless --greedy or --beams says otherwise. Each text is a line, its line ends written \\\\n; --json has
transformers' form."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("model", metavar="MODEL", help="folder or id of a causal language model")
    add_texts_arguments(parser)
    parser.add_argument("--max-new-tokens", type=positive, metavar="N", help="tokens to append at most (default: 256)")
    parser.add_argument("--greedy", action="store_true", help="take the likeliest token each time")
    parser.add_argument("--beams", type=positive, metavar="N", help="follow N continuations, and take the likeliest")
    parser.add_argument("--temperature", type=float, metavar="X", help="low ones draw likely tokens (default: 0.7)")
    parser.add_argument("--top-k", type=positive, metavar="N", help="draw from the N likeliest tokens")
    parser.add_argument("--top-p", type=float, metavar="P", help="draw from the fewest that sum to P")
    parser.add_argument("--count", type=positive, metavar="N", help="continuations of each text (default: 1)")
    parser.add_argument("--seed", type=whole, metavar="N", help="of what is drawn (default: another each time)")
    add_pipeline_arguments(parser, truncation="error")


def run(args: argparse.Namespace) -> None:
    """Run the command."""
    if args.greedy and args.beams:
        raise CommandError("--greedy and --beams are both given, expected one of them")
    options = given(args, "max_new_tokens", "temperature", "top_k", "top_p", "seed")
    options |= {"num_beams": args.beams or 1, "num_return_sequences": args.count or 1}
    if args.greedy:
        options["do_sample"] = False
    run_pipeline(args, "text-generation", texts_of, _show, **options)


def _show(answers) -> str:
    return "\n".join(printable(answer["generated_text"]) for answer in answers)
