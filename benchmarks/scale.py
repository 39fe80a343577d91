"""What preparing a run costs for N pairs: every stage from the text to the first batches, its time and its memory.

The embedded generator writes the pairs into two aligned files; then follows what train.py does with such files, by the
same functions. All of it lies in one folder, the cache of `datasets` too.
"""

import argparse
import itertools
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import common
import datasets
from transformers import DataCollatorForSeq2Seq

from hf_posenc import PosEncConfig, PosEncForConditionalGeneration
from hf_posenc.lab.data.corpus import load_pairs
from hf_posenc.lab.data.lengths import filter_lengths
from hf_posenc.lab.data.synthetic import LANGUAGES, generate_pairs
from hf_posenc.lab.data.tokenization import tokenize_pairs, train_tokenizer
from hf_posenc.lab.training.arguments import training_arguments
from hf_posenc.lab.training.trainer import LengthTrainer

MEMORY_KINDS = {"anonymous_mib": "RssAnon", "resident_mib": "VmRSS"}  # of memory, and what Linux calls them
NUM_FETCHED = 200  # batches

Stage = Callable[[str], AbstractContextManager[dict[str, Any]]]


class PeakMemory(threading.Thread):
    """The most memory that this process and those below it hold together, looked at ten times a second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.mebibytes = memory_in_use()
        self.over = threading.Event()

    def run(self) -> None:
        looking = True
        while looking:
            looking = not self.over.wait(0.1)
            self.mebibytes = {
                kind: max(most, now)
                for (kind, now), most in zip(memory_in_use().items(), self.mebibytes.values(), strict=True)
            }

    def end(self) -> dict[str, float]:
        self.over.set()
        self.join()
        return self.mebibytes


def memory_in_use() -> dict[str, float]:
    """The memory of each kind that the process and those below it hold now, in MiB."""
    total = dict.fromkeys(MEMORY_KINDS, 0.0)
    for process in process_tree("self"):
        with suppress(OSError):  # It may have ended meanwhile.
            lines = (line.split() for line in Path(f"/proc/{process}/status").read_text().splitlines())
            facts = {words[0]: words[1] for words in lines if len(words) > 1}
            for kind, name in MEMORY_KINDS.items():
                total[kind] += int(facts.get(f"{name}:", 0)) / 1024
    return {kind: round(mebibytes, 1) for kind, mebibytes in total.items()}


def process_tree(process: str) -> Iterator[str]:
    """A process and all below it."""
    yield process
    with suppress(OSError):
        for children in Path(f"/proc/{process}/task").glob("*/children"):
            for child in children.read_text().split():
                yield from process_tree(child)


def stage_timer(options: argparse.Namespace, folder: Path, records: common.Records) -> Stage:
    """What a stage is wrapped into: it gets a record, in which it may correct the number of pairs."""

    @contextmanager
    def stage(name: str) -> Iterator[dict[str, Any]]:
        record: dict[str, Any] = {"stage": name, "pairs": options.pairs}
        peak = PeakMemory()
        peak.start()
        started = {kind: clock() for kind, clock in common.CLOCKS.items()}
        yield record
        seconds = {kind: clock() - started[kind] for kind, clock in common.CLOCKS.items()}
        record |= {f"{kind}_seconds": round(took, 2) for kind, took in seconds.items()}
        record["pairs_per_second"] = round(record["pairs"] / seconds["wall"])
        disk = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        record |= peak.end() | {"disk_mib": round(disk / 2**20, 1)}
        records.append(record)
        print(record, flush=True)

    return stage


def prepare(options: argparse.Namespace, folder: Path, stage: Stage) -> None:
    """The stages, one after the other."""
    files = [folder / f"pairs.{language}" for language in LANGUAGES]
    languages: Any = dict(zip(("source_language", "target_language"), LANGUAGES, strict=True))
    with stage("generate"):
        generated = generate_pairs(
            seed=1, pairs=options.pairs, min_words=options.min_words, max_words=options.max_words
        )
        with files[0].open("w", encoding="utf-8") as sources, files[1].open("w", encoding="utf-8") as targets:
            for source, target in generated:
                sources.write(f"{source}\n")
                targets.write(f"{target}\n")
    with stage("read"):
        pairs = load_pairs({"files": [str(file) for file in files]}, **languages)
    with stage("train the tokenizer"):
        tokenizer = train_tokenizer(pairs, options.vocab_size, **languages)
    with stage("encode"):
        encoded = tokenize_pairs(pairs, tokenizer, **languages)
    with stage("save"):
        encoded.save_to_disk(folder / "encoded")
        encoded = datasets.load_from_disk(folder / "encoded")
    with stage("filter by length"):
        kept = filter_lengths(encoded, min_length=None, max_length=options.max_length)
    config = PosEncConfig(vocab_size=len(tokenizer), d_model=16, encoder_layers=1, decoder_layers=1)
    trainer = LengthTrainer(
        model=PosEncForConditionalGeneration(config),
        args=training_arguments({"tokens_per_batch": options.tokens_per_batch, "use_cpu": True}, folder),
        train_dataset=kept,
        data_collator=DataCollatorForSeq2Seq(tokenizer),
        processing_class=tokenizer,
    )
    with stage("cut into batches") as record:
        record["pairs"] = len(kept)
        loader = trainer.get_train_dataloader()
    with stage("draw an epoch") as record:
        batches: Any = loader.batch_sampler
        record["pairs"] = sum(len(rows) for rows in batches)
    with stage(f"fetch {NUM_FETCHED} batches") as record:
        record["pairs"] = sum(len(batch["input_ids"]) for batch in itertools.islice(loader, NUM_FETCHED))


def markdown(report: dict[str, Any]) -> str:
    """A row for each stage."""
    lines = [
        "| stage | seconds | of CPU | pairs a second | anonymous, MiB | resident, MiB | disk, MiB |",
        "|---" * 7 + "|",
    ]
    row = "| {stage} | {wall_seconds:.1f} | {cpu_seconds:.1f} | {pairs_per_second:,} | {anonymous_mib:,.0f} "
    row += "| {resident_mib:,.0f} | {disk_mib:,.0f} |"
    lines += [row.format(**record) for record in report["records"]]
    what = "{pairs:,} pairs of {min_words} to {max_words} words, vocabulary {vocab_size}, at most {max_length} subwords"
    before = "before the first stage {anonymous_mib:.0f} and {resident_mib:.0f} MiB".format(**report["before"])
    how = f"{what.format(**report)}, {report['tokens_per_batch']} tokens a batch; {before}."
    return "\n".join(
        [*lines, "", f"{how} {common.describe_machine(report['machine'])}, datasets {report['datasets']}."]
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, number in (
        ("pairs", 5_000_000),
        ("min-words", 6),
        ("max-words", 40),
        ("vocab-size", 1400),
        ("max-length", 40),
        ("tokens-per-batch", 4700),
    ):
        parser.add_argument(f"--{name}", type=int, default=number, help="%(default)s by default")
    parser.add_argument("--folder", type=Path, help="new or empty, to be kept; by default a temporary one")
    parser.add_argument("--save", metavar="NAME", help="as benchmarks/results/NAME.json and NAME.md")
    options = parser.parse_args(arguments)
    if options.folder and options.folder.exists() and any(options.folder.iterdir()):
        parser.error(f"what lies in --folder would not be made again and so not timed, but {options.folder} is not "
                     "empty; name a new folder.")  # fmt: skip
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        report = vars(options) | {"before": memory_in_use(), "records": []}
        del report["folder"]
        with mock.patch.object(datasets.config, "HF_DATASETS_CACHE", folder / "cache"):
            prepare(options, folder, stage_timer(options, folder, report["records"]))
    report |= {"machine": common.machine_info("cpu"), "datasets": datasets.__version__}
    print(markdown(report))
    if options.save:
        common.save(report, markdown(report), options.save)


if __name__ == "__main__":
    main()
