"""The command line: translate sentences, convert a model or write it for another engine, make tables, figures and
cards again, draw encodings and attention, or print the tables of encodings and alignments.

    python -m hf_posenc translate FOLDER [--output FILE] [--num-processes N] < sentences > translations
    python -m hf_posenc translate FOLDER --stream < text > translation
    python -m hf_posenc export FOLDER --engine ctranslate2 --output OTHER [--quantization int8]
    python -m hf_posenc export FOLDER --engine onnx --output OTHER
    python -m hf_posenc convert CHECKPOINT --output OTHER [--to transformers] [field=value ...]
    python -m hf_posenc lengthen CHECKPOINT --pairs FILE [FILE] --test FILE [FILE] --source-language de
        --target-language en --to OTHER [--lora [RANK]] [dotted.key=value ...]
    python -m hf_posenc audit SOURCES TRANSLATIONS [--references FILE] [--document-ids FILE] [--output OTHER]
    python -m hf_posenc report RUN [--output OTHER]
    python -m hf_posenc card RUN SYSTEM > CARD.md
    python -m hf_posenc encodings
    python -m hf_posenc alignments
    python -m hf_posenc figures ENCODING [ENCODING ...] --output OTHER [parameter=value ...]
    python -m hf_posenc figures --checkpoint FOLDER --output OTHER
    python -m hf_posenc attention FOLDER "sentence" --output OTHER
    python -m hf_posenc explorer [RUN] [--port N] [--allow-host NAME]

One sentence a line; with --stream, one endless text. FOLDER is a saved model: a system of a run
(runs/quickstart/relative), its model folder, or any checkpoint of the family; to translate with, also one that `export`
has written for CTranslate2 or ONNX. CHECKPOINT is a FOLDER, or a BART, M2M-100, NLLB, Marian, mBART or Pegasus model of
transformers, as a folder or a name on the Hub. RUN is a run of train.py (runs/quickstart) or, for `report`, any folder
with a results.json.
ENCODING is a registered encoding or a sum such as sinusoidal+relative. With --register FILE.py every command knows the
encodings that the file registers.
"""

import argparse
import gc
import sys
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from hf_posenc import ALIGNMENTS, POSITION_ENCODINGS, PosEncConfig
from hf_posenc.hub.version import untested_transformers_warning
from hf_posenc.inference.ctranslate2_engine import to_ctranslate2
from hf_posenc.inference.onnx_engine import to_onnx
from hf_posenc.inference.translation_job import (
    TranslationJob,
    load_model,
    model_folder,
    silence_logging,
    translate_lines,
    translate_to_file,
)
from hf_posenc.lab.reports.audit import ARGUMENTS as AUDIT_ARGUMENTS
from hf_posenc.lab.reports.audit import audit_files
from hf_posenc.lab.reports.card import model_card
from hf_posenc.lab.results.registry_tables import alignments_table, encodings_table
from hf_posenc.lab.run.commands import add_convert_command, add_lengthen_command, path_argument
from hf_posenc.utils.atomic_io import explain_full_disk
from hf_posenc.utils.command_line import command_errors, register_encodings, set_stdout_utf8
from hf_posenc.utils.text_io import iter_lines, read_stream

ENGINES: dict[str, Callable[..., Path]] = {"ctranslate2": to_ctranslate2, "onnx": to_onnx}


def main() -> None:
    with command_errors():
        options = parse_options()
        warnings.formatwarning = format_warning
        if warning := untested_transformers_warning():
            print(warning, file=sys.stderr, flush=True)
        set_stdout_utf8()
        written = getattr(options, "output", None) or getattr(options, "to", None)
        with explain_full_disk(written if isinstance(written, Path) else Path()):
            if options.register:
                register_encodings(options.register)
            options.run_command(options)


def format_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """A warning as one line, without the line of code that it comes from."""
    return f"Warning: {message}\n"


def parse_options() -> argparse.Namespace:
    """The options of the command line; `run_command` is the function of the command."""
    parser = argparse.ArgumentParser(prog="python -m hf_posenc", description=__doc__.splitlines()[0])
    # Every command may meet an encoding of one's own.
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--register", type=path_argument, metavar="FILE.py", help="a file that registers encodings of one's own"
    )
    subparsers = parser.add_subparsers(dest="command", required=True)
    add_command = partial(subparsers.add_parser, parents=[common])
    add_model_commands(add_command)
    add_convert_command(add_command)
    add_lengthen_command(add_command)
    add_run_commands(add_command)
    add_plot_commands(add_command)
    options, extra_arguments = parser.parse_known_args()
    may_have_extra = options.command in ("figures", "convert", "lengthen")
    unknown = [argument for argument in extra_arguments if not may_have_extra or argument.startswith("-")]
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    options.extra_arguments = extra_arguments
    return options


def add_model_commands(add_command: Callable[..., argparse.ArgumentParser]) -> None:
    """The commands that load a trained model."""
    translate_help = "translate standard input, one sentence a line, to standard output or a file"
    command = add_command("translate", help=translate_help, description=translate_help)
    command.set_defaults(run_command=translate)
    command.add_argument(
        "folder", type=path_argument, help="a system of a run, a saved model, or a folder that `export` has written"
    )
    command.add_argument("--num-beams", type=int, help="width of the beam (default 5, with --stream 1)")
    command.add_argument(
        "--stream", action="store_true", help="standard input is one text; write each word as soon as it is fixed"
    )
    command.add_argument(
        "--output", type=path_argument, help="a file; the same call goes on with what a killed one left"
    )
    command.add_argument("--num-processes", type=int, default=1, help="that translate side by side (default 1)")
    command.add_argument("--quantize", action="store_true", help="linear layers in int8, on a CPU")
    command = add_command("export", help="write a trained model for another engine")
    command.set_defaults(run_command=export)
    command.add_argument("folder", type=path_argument, help="a system of a run, or a saved model")
    command.add_argument("--engine", required=True, choices=ENGINES, help="the engine to write it for")
    command.add_argument(
        "--output", required=True, type=path_argument, metavar="NEW_FOLDER", help="the folder to write"
    )
    command.add_argument("--quantization", help="of the weights: int8, for CTranslate2 also float16, ...")


def add_run_commands(add_command: Callable[..., argparse.ArgumentParser]) -> None:
    """The commands that read translations or a run, and those that print a registry."""
    command = add_command("audit", help="report what translations of documents leave out, repeat, move and invent")
    command.set_defaults(run_command=audit)
    for name, keywords in AUDIT_ARGUMENTS.items():
        command.add_argument(name, type=path_argument, **keywords)
    command = add_command("report", help="make the tables and figures of a results.json again")
    command.set_defaults(run_command=report)
    command.add_argument("run", type=path_argument, help="a folder with results.json")
    command.add_argument("--output", type=path_argument, help="the folder to write to (default: the same)")
    command = add_command("card", help="print the model card of a system of a run")
    command.set_defaults(run_command=card)
    command.add_argument("run", type=path_argument, help="the run's folder")
    command.add_argument("system", help="the system's name")
    command.add_argument("--repo-id", help="the repository that the card's examples load")
    command.add_argument("--license", help="licence of the training data, if the config states none or another")
    command = add_command("encodings", help="print the registered encodings as a Markdown table")
    command.set_defaults(run_command=encodings)
    command = add_command("alignments", help="print the registered alignments as a Markdown table")
    command.set_defaults(run_command=alignments)
    command = add_command("explorer", help="a page in the browser: see encodings, translate, compare")
    command.set_defaults(run_command=explorer)
    command.add_argument(
        "run", type=path_argument, nargs="?", help="a run's folder (default: none, and untrained models)"
    )
    command.add_argument("--port", type=int, help="of the page (default: the first that is free from 7860 on)")
    host_help = "another name of this machine under which the page is opened"
    command.add_argument("--allow-host", action="append", default=[], metavar="NAME", help=host_help)


def add_plot_commands(add_command: Callable[..., argparse.ArgumentParser]) -> None:
    """The commands that draw; they need the extra "plots"."""
    command = add_command("figures", help="draw what encodings add or do, untrained or from a checkpoint")
    command.set_defaults(run_command=figures)
    command.add_argument("encodings", nargs="*", help="names or sums; and parameter=value: fields of the config")
    command.add_argument("--output", type=path_argument, required=True, help="the folder to write to")
    command.add_argument(
        "--checkpoint", type=path_argument, help="a system of a run, or a saved model: draw its encoding"
    )
    command.add_argument("--side", choices=("encoder", "decoder"), default="encoder", help="whose (default encoder)")
    for name, default, description in (
        ("positions", 20, "first positions in heat maps and curves"),
        ("max-positions", 45000, "positions in the figures of the longest range"),
        ("distances", 32, "tokens between query and key, either way"),
        ("tokens", 24, "tokens of a sentence that an encoding reads"),
    ):
        command.add_argument(f"--{name}", type=int, default=default, help=f"{description} (default {default})")
    command.add_argument("--formats", nargs="+", choices=("png", "svg"), default=["png", "svg"], help="default both")
    command = add_command("attention", help="draw where a model looks while it translates a sentence")
    command.set_defaults(run_command=attention)
    command.add_argument("folder", type=path_argument, help="a system of a run, or a saved model")
    command.add_argument("sentence")
    command.add_argument("--output", type=path_argument, required=True, help="the folder to write to")
    command.add_argument("--layer", type=int, help="one layer, counted from 1 (default: all)")
    command.add_argument("--formats", nargs="+", choices=("png", "svg"), default=["png", "svg"], help="default both")


def figures(options: argparse.Namespace) -> None:
    from hf_posenc.lab.analysis.probes import PlotExtent
    from hf_posenc.lab.figures.save_figures import save_encoding_figures

    silence_logging()
    fields = ("positions", "max_positions", "distances", "tokens")
    extent = PlotExtent(**{name: getattr(options, name) for name in fields})
    checkpoint = options.checkpoint and model_folder(options.checkpoint)
    names = [*options.encodings, *options.extra_arguments]
    for path in save_encoding_figures(
        names, options.output, checkpoint=checkpoint, side=options.side, extent=extent, formats=options.formats
    ):
        print(path, flush=True)


def attention(options: argparse.Namespace) -> None:
    from hf_posenc.lab.figures.save_figures import save_attention_figures

    silence_logging()
    model, tokenizer = load_model(options.folder)
    for line in save_attention_figures(
        model, tokenizer, options.sentence, options.output, layer=options.layer, formats=options.formats
    ):
        print(line, flush=True)


def alignments(options: argparse.Namespace) -> None:
    print(alignments_table(ALIGNMENTS), end="")


def encodings(options: argparse.Namespace) -> None:
    print(encodings_table(POSITION_ENCODINGS, PosEncConfig()), end="")


def audit(options: argparse.Namespace) -> None:
    names = [name.lstrip("-").replace("-", "_") for name in AUDIT_ARGUMENTS]
    print(audit_files(**{name: getattr(options, name) for name in names}), end="")


def report(options: argparse.Namespace) -> None:
    from hf_posenc.lab.reports.report import write_report
    from hf_posenc.lab.results.saved_files import read_results

    print(write_report(read_results(options.run), options.output or options.run))


def explorer(options: argparse.Namespace) -> None:
    try:
        from hf_posenc.lab.explorer.page import launch
        from hf_posenc.lab.explorer.runs import ExplorerRun
    except ModuleNotFoundError as error:
        raise ValueError(
            f'The explorer needs the extra "explorer", but {error.name} is not installed; '
            "run `pip install 'hf-posenc[explorer]'`, in a clone `pip install '.[explorer]'`."
        ) from None

    silence_logging()
    launch(ExplorerRun(options.run), port=options.port, hosts=options.allow_host)


def card(options: argparse.Namespace) -> None:
    print(model_card(options.run, options.system, options.repo_id, options.license))


def translate(options: argparse.Namespace) -> None:
    silence_logging()
    if options.stream:
        translate_stream(options)
        return
    num_beams = 5 if options.num_beams is None else options.num_beams
    job = TranslationJob(options.folder, num_beams, options.quantize, options.register)
    lines = list(iter_lines(sys.stdin.buffer, "standard input"))
    kwargs = {"processes": options.num_processes, "progress": sys.stderr.isatty()}
    if options.output:
        translate_to_file(lines, options.output, job, **kwargs)
        return
    for translation in translate_lines(lines, job, **kwargs):
        print(translation, flush=True)


def translate_stream(options: argparse.Namespace) -> None:
    if options.output or options.num_processes != 1:
        raise ValueError(
            "--stream writes one translation to standard output, but --output or --num-processes was given; leave it "
            "out, and write to a file by > FILE."
        )
    num_beams = 1 if options.num_beams is None else options.num_beams
    translator = TranslationJob(options.folder, num_beams, options.quantize, options.register).streaming_translator()

    def write(texts: Iterable[str]) -> None:
        for text in texts:
            sys.stdout.write(text)
            sys.stdout.flush()

    try:
        write(translator.translate(read_stream(sys.stdin.buffer, "standard input")))
    except ValueError:  # of the input: what came before is translated to its end
        write(translator.finish_tokens())
        raise
    print()


def export(options: argparse.Namespace) -> None:
    silence_logging()
    model, tokenizer = load_model(options.folder)
    kwargs = {"quantization": options.quantization} if options.quantization else {}
    print(ENGINES[options.engine](model, tokenizer, options.output, **kwargs))


if __name__ == "__main__":
    gc.freeze()  # else Python looks through the objects of torch at its end, which takes seconds
    main()
