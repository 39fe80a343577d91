"""Damaged files: what each loader makes of a file that was cut, flipped, or has a value of another kind.

    python benchmarks/fuzz_loaders.py [--files 300] [--seed 0] [--only KIND ...]

Small folders of each kind are made first: models of this family, one of transformers, tokenizers, exports, a run. Each
case changes one file in a copy and loads it in a process of its own. A load may work, or end in one ValueError or
OSError of one line that names the file or its folder. All else is a fault: another error, a crash, code of the folder
that runs, a file written outside the copy, or more memory than MAX_BYTES. The exit status is 1 if there is a fault.

Manifests are left out of the copies, unless one is changed itself: they would refuse every change before a loader reads
it.
"""

import argparse
import json
import math
import multiprocessing
import os
import random
import resource
import shutil
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers
import yaml
from tqdm import tqdm
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    BartConfig,
    BartForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    PreTrainedTokenizerFast,
)

import hf_posenc
from hf_posenc.convert.folders import auto_from_pretrained, convert_folder
from hf_posenc.lab.config.loading import load_experiment
from hf_posenc.lab.data.synthetic import generate_pairs
from hf_posenc.lab.reports.card import model_card
from hf_posenc.lab.reports.report import write_report
from hf_posenc.lab.results.aggregation import aggregate
from hf_posenc.lab.results.saved_files import read_results
from hf_posenc.lab.run.pipeline import run_system
from hf_posenc.lab.run.prepare import prepare
from hf_posenc.lab.run.prepared_run import PreparedRun
from hf_posenc.lab.run.shared_tokenizer import load_shared_tokenizer, read_provenance
from hf_posenc.metrics.length_buckets.scorers import load_tokenizer
from hf_posenc.translator.translation_job import TranslationJob
from hf_posenc.utils.manifest import MANIFEST
from hf_posenc.utils.run_folder import RunPaths

# Children are forked off a process that has imported everything.
PROCESSES = multiprocessing.get_context("forkserver")
PRELOADED = ["hf_posenc", "hf_posenc.lab.run.pipeline", "hf_posenc.lab.reports.report", "transformers.models.bart"]
MAX_BYTES, MAX_SECONDS = 2**33, 60  # address space and processor time of a load
MAX_DEPTH = 100_000  # levels of nested lists, more than any reader's stack has
SIZES = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
         "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}  # fmt: skip
STRANGE: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 10**30, 1e308, 0.5, math.nan, math.inf, "", "x", "\ud83d", "../../../etc/passwd",
    "/etc/passwd", [], [[]], [None], {}, {"a": 1}, "none", "relative+window",
)  # fmt: skip
DEEP = "a value of many levels"
CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "shutil.rmtree", "os.symlink", "os.link"}
PROGRAMS = {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "socket.connect"}


@dataclass(frozen=True)
class Kind:
    """Folders of one kind: how one is made, how it is loaded, the packages that both need, and the files to change."""

    build: Callable[[Path], object]
    loads: Sequence[Callable[[Path], object]]
    packages: Sequence[str] = ()
    files: str = "**/*"


@dataclass(frozen=True)
class Case:
    """One change of one file of a folder, and the load that is tried."""

    kind: str
    file: str
    change: str
    load: int

    def __str__(self) -> str:
        return f"{self.kind}, {self.file}, {self.change}, load {self.load}"


# Folders


def tokenizer() -> hf_posenc.PosEncTokenizer:
    pairs = generate_pairs(seed=1, pairs=100, min_words=4, max_words=8)
    return hf_posenc.PosEncTokenizer.train([text for pair in pairs for text in pair], 400, tags=["<2en>"])


def save_model(folder: Path, model: Any, **options: Any) -> None:
    model.save_pretrained(folder, **options)
    tokenizer().save_pretrained(folder)


def aligned_model(folder: Path, **options: Any) -> None:
    config = hf_posenc.PosEncConfig(
        **SIZES, vocab_size=400, position_encoding_type="relative+window", alignment_type="length_ratio",
        cross_position_encoding_type="rotary+window",
    )  # fmt: skip
    save_model(folder, hf_posenc.PosEncForConditionalGeneration(config), **options)


def plain_model() -> Any:
    config = hf_posenc.PosEncConfig(**SIZES, vocab_size=400, position_encoding_type="sinusoidal")
    return hf_posenc.PosEncForConditionalGeneration(config).eval()


def causal_model(folder: Path) -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = hf_posenc.PosEncCausalConfig(**sizes, vocab_size=400, position_encoding_type="rotary")
    save_model(folder, hf_posenc.PosEncForCausalLM(config))


def rnn_model(folder: Path) -> None:
    config = hf_posenc.RnnNmtConfig(d_model=16, encoder_layers=1, decoder_layers=1, vocab_size=400)
    save_model(folder, hf_posenc.RnnNmtForConditionalGeneration(config))


def bart(folder: Path) -> None:
    config = BartConfig(
        **SIZES, vocab_size=400, max_position_embeddings=40, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=2, forced_eos_token_id=2,
    )  # fmt: skip
    BartForConditionalGeneration(config).save_pretrained(folder)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer().backend_tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    fast.save_pretrained(folder)


def marian(folder: Path) -> None:
    import sentencepiece
    from transformers import MarianTokenizer

    folder.mkdir()
    lines = [text for pair in generate_pairs(seed=1, pairs=100, min_words=4, max_words=8) for text in pair]
    for side in ("source", "target"):
        with (folder / f"{side}.spm").open("wb") as file:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(lines), model_writer=file, vocab_size=100, hard_vocab_limit=False,
                minloglevel=2, bos_id=-1, eos_id=0, unk_id=1,
            )  # fmt: skip
    model = sentencepiece.SentencePieceProcessor(model_file=str(folder / "source.spm"))
    pieces = [model.id_to_piece(number) for number in range(model.get_piece_size())] + ["<pad>"]
    (folder / "vocab.json").write_text(json.dumps({piece: number for number, piece in enumerate(pieces)}))
    MarianTokenizer(*(str(folder / name) for name in ("source.spm", "target.spm", "vocab.json"))).save_pretrained(
        folder
    )
    pad = len(pieces) - 1
    config = MarianConfig(
        **SIZES, vocab_size=len(pieces), pad_token_id=pad, decoder_start_token_id=pad, eos_token_id=0,
        forced_eos_token_id=0, max_position_embeddings=40,
    )  # fmt: skip
    MarianMTModel(config).save_pretrained(folder)


def run(folder: Path) -> None:
    """A whole run of two steps, with its report."""
    corpus = {"generator": {"seed": 1, "pairs": 60, "min_words": 4, "max_words": 8}}
    config = {
        "name": folder.name,
        "data": {"source_language": "de", "target_language": "en", "vocab_size": 700, "max_length": 40,
                 "train": corpus, "test": {"generated": {"generator": corpus["generator"] | {"seed": 2, "pairs": 4}}}},
        "model": SIZES,
        "train": {"max_steps": 2, "save_steps": 2, "logging_steps": 1, "use_cpu": True},
        "score": {"bucket_edges": [12], "num_beams": 1, "max_new_tokens": 4, "bootstrap_samples": 100},
        "systems": {"absolute": {"model": {"position_encoding_type": "sinusoidal"}}, "relative": {}},
        "diagnose": True,
    }  # fmt: skip
    path = folder.with_suffix(".yaml")
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    experiment = load_experiment(path, [f"output_dir={folder.parent}"])
    prepare(experiment)
    for name in experiment.systems:
        run_system(PreparedRun(experiment), name)
    write_report(aggregate(experiment), experiment.tables_folder)


# Loads


def load_run(folder: Path) -> None:
    """What a table, a card and a resumed command read of a run: all but the training."""
    path = folder.parent / "run.yaml"
    experiment = load_experiment(path, [f"output_dir={folder.parent}", f"name={folder.name}"])
    prepared = PreparedRun(experiment)
    for system in prepared:
        system.validate_prepared()
    aggregate(experiment)


def load_report(folder: Path) -> None:
    write_report(read_results(folder), folder / "report")


def load_tokenizer_of_run(folder: Path) -> None:
    load_shared_tokenizer(RunPaths(folder))
    read_provenance(RunPaths(folder))


def auto_tokenizer(folder: Path) -> None:
    auto_from_pretrained(AutoTokenizer, folder)


def job(folder: Path) -> None:
    made = TranslationJob(folder)
    made.tokenizer_and_limit()
    made.translator()


def converted(folder: Path, **options: Any) -> None:
    convert_folder(folder, folder / "converted", **options)


def by_class(model_class: Any, folder: Path) -> None:
    model_class.from_pretrained(folder)


def kinds() -> dict[str, Kind]:
    """The kinds of folders, by name."""
    own = partial(by_class, hf_posenc.PosEncForConditionalGeneration)
    own_tokenizer = partial(by_class, hf_posenc.PosEncTokenizer)
    return {
        "aligned": Kind(aligned_model, (job, own, partial(by_class, AutoModelForSeq2SeqLM), own_tokenizer, converted)),
        "sharded": Kind(partial(aligned_model, max_shard_size="5KB"), (job, own)),
        "causal": Kind(causal_model, (job, partial(by_class, hf_posenc.PosEncForCausalLM), converted)),
        "rnn": Kind(rnn_model, (job, partial(by_class, hf_posenc.RnnNmtForConditionalGeneration))),
        "bart": Kind(bart, (hf_posenc.from_transformers, converted)),
        "marian": Kind(marian, (hf_posenc.from_transformers, converted), ("sentencepiece",)),
        "tokenizer": Kind(
            lambda folder: tokenizer().save_pretrained(folder), (own_tokenizer, auto_tokenizer, load_tokenizer)
        ),
        "onnx": Kind(
            lambda folder: hf_posenc.to_onnx(plain_model(), tokenizer(), folder),
            (job, hf_posenc.PosEncOnnxModel.from_pretrained), ("onnxruntime", "onnxscript"),
        ),
        "ctranslate2": Kind(
            lambda folder: hf_posenc.to_ctranslate2(plain_model(), tokenizer(), folder),
            (job, hf_posenc.CTranslate2Translator), ("ctranslate2",),
        ),
        "run": Kind(run, (load_run, load_run, load_tokenizer_of_run, partial(model_card, system="relative"))),
        "report": Kind(run, (load_report,), ("matplotlib",), "results.json"),
    }  # fmt: skip


# Changes


def nodes(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of each value in a JSON value, of the first ones of a long list."""
    yield path
    children = value.items() if isinstance(value, dict) else enumerate(value[:20]) if isinstance(value, list) else ()
    for key, child in children:
        yield from nodes(child, (*path, key))


def changed_json(value: Any, chance: random.Random) -> tuple[str, str]:
    """The text of a JSON value with one value of another kind or gone, and what was done."""
    path = chance.choice(list(nodes(value)))
    where = ".".join(map(str, path)) or "all"
    new = chance.choice((*STRANGE, DEEP, "deleted"))
    if not path:
        return json.dumps(new).replace(f'"{DEEP}"', "[" * MAX_DEPTH + "]" * MAX_DEPTH), f"{where} is {new!r}"
    value = json.loads(json.dumps(value))
    parent = value
    for key in path[:-1]:
        parent = parent[key]
    if new == "deleted":
        del parent[path[-1]]
    else:
        parent[path[-1]] = new
    return json.dumps(value).replace(f'"{DEEP}"', "[" * MAX_DEPTH + "]" * MAX_DEPTH), f"{where} is {new!r}"


def changed_structure(path: Path, chance: random.Random) -> str:
    """Change a value in a file of JSON, JSON lines or YAML, or in the header of safetensors; returns what was done."""
    content = path.read_bytes()
    if path.suffix == ".safetensors":
        length = int.from_bytes(content[:8], "little")
        text, change = changed_json(json.loads(content[8 : 8 + length]), chance)
        header = text.encode("utf-8", "replace")
        path.write_bytes(len(header).to_bytes(8, "little") + header + content[8 + length :])
    elif path.suffix == ".jsonl":
        lines = content.decode().split("\n")
        number = chance.randrange(len(lines) - 1)
        lines[number], change = changed_json(json.loads(lines[number]), chance)
        path.write_text("\n".join(lines), encoding="utf-8", errors="replace")
    else:
        text, change = changed_json(
            (yaml.safe_load if path.suffix == ".yaml" else json.loads)(content.decode()), chance
        )
        path.write_text(text, encoding="utf-8", errors="replace")
    return change


def changed_bytes(path: Path, chance: random.Random) -> str:
    """Cut a file, flip bits of it, fill a part of it with noise, or delete it; returns what was done."""
    content = bytearray(path.read_bytes())
    change = chance.choice(("cut", "flipped", "flipped", "noise", "emptied", "deleted"))
    place = chance.randrange(len(content)) if content else 0
    if change == "deleted":
        path.unlink()
        return change
    if change == "cut":
        del content[place:]
    elif change == "emptied":
        content.clear()
    elif content and change == "flipped":
        content[place] ^= 1 << chance.randrange(8)
    elif content:
        content[place : place + 16] = chance.randbytes(16)
    path.write_bytes(content)
    return f"{change} at {place}"


STRUCTURED = (".json", ".jsonl", ".yaml", ".safetensors")


def change_file(path: Path, chance: random.Random) -> str:
    if path.suffix in STRUCTURED and chance.random() < 0.7:
        return changed_structure(path, chance)
    return changed_bytes(path, chance)


# Trials


def watch(folder: Path, seen: list[str]) -> None:
    """List what no load may do: programs, connections, code of the folder, files written outside of it."""
    inside, here = str(folder), (str(folder.parent), "/dev/", str(Path.home() / ".cache"))

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in PROGRAMS:
            seen.append(f"{event} {str(arguments)[:200]}")
        elif event == "exec" and str(getattr(arguments[0], "co_filename", "")).startswith(inside):
            seen.append(f"code of {arguments[0].co_filename}")
        elif event in CHANGES or event == "open":
            path, *rest = arguments or ("",)
            is_change = event != "open" or bool(rest[1] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
            if is_change and isinstance(path, str | os.PathLike) and not os.path.abspath(path).startswith(here):
                seen.append(f"{event} {path}")

    sys.addaudithook(hook)


def trial(case: Case, folder: Path, answer: Path) -> None:
    """What a child does: one load, and how it ended."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    noise = os.open(answer.with_suffix(".noise"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(noise, 2)
    os.dup2(noise, 1)
    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_SECONDS, MAX_SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    seen: list[str] = []
    load = kinds()[case.kind].loads[case.load]
    watch(folder, seen)
    try:
        load(folder)
        outcome = "loaded", ""
    except (ValueError, OSError) as error:
        said = str(error)
        names = str(folder) in said or Path(case.file).name in said
        fault = "not one line" if "\n" in said else "" if names else "names no file"
        outcome = (
            fault or "refused",
            f"{type(error).__name__}: {said}" + (f"\n{traceback.format_exc()}" if fault else ""),
        )
    except BaseException:
        outcome = "traceback", traceback.format_exc(limit=-12)
    if seen:
        outcome = "forbidden", "; ".join(seen[:3])
    answer.write_text(json.dumps(outcome), encoding="utf-8")


def try_case(case: Case, folder: Path) -> tuple[str, str]:
    """How a load ended: "loaded", "refused", or a fault; and what there is to know of it."""
    answer = folder.with_suffix(".answer")
    answer.unlink(missing_ok=True)
    child = PROCESSES.Process(target=trial, args=(case, folder, answer))
    child.start()
    child.join()
    if not answer.exists():
        noise = (
            answer.with_suffix(".noise").read_text(errors="replace") if answer.with_suffix(".noise").exists() else ""
        )
        return "crash", f"exit code {child.exitcode}\n{noise[-2000:]}"
    kind, said = json.loads(answer.read_text(encoding="utf-8"))
    return kind, said


def files_of(folder: Path, pattern: str) -> list[Path]:
    """The files that a loader may read, by their paths in the folder."""
    return sorted(
        path.relative_to(folder)
        for path in folder.glob(pattern)
        if path.is_file() and "checkpoints" not in path.parts and not path.name.startswith((".", "table-"))
        and path.suffix not in (".py", ".png", ".md", ".tex", ".csv", ".lock")
    )  # fmt: skip


def changed_copy(origin: Path, copy: Path, file: Path, chance: random.Random) -> str:
    """Copy a folder, without manifests unless one is to be changed, and change a file; returns what was done."""
    ignored = ["checkpoints", *([] if file.name == MANIFEST else [MANIFEST])]
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(origin, copy, ignore=shutil.ignore_patterns(*ignored))
    return change_file(copy / file, chance)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=300, help="damaged files (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the damages (%(default)s)")
    parser.add_argument("--only", nargs="+", choices=tuple(kinds()), help="kinds of folders")
    options = parser.parse_args(arguments)
    PROCESSES.set_forkserver_preload(PRELOADED)
    transformers.logging.disable_progress_bar()
    chance, counts, faults = random.Random(options.seed), Counter[tuple[str, str]](), []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["MPLCONFIGDIR"] = str(folder / "matplotlib")
        chosen = {
            name: kind for name, kind in kinds().items()
            if name in (options.only or kinds()) and all(map(find_spec, kind.packages))
        }  # fmt: skip
        for name, kind in chosen.items():
            tqdm.write(f"making: {name}", file=sys.stderr)
            kind.build(folder / name)
        copy = folder / "case"
        for number in tqdm(range(options.files), unit="file", disable=None):
            name = list(chosen)[number % len(chosen)]
            file = chance.choice(files_of(folder / name, chosen[name].files))
            change = changed_copy(folder / name, copy, file, chance)
            case = Case(name, str(file), change, chance.randrange(len(chosen[name].loads)))
            ending, said = try_case(case, copy)
            counts[name, ending] += 1
            if ending not in ("loaded", "refused"):
                faults.append(f"{ending}: {case}\n{said}\n")
    endings = sorted({ending for _, ending in counts})
    print("| folder | " + " | ".join(endings) + " |\n|---" + "|---:" * len(endings) + "|")
    for name in chosen:
        print(f"| {name} | " + " | ".join(str(counts[name, ending]) for ending in endings) + " |")
    print("\n".join(["", *faults, f"{options.files} files, {len(faults)} faults."]))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
