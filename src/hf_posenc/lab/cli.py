"""The command line `hf-posenc`: its parser, and what happens before and after each command.

Arguments are parsed first. The library, whose imports take seconds, is imported after them: `--help`, `--version` and
an error of usage never import torch. Therefore this module imports only modules that do without it. What the commands
do is in `commands.py`, a function for each, under the command's name.

Errors of usage are one line on standard error, with exit status 2.
"""

import argparse
import difflib
import gc
import re
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from ..hub.version import __version__, untested_transformers_warning
from ..utils.atomic_io import explain_full_disk
from ..utils.command_line import command_errors, set_stdout_utf8
from .data.readers import expand_home

DESCRIPTION = (
    "Train translators with a position encoding of your choice, score them by source length, and use them. "
    "FOLDER is a saved model: a system of a run (runs/quickstart/relative), its model folder, or any checkpoint of the "
    "family. CHECKPOINT is a FOLDER, or a BART, M2M-100, NLLB, Marian, mBART or Pegasus model of transformers, as a "
    "folder or a name on the Hub. RUN is the folder of a run (runs/quickstart)."
)
PROGRAM = "hf-posenc"
OPTION = re.compile(r"--?[A-Za-z][\w-]*")
# Choices of options, by the names that the library takes; a test compares them.
ENGINES, FORMATS = ("ctranslate2", "onnx"), ("posenc", "transformers")
DOCUMENT_FORMS = ("lines", "text", "markdown", "srt", "html", "epub", "jsonl")
DTYPES = ("float32", "bfloat16", "float16")
TABLE_FORMATS = ("markdown", "latex", "csv", "html")
# Commands whose arguments include `name=value` between or after their options.
WITH_SETTINGS = ("train", "figures", "convert", "lengthen")
AddCommand = Callable[..., argparse.ArgumentParser]


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, and whose options are never abbreviated."""

    def __init__(self, **settings: object) -> None:
        super().__init__(**settings, allow_abbrev=False)  # type: ignore[arg-type]

    def error(self, message: str) -> NoReturn:
        message = re.sub("^argument ([^:]+): must ", r"\1 must ", message)
        self.exit(2, f"{self.prog}: {message[0].upper()}{message[1:].rstrip('.')}; see `{self.prog} --help`.\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command of `arguments`, by default those of the program."""
    with command_errors():
        options = parse_arguments(sys.argv[1:] if arguments is None else arguments)
        commands = import_commands()
        set_stdout_utf8()
        warnings.formatwarning = format_warning
        if options.command == "train":  # says the rest itself: in one of its processes, for the run's folder
            commands.train(options)
            return
        if warning := untested_transformers_warning():
            print(warning, file=sys.stderr, flush=True)
        written = getattr(options, "output", None) or getattr(options, "to", None)
        with explain_full_disk(written if isinstance(written, Path) else Path()):
            if options.register:
                commands.register_encodings(options.register)
            getattr(commands, options.command.replace("-", "_"))(options)


def import_commands() -> ModuleType:
    """The module `commands`. Its first import takes seconds, and Ctrl-C ends the program in it without a traceback."""
    name = f"{__package__}.commands"
    if name not in sys.modules:
        handler = signal.getsignal(signal.SIGINT)
        if handler is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        import_module("hf_posenc.api")  # registers the models with the Auto classes
        import_module(name)
        signal.signal(signal.SIGINT, handler)
        gc.freeze()  # else Python looks through the objects of torch at its end, which takes seconds
    return sys.modules[name]


def format_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """A warning as one line, without the line of code that it comes from."""
    return f"Warning: {message}\n"


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """The options of the command line. `extra_arguments` are the settings that stand after other options."""
    parser, commands = make_parsers()
    validate_names(arguments, parser, commands)
    options, extra_arguments = parser.parse_known_args(arguments)
    if extra_arguments and options.command not in WITH_SETTINGS:
        commands[options.command].error(f"unknown arguments: {' '.join(extra_arguments)}")
    options.extra_arguments = extra_arguments
    return options


def validate_names(
    arguments: Sequence[str], parser: argparse.ArgumentParser, commands: dict[str, argparse.ArgumentParser]
) -> None:
    """End the program with the nearest name if the command or an option does not exist.

    argparse would first complain of whatever a misspelt option leaves unset, or take its value for something else.
    """
    for argument in arguments:
        if argument == "--":  # all that follows are values
            return
        if not argument.startswith("-") and parser.prog == PROGRAM:
            if argument not in commands:
                known = ", ".join(commands)
                parser.error(f"a command must be one of {known}, but it is {argument!r}{nearest(argument, commands)}")
            parser = commands[argument]
        options = parser._option_string_actions  # argparse has no public list of them
        name = argument.partition("=")[0]
        if OPTION.fullmatch(name) and name not in options:
            parser.error(f"an option must be one that the command has, but {name!r} is none{nearest(name, options)}")


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of an error message that suggests the most similar name, if one is similar."""
    similar = difflib.get_close_matches(name, list(known), n=1)
    return f"; the nearest one is {similar[0]!r}" if similar else ""


def make_parsers() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """The parser of the whole command line, and that of each command by its name."""
    parser = Parser(prog=PROGRAM, description=DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add_command(name: str, summary: str, *, register: bool = True) -> argparse.ArgumentParser:
        command = subparsers.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        if register:
            register_help = "a file that registers encodings of your own"
            command.add_argument("--register", type=path_argument, metavar="FILE.py", help=register_help)
        return command

    add_training_commands(add_command)
    add_translation_commands(add_command)
    add_measure_command(add_command)
    add_run_commands(add_command)
    add_result_commands(add_command)
    add_plot_commands(add_command)
    return parser, dict(subparsers.choices)


def path_argument(text: str) -> Path:
    """A path of the command line. A shell leaves the `~` of `--to=~/FILE` to the program."""
    try:
        return Path(expand_home(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def positive_int(text: str) -> int:
    """A whole number from 1 on."""
    if not text.isascii() or not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of 1 or more, but it is {text!r}")
    return int(text)


def add_form_arguments(command: argparse.ArgumentParser) -> None:
    """How the file of a document is read."""
    form_help = f"of the document: {', '.join(DOCUMENT_FORMS)} (default: by its suffix, or lines)"
    command.add_argument("--form", choices=DOCUMENT_FORMS, metavar="FORM", help=form_help)
    command.add_argument(
        "--field", default="text", metavar="NAME", help="of JSON lines that has the text (default: text)"
    )


def add_training_commands(add_command: AddCommand) -> None:
    """The commands that train."""
    command = add_command(
        "train", "train the systems of a config file, score them by source length and compare them", register=False
    )
    command.epilog = (
        "Finished systems are skipped and interrupted ones resumed, so the same command can be given again at any "
        "time. On several GPUs: accelerate launch --config_file configs/accelerate/eight_gpus.yaml train.py CONFIG"
    )
    command.add_argument("config", help="a YAML file, such as configs/quickstart.yaml")
    settings_help = "settings for the file's: seeds=[1,2], output_dir=FOLDER"
    command.add_argument("overrides", nargs="*", metavar="dotted.key=value", help=settings_help)
    command.add_argument("--dry-run", action="store_true", help="print what the systems would cost, and do nothing")
    system_help = "run this one system only, of a run that has been prepared, and print no table"
    command.add_argument("--system", help=system_help)

    command = add_command(
        "lengthen", "fine-tune a trained translator for longer input, and score it by length before and after"
    )
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


def add_translation_commands(add_command: AddCommand) -> None:
    """The commands that translate with a trained model, or write it in another format."""
    command = add_command("translate", "translate lines, a document, subtitles or a book")
    model_help = "a FOLDER, one that `export` has written, or a translation model of transformers: folder or Hub name"
    command.add_argument("model", type=path_argument, metavar="MODEL", help=model_help)
    input_help = "document to translate (default: lines of standard input)"
    command.add_argument("--input", type=path_argument, metavar="FILE", help=input_help)
    add_form_arguments(command)
    for side, code in (("source", "de"), ("target", "en")):
        language_help = f"{side} language, such as {code}, {code}-Latn or the model's own code"
        command.add_argument(f"--{side}-language", metavar="CODE", help=language_help)
    segment_help = (
        "divide texts into sentences and parts of at most N tokens (default 128, models of this family: never)"
    )
    command.add_argument("--segment-tokens", type=positive_int, metavar="N", help=segment_help)
    command.add_argument("--no-repair", action="store_true", help="translate doubtful segments once only")
    report_help = "write all segments, and why some are doubtful: a page (.html), or the doubtful alone (.json)"
    command.add_argument("--report", type=path_argument, metavar="FILE", help=report_help)
    command.add_argument("--fail-on-doubtful", action="store_true", help="exit with 3 if a segment stays doubtful")
    prompt_help = "of a causal language model, with {text}, {source_language}, {target_language} (default: its chat)"
    command.add_argument("--prompt-template", metavar="TEXT", help=prompt_help)
    output_help = "a new file (default: standard output); the same command resumes after a kill"
    command.add_argument("--output", type=path_argument, metavar="FILE", help=output_help)
    beams_help = "width of the beam (default: the model's own, or 5); --stream is greedy"
    command.add_argument("--num-beams", type=positive_int, metavar="N", help=beams_help)
    length_help = "maximum length of a translation in tokens (default: 2 x source + 50)"
    command.add_argument("--max-new-tokens", type=positive_int, metavar="N", help=length_help)
    batch_help = "segments of a batch (default 32), fewer where they are long"
    command.add_argument("--batch-size", type=positive_int, metavar="N", help=batch_help)
    device_help = "cpu, cuda, cuda:1, ... (default: the first GPU if there is one)"
    command.add_argument("--device", help=device_help)
    processes_help = "processes that translate in parallel (default 1)"
    command.add_argument("--num-processes", type=positive_int, default=1, metavar="N", help=processes_help)
    command.add_argument("--quantize", action="store_true", help="linear layers in int8, on a CPU")
    stream_help = "the input is one text; write each word as soon as it is fixed"
    command.add_argument("--stream", action="store_true", help=stream_help)

    command = add_command("export", "write a trained model for another engine")
    command.add_argument("folder", type=path_argument, help="a system of a run, or a saved model")
    command.add_argument("--engine", required=True, choices=ENGINES, help="the engine to write it for")
    command.add_argument("--output", required=True, type=path_argument, metavar="NEW_FOLDER", help="folder to write")
    command.add_argument("--quantization", help="of the weights: int8, for CTranslate2 also float16, ...")

    command = add_command("convert", "write a checkpoint of transformers as one of this family, or the other way round")
    command.add_argument("checkpoint", type=path_argument, help="a folder, or a name on the Hub")
    fields_help = "encodings and their parameters (default: as they are)"
    command.add_argument("fields", nargs="*", metavar="field=value", help=fields_help)
    command.add_argument("--output", required=True, type=path_argument, metavar="NEW_FOLDER", help="folder to write")
    command.add_argument("--to", choices=FORMATS, default="posenc", help="default: a model of this family")
    command.add_argument("--source-tag", help="language tag of a multilingual model's source, such as de or deu_Latn")
    command.add_argument("--target-tag", help="tag of its target, with which translations then begin")


def add_measure_command(add_command: AddCommand) -> None:
    """The command that measures any model of transformers or of this family."""
    command = add_command("measure-length", "measure the length that a language model can use, and print a report")
    command.add_argument("model", help="a folder, or a name on the Hub: a language model or an encoder-decoder")
    text_help = "documents, one a file, plain or compressed; of an encoder-decoder sources, one a line"
    command.add_argument("texts", nargs="+", type=path_argument, metavar="TEXT", help=text_help)
    references_help = "of an encoder-decoder: a reference for each source"
    command.add_argument("--references", type=path_argument, metavar="FILE", help=references_help)
    lengths_help = "in tokens, ascending (default: 128, 256, ... to twice the claimed length, if a text has as many)"
    command.add_argument("--lengths", nargs="+", type=positive_int, metavar="N", help=lengths_help)
    output_help = "the folder for report.json, report.md and report.png; the same command resumes after a kill"
    command.add_argument("--output", type=path_argument, metavar="FOLDER", help=output_help)
    blocks_help = "blocks of the longest length that are scored, or pairs of each source length (default 8)"
    command.add_argument("--max-blocks", type=positive_int, default=8, metavar="N", help=blocks_help)
    trials_help = "random inputs for each length and depth (default 2)"
    command.add_argument("--trials", type=positive_int, default=2, metavar="N", help=trials_help)
    command.add_argument("--device", help="cpu, cuda, cuda:1, ... (default: the first GPU if there is one)")
    dtype_help = "of the weights (default: the checkpoint's on a GPU, float32 on a CPU)"
    command.add_argument("--dtype", choices=DTYPES, help=dtype_help)
    command.add_argument("--gguf", metavar="FILE", help="the GGUF file of the folder to read, by its name")


def add_run_commands(add_command: AddCommand) -> None:
    """The commands that read translations or a run, and those that print a registry."""
    command = add_command("audit", "report what translations of documents leave out, repeat, move and invent")
    command.add_argument("sources", type=path_argument, help="one segment a line, or a document of another form")
    lines_help = "a line for each segment, or for each document; or a document of the source's form"
    command.add_argument("translations", type=path_argument, help=lines_help)
    add_form_arguments(command)
    command.add_argument("--source-language", metavar="CODE", help="whose rules divide texts into sentences")
    command.add_argument("--references", type=path_argument, metavar="FILE", help="a reference for each segment")
    ids_help = "the document of each segment, one name a line (default: blank lines separate documents)"
    command.add_argument("--document-ids", type=path_argument, metavar="FILE", help=ids_help)
    ids_help = "the document of each line of the translations, if they have other lines"
    command.add_argument("--translation-ids", type=path_argument, metavar="FILE", help=ids_help)
    pairs_help = "two files of parallel text, to find counterparts without references"
    command.add_argument("--pairs", type=path_argument, nargs=2, metavar="FILE", help=pairs_help)
    report_help = "write source and translation side by side (.html), or the findings alone (.json)"
    command.add_argument("--report", type=path_argument, metavar="FILE", help=report_help)
    output_help = "the folder for audit.json, audit.md and coverage.png"
    command.add_argument("--output", type=path_argument, metavar="FOLDER", help=output_help)

    command = add_command("report", "make the tables and figures of a results.json again")
    command.add_argument("run", type=path_argument, help="a folder with results.json")
    command.add_argument("--output", type=path_argument, help="the folder to write to (default: the same)")

    command = add_command("samples", "write sources, references and translations of a run: worst and median, by length")
    command.add_argument("run", type=path_argument, help="the run's folder")
    output_help = "the folder for samples.md and samples.html (default: the same)"
    command.add_argument("--output", type=path_argument, metavar="FOLDER", help=output_help)

    command = add_command("card", "print the model card of a system of a run")
    command.add_argument("run", type=path_argument, help="the run's folder")
    command.add_argument("system", help="the system's name")
    command.add_argument("--repo-id", help="the repository that the card's examples load")
    command.add_argument("--license", help="licence of the training data, if the config states none or another")
    command.add_argument("--domain", help="what the training text is, if the config does not say")

    add_command("encodings", "print the registered encodings as a Markdown table")
    add_command("alignments", "print the registered alignments as a Markdown table")

    command = add_command("explorer", "serve a page in the browser: see encodings, translate, compare")
    run_help = "a run's folder (default: none, and untrained models)"
    command.add_argument("run", type=path_argument, nargs="?", help=run_help)
    command.add_argument("--port", type=int, help="of the page (default: the first that is free from 7860 on)")
    host_help = "another name of this machine under which the page is opened"
    command.add_argument("--allow-host", action="append", default=[], metavar="NAME", help=host_help)


def add_result_commands(add_command: AddCommand) -> None:
    """The commands that score runs again, tabulate and compare them."""
    command = add_command("score", "score a finished run by other metrics or length buckets, from its translations")
    command.add_argument("run", type=path_argument, help="the run's folder")
    command.add_argument("--metrics", nargs="+", default=[], metavar="METRIC", help="to add, such as chrf ter")
    buckets_help = "upper bounds of the length buckets, in source subwords"
    command.add_argument("--buckets", nargs="+", type=int, metavar="LENGTH", help=buckets_help)
    command.add_argument("--bertscore-model", metavar="MODEL", help="of the metric bertscore: a folder or a name")
    command.add_argument("--bertscore-layers", type=int, metavar="N", help="the layer of that model to compare")

    command = add_command("table", "make one table over the rows of one or several runs, with intervals and marks")
    command.add_argument("runs", nargs="+", type=path_argument, metavar="RUN", help="a folder with results.json")
    command.add_argument("--rows", nargs="+", metavar="ROW", help="rows in this order; RUN/ROW if several runs have it")
    columns_help = "TEST: all pairs of a test set; TEST:lengths: its length buckets; TEST:[0,25]: one of them"
    command.add_argument("--columns", nargs="+", metavar="COLUMN", help=columns_help)
    command.add_argument("--metrics", nargs="+", metavar="METRIC", help="such as bleu chrf (default: all scored)")
    command.add_argument("--baseline", metavar="ROW", help="the row that marks compare with (default: the run's)")
    format_help = "default: that of --output's suffix, else markdown"
    command.add_argument("--format", choices=TABLE_FORMATS, help=format_help)
    command.add_argument("--output", type=path_argument, metavar="FILE", help="a file (default: standard output)")

    command = add_command("compare", "test whether two systems differ, with each seed and pooled over seeds")
    runs_help = "the run of each system, or one run of both"
    command.add_argument("runs", nargs="+", type=path_argument, metavar="RUN", help=runs_help)
    systems_help = "rows of the tables, or one seed of each (aligned-seed1)"
    command.add_argument("--systems", nargs=2, required=True, metavar=("A", "B"), help=systems_help)
    command.add_argument("--metric", default="bleu", help="one that the runs are scored by (default bleu)")
    command.add_argument("--test", metavar="NAME", help="the test set (default: the one that both have)")
    units_help = (
        "what is swapped and resampled: each scored pair (sentence, the default), all pairs of a document, or pairs "
        "with equal lines in FILE, which has a line for each scored pair"
    )
    command.add_argument("--units", default="sentence", metavar="sentence|document|FILE", help=units_help)
    command.add_argument("--data-dir", metavar="FOLDER", help="of the test set's files, for --units document")
    command.add_argument("--margin", type=float, help="also test whether they are equivalent within so many points")


def add_plot_commands(add_command: AddCommand) -> None:
    """The commands that draw; they need the extra "plots"."""
    command = add_command("figures", "draw what encodings add or do, untrained or from a checkpoint")
    encodings_help = (
        "names of encodings, or sums such as sinusoidal+relative; and parameter=value: fields of the config"
    )
    command.add_argument("encodings", nargs="*", metavar="ENCODING", help=encodings_help)
    command.add_argument("--output", type=path_argument, required=True, help="the folder to write to")
    checkpoint_help = "a system of a run, or a saved model: draw its encoding"
    command.add_argument("--checkpoint", type=path_argument, metavar="FOLDER", help=checkpoint_help)
    command.add_argument("--side", choices=("encoder", "decoder"), default="encoder", help="whose (default encoder)")
    for name, default, description in (
        ("positions", 20, "first positions in heat maps and curves"),
        ("max-positions", 45000, "positions in the figures of the longest range"),
        ("distances", 32, "tokens between query and key, either way"),
        ("tokens", 24, "tokens of a sentence that an encoding reads"),
    ):
        command.add_argument(f"--{name}", type=int, default=default, help=f"{description} (default {default})")
    command.add_argument("--formats", nargs="+", choices=("png", "svg"), default=["png", "svg"], help="default both")

    command = add_command("attention", "draw the attention weights of a model that translates a sentence")
    command.add_argument("folder", type=path_argument, help="a system of a run, or a saved model")
    command.add_argument("sentence")
    command.add_argument("--output", type=path_argument, required=True, help="the folder to write to")
    command.add_argument("--layer", type=int, help="one layer, counted from 1 (default: all)")
    command.add_argument("--formats", nargs="+", choices=("png", "svg"), default=["png", "svg"], help="default both")
