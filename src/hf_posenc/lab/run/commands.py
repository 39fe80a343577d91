"""Commands that make a model from another one: `convert` and `lengthen` of `python -m hf_posenc`."""

import argparse
from collections.abc import Callable
from pathlib import Path

from ...convert.folders import FORMATS, convert_folder
from ...inference.translation_job import model_folder, silence_logging
from ..config.composition import merge, parse_override
from ..config.schema import Section
from ..data.readers import expand_home

AddCommand = Callable[..., argparse.ArgumentParser]


def path_argument(text: str) -> Path:
    """A path of the command line: a shell leaves the `~` of `--to=~/FILE` to us."""
    try:
        return Path(expand_home(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_convert_command(add_command: AddCommand) -> None:
    """The command that converts a checkpoint of transformers, or to one."""
    convert_help = "write a checkpoint of transformers as one of this family, or the other way round"
    command = add_command("convert", help=convert_help, description=convert_help)
    command.set_defaults(run_command=convert)
    command.add_argument("checkpoint", type=path_argument, help="a folder, or a name on the Hub")
    command.add_argument("fields", nargs="*", help="field=value: encodings and their parameters (default: as they are)")
    command.add_argument(
        "--output", required=True, type=path_argument, metavar="NEW_FOLDER", help="the folder to write"
    )
    command.add_argument("--to", choices=FORMATS, default="posenc", help="default: a model of this family")
    command.add_argument("--source-tag", help="language tag of a multilingual model's source, such as de or deu_Latn")
    command.add_argument("--target-tag", help="tag of its target, with which translations then begin")


def add_lengthen_command(add_command: AddCommand) -> None:
    """The command that fine-tunes a trained model for longer input."""
    description = "fine-tune a trained translator for longer input, and score it by length before and after"
    command = add_command("lengthen", help=description, description=description)
    command.set_defaults(run_command=lengthen_model)
    command.add_argument("checkpoint", type=path_argument, help="a folder, or a name on the Hub")
    command.add_argument("overrides", nargs="*", metavar="dotted.key=value", help="settings for the run's config file")
    for name, purpose in (("pairs", "fine-tune with"), ("test", "score with")):
        files_help = f"pairs to {purpose}: two aligned texts, or a .tsv or .jsonl file"
        command.add_argument(f"--{name}", nargs="+", required=True, type=path_argument, metavar="FILE", help=files_help)
    for side, code, tag in (("source", "de", "deu_Latn"), ("target", "en", "eng_Latn")):
        command.add_argument(f"--{side}-language", required=True, help=f"code of the {side} language, such as {code}")
        command.add_argument(f"--{side}-tag", help=f"{side} tag of a multilingual model, such as {tag}")
    lora_help = "train adapters of this rank (default 16) in place of all weights, and merge them; needs peft"
    command.add_argument("--lora", nargs="?", type=int, const=16, metavar="RANK", help=lora_help)
    command.add_argument("--to", required=True, type=path_argument, metavar="FOLDER", help="the run's folder")


def convert(options: argparse.Namespace) -> None:
    """Convert a checkpoint and print the new folder."""
    silence_logging()
    fields: Section = {}
    for field in (*options.fields, *options.extra_arguments):
        fields = merge(fields, parse_override(field))
    tags = {"source_tag": options.source_tag, "target_tag": options.target_tag}
    print(convert_folder(checkpoint_name(options.checkpoint), options.output, to=options.to, **tags, **fields))


def lengthen_model(options: argparse.Namespace) -> None:
    """Lengthen a model and print the table."""
    from .lengthen import LengthenJob, lengthen

    silence_logging()
    pairs, test = (list(map(str, paths)) for paths in (options.pairs, options.test))
    languages = (options.source_language, options.target_language, options.source_tag, options.target_tag)
    job = LengthenJob(checkpoint_name(options.checkpoint), pairs, test, *languages, lora_rank=options.lora)
    print(lengthen(job, options.to, (*options.overrides, *options.extra_arguments)))


def checkpoint_name(path: Path) -> str:
    """The folder with config.json of a local checkpoint, else the name on the Hub."""
    return str(model_folder(path)) if path.is_dir() else path.as_posix()
