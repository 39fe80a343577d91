"""What each command of `hf-posenc` does: a function under the command's name, which takes the parsed options.

`cli.py` imports this module once the arguments are parsed. Commands that few people use import what only they need. The
tables of the registries are made here, too.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from ..alignments.base import Alignment
from ..alignments.registry import ALIGNMENTS
from ..convert.folders import convert_folder
from ..encodings.base import HOOKS
from ..encodings.registry import POSITION_ENCODINGS, PositionEncodingEntry
from ..inference.ctranslate2_engine import to_ctranslate2
from ..inference.loading import checkpoint_name, load_model, model_folder, silence_logging
from ..inference.onnx_engine import to_onnx
from ..transformer.configuration_posenc import PosEncConfig
from ..translator.checks import SegmentTranslation
from ..translator.coverage import doubt_uncovered
from ..translator.documents import TextDocument, parse_document, read_document
from ..translator.report import validate_report_path
from ..translator.report import write_report as write_translation_report
from ..translator.translation_job import TranslationJob, translate_document, translate_to_file
from ..utils.atomic_io import atomic_write
from ..utils.command_line import register_encodings
from ..utils.run_folder import RunPaths
from ..utils.text_io import read_lines, read_stream
from .config.yaml_io import Section, merge, parse_override
from .data.readers import expand_home

DOUBTFUL_STATUS = 3  # 1 is any error, and 2 an error of usage

if TYPE_CHECKING:
    from .results.saved_runs import SavedRow

__all__ = ["register_encodings"]  # for `cli.py`

EXPORTERS: dict[str, Callable[..., Path]] = {"ctranslate2": to_ctranslate2, "onnx": to_onnx}


def train(options: argparse.Namespace) -> None:
    """Train, score and compare the systems of a config file."""
    from .run.train import train_systems

    train_systems(
        options.config,
        (*options.overrides, *options.extra_arguments),
        dry_run=options.dry_run,
        system=options.system,
    )


def lengthen(options: argparse.Namespace) -> None:
    """Lengthen a model and print the table."""
    from .run.lengthen import LengthenJob
    from .run.lengthen import lengthen as lengthen_model

    silence_logging()
    pairs, test = (list(map(str, paths)) for paths in (options.pairs, options.test))
    languages = (options.source_language, options.target_language, options.source_tag, options.target_tag)
    job = LengthenJob(checkpoint_name(options.checkpoint), pairs, test, *languages, lora_rank=options.lora)
    print(lengthen_model(job, options.to, (*options.overrides, *options.extra_arguments)))


def convert(options: argparse.Namespace) -> None:
    """Convert a checkpoint and print the new folder."""
    silence_logging()
    fields: Section = {}
    for field in (*options.fields, *options.extra_arguments):
        fields = merge(fields, parse_override(field))
    tags = {"source_tag": options.source_tag, "target_tag": options.target_tag}
    print(convert_folder(checkpoint_name(options.checkpoint), options.output, to=options.to, **tags, **fields))


def score(options: argparse.Namespace) -> None:
    """Score a run by other metrics or length buckets, and print its tables."""
    from .reports.report import write_report
    from .results.aggregation import aggregate
    from .run.rescoring import score_run

    given = {
        "bucket_edges": options.buckets,
        "bertscore_model": options.bertscore_model,
        "bertscore_num_layers": options.bertscore_layers,
    }
    changes = {key: value for key, value in given.items() if value is not None}
    experiment = score_run(options.run, changes, options.metrics)
    print(write_report(aggregate(experiment), options.run))


def table(options: argparse.Namespace) -> None:
    """Print or write one table of several runs."""
    from .results.rendering import TABLE_FORMATS, TABLE_SUFFIXES
    from .results.saved_runs import table_of_runs

    suffix_format = TABLE_SUFFIXES.get(options.output.suffix, "markdown") if options.output else "markdown"
    made = table_of_runs(options.runs, options.rows, options.columns, options.metrics, options.baseline)
    text = TABLE_FORMATS[options.format or suffix_format](made)
    if options.output:
        atomic_write(options.output, text)
    else:
        print(text, end="")


def compare(options: argparse.Namespace) -> None:
    """Print the tests of two systems."""
    from .results.rendering import render_notes, render_text
    from .results.saved_runs import compare_systems

    if len(options.runs) > 2:
        raise ValueError(f"compare takes one run or two, but {len(options.runs)} are given; leave the others out.")
    made = compare_systems(
        options.runs, options.systems, options.metric, options.test, partial(unit_labels, options), options.margin
    )
    print(f"{render_text(made)}{render_notes([made])}", end="")


def measure_length(options: argparse.Namespace) -> None:
    """Measure a model, and print its report."""
    from ..measure.loading import load_for_measuring
    from ..measure.measure import measure_length as measure_model

    silence_logging()
    texts = []
    for path in options.texts:
        lines = list(read_lines(path))
        texts += ["\n".join(lines)] if options.references is None else lines
    references = None if options.references is None else list(read_lines(options.references))
    # A folder of a GGUF file has no config.json.
    name = options.model if options.gguf else checkpoint_name(Path(options.model))
    model, tokenizer = load_for_measuring(name, device=options.device, dtype=options.dtype, gguf_file=options.gguf)
    report = measure_model(
        model,
        tokenizer,
        texts,
        options.lengths,
        references=references,
        output=options.output,
        max_blocks=options.max_blocks,
        trials=options.trials,
        progress=sys.stderr.isatty(),
    )
    print(report.to_markdown(), end="")


def unit_labels(options: argparse.Namespace, row: "SavedRow", test: str) -> list[str] | None:
    """The label of each scored pair of a row's test set, None if each is a unit of its own."""
    if options.units == "sentence":
        return None
    if options.units == "document":
        from .run.saved_test_sets import document_labels, read_test_set

        test_set = read_test_set(RunPaths(row.folder), row.results, row.systems[0], test)
        return document_labels(test_set, options.data_dir)
    return list(read_lines(Path(expand_home(options.units))))


def translate(options: argparse.Namespace) -> None:
    """Translate a document, of a file or of standard input, into one of the same form."""
    silence_logging()
    if options.stream:
        translate_stream(options)
        return
    job = translation_job(options)
    if options.report:
        validate_report_path(options.report, options.input, options.output)
    if options.input:
        document = read_document(options.input, options.form, options.field)
    else:
        content, name = sys.stdin.buffer.read(), Path("standard input")
        document = parse_document(content, name, options.form or "lines", options.field)
    kwargs = {"processes": options.num_processes, "progress": sys.stderr.isatty()}

    def report(segments: list[SegmentTranslation]) -> None:
        doubt_uncovered(segments)
        if options.report:
            write_translation_report(options.report, segments, f"Translation of {options.input or 'standard input'}")

    if options.output:
        segments = translate_to_file(document, options.output, job, report, **kwargs)
    else:
        segments = print_translation(document, job, **kwargs)
        report(segments)
    num_doubtful = sum(bool(segment.doubts) for segment in segments)
    if options.fail_on_doubtful and num_doubtful:
        print(f"{num_doubtful} of {len(segments)} segments are doubtful.", file=sys.stderr)
        sys.exit(DOUBTFUL_STATUS)


def translation_job(options: argparse.Namespace) -> TranslationJob:
    """The job of the options of `translate`."""
    return TranslationJob(
        options.model,
        num_beams=options.num_beams,
        quantize=options.quantize,
        register=options.register,
        device=options.device,
        batch_size=options.batch_size,
        max_new_tokens=options.max_new_tokens,
        source_language=options.source_language,
        target_language=options.target_language,
        max_segment_tokens=options.segment_tokens,
        repair=not options.no_repair,
        prompt_template=options.prompt_template,
    )


def print_translation(document: TextDocument, job: TranslationJob, **kwargs: Any) -> list[SegmentTranslation]:
    """Print the translated document, chunk by chunk if its form allows it, and return the segments."""
    parts, segments = iter(document.parts), []
    for chunk, made in translate_document(document, job, **kwargs):
        segments += made
        if document.encode is None:
            for part in parts:
                sys.stdout.write(part.escaped)
                if part is chunk[-1]:
                    break
            sys.stdout.flush()
    if document.encode is None:
        sys.stdout.writelines(part.escaped for part in parts)
    else:
        sys.stdout.buffer.write(document.to_bytes())
    return segments


def translate_stream(options: argparse.Namespace) -> None:
    """Translate the input as one text, word by word."""
    names = ("output", "batch_size", "max_new_tokens", "segment_tokens", "form", "report", "prompt_template")
    flags = dict.fromkeys(("no_repair", "fail_on_doubtful"), False)
    for name, default in {**dict.fromkeys(names), **flags, "num_processes": 1}.items():
        if getattr(options, name) != default:
            raise ValueError(
                f"--stream writes one translation of any length to standard output, but --{name.replace('_', '-')} was "
                "given; leave it out, and write to a file by > FILE."
            )
    job = translation_job(options)
    if options.input:
        with options.input.open("rb") as file:
            write_stream(job, file, str(options.input))
    else:
        write_stream(job, cast(BinaryIO, sys.stdin.buffer), "standard input")


def write_stream(job: TranslationJob, stream: BinaryIO, name: str) -> None:
    """Write the translation of a stream of that name to standard output."""
    translator = job.streaming_translator()

    def write(texts: Iterable[str]) -> None:
        for text in texts:
            sys.stdout.write(text)
            sys.stdout.flush()

    try:
        write(translator.translate(read_stream(stream, name)))
    except ValueError:  # of the input: what came before is translated to its end
        write(translator.finish_tokens())
        raise
    print()


def export(options: argparse.Namespace) -> None:
    """Write a model for another engine, and print the folder."""
    silence_logging()
    model, tokenizer = load_model(options.folder)
    kwargs = {"quantization": options.quantization} if options.quantization else {}
    print(EXPORTERS[options.engine](model, tokenizer, options.output, **kwargs))


def audit(options: argparse.Namespace) -> None:
    """Print the audit of documents."""
    from .reports.audit import audit_files

    files = ("sources", "translations", "references", "document_ids", "translation_ids", "pairs", "report", "output")
    names = (*files, "form", "field", "source_language")
    print(audit_files(**{name: getattr(options, name) for name in names}), end="")


def report(options: argparse.Namespace) -> None:
    """Make the tables and figures of a run again, and print the first table."""
    from .reports.report import write_report
    from .results.saved_files import read_results

    print(write_report(read_results(options.run), options.output or options.run))


def samples(options: argparse.Namespace) -> None:
    """Write the samples of a run again, and print three lines of them."""
    from .results.saved_files import read_results
    from .run.samples import write_samples

    target = options.output or options.run
    print(write_samples(options.run, read_results(options.run), target))
    print(f"{target / 'samples.md'}\n{target / 'samples.html'}")


def card(options: argparse.Namespace) -> None:
    """Print a model card."""
    from .reports.card import model_card

    print(model_card(options.run, options.system, options.repo_id, options.license, options.domain))


def encodings(options: argparse.Namespace) -> None:
    """Print the table of encodings."""
    print(encodings_table(POSITION_ENCODINGS, PosEncConfig()), end="")


def alignments(options: argparse.Namespace) -> None:
    """Print the table of alignments."""
    print(alignments_table(ALIGNMENTS), end="")


def encodings_table(entries: Mapping[str, PositionEncodingEntry], config: PosEncConfig) -> str:
    """The registry as a Markdown table: summary, hooks, properties and parameters of each encoding."""
    rows = []
    for name, entry in entries.items():
        encoding = entry(config, config.side("encoder"))
        hooks = [f"`{hook}`" for hook in (*HOOKS, "augment_positions") if getattr(encoding, hook) is not None]
        parameters = [f"`{parameter.name}` {parameter.default}" for parameter in entry.config_parameters]
        max_length = f"`{entry.max_length_field}`" if entry.max_length_field else "any"
        shift_invariant = "yes" if entry.shift_invariant else "no"
        summary = entry.summary
        # Order-blind implies reversal-blind, and the summary of an order-blind encoding says so.
        if entry.reversal_equivariant and not entry.permutation_equivariant:
            summary += " An encoder cannot distinguish a text from its reversal."
        cells = [
            summary,
            ", ".join(hooks) or "-",
            shift_invariant,
            max_length,
            ", ".join(parameters) or "-",
        ]
        rows.append([f"`{name}`", *cells])
    return markdown_table(["encoding", "what it is", "hooks", "shift-invariant", "maximum length", "parameters"], rows)


def alignments_table(alignments: Mapping[str, type[Alignment]]) -> str:
    """The registry of alignments as a Markdown table."""
    rows = []
    for name, alignment in alignments.items():
        parameters = [f"`{parameter.name}` {parameter.default}" for parameter in alignment.config_parameters]
        uses_length = "yes" if alignment.uses_target_length else "no"
        rows.append([f"`{name}`", alignment.summary, uses_length, ", ".join(parameters) or "-"])
    return markdown_table(["alignment", "what it is", "uses the target length in training", "parameters"], rows)


def markdown_table(headers: list[str], rows: list[list[str]]) -> str:
    """A Markdown table of these cells."""
    return "\n".join("| " + " | ".join(row) + " |" for row in [headers, ["---"] * len(headers), *rows]) + "\n"


def explorer(options: argparse.Namespace) -> None:
    """Serve the explorer until it is stopped."""
    try:
        from .explorer.page import launch
        from .explorer.runs import ExplorerRun
    except ModuleNotFoundError as error:
        raise ValueError(
            f'The explorer needs the extra "explorer", but {error.name} is not installed; '
            "run `pip install 'hf-posenc[explorer]'`, in a clone `pip install '.[explorer]'`."
        ) from None

    silence_logging()
    launch(ExplorerRun(options.run), port=options.port, hosts=options.allow_host)


def figures(options: argparse.Namespace) -> None:
    """Draw encodings, and print the paths of the figures."""
    from .analysis.probes import PlotExtent
    from .figures.encoding_plots import save_encoding_figures

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
    """Draw attention weights, and print what was drawn."""
    from .figures.attention_figures import save_attention_figures

    silence_logging()
    model, tokenizer = load_model(options.folder)
    for line in save_attention_figures(
        model, tokenizer, options.sentence, options.output, layer=options.layer, formats=options.formats
    ):
        print(line, flush=True)
