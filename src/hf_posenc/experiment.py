"""A config file's systems -> runs/<name>/<system>/: trained, translated, scored; then one table and picture for all.

    runs/<name>/tokenizer/                  trained on the unfiltered training text, shared by all systems
    runs/<name>/data/                       encoded training and validation pairs, test sets with their source lengths
    runs/<name>/<system>/settings.yaml      everything that makes the system
                         checkpoints/       the Trainer's
                         training.jsonl     loss by step and by seconds
                         model/             weights, config, code and tokenizer: load it with from_pretrained
                         translations/      one file for each test set
                         scores.json        the result; a system that has it is finished
    runs/<name>/results.json  table-*.md  bleu-by-length-*.png

Whatever is there already and belongs to the same settings is used as it is, so an interrupted run goes on where it was.
"""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from accelerate import PartialState
from datasets import Dataset, concatenate_datasets, load_from_disk
from tqdm.auto import tqdm
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, set_seed

from .arguments import arguments
from .checkpoints import check_weights
from .config import DataSettings, Experiment, ScoreSettings, System, differing_key, short_hash, write_whole
from .data import encode_pairs, filter_lengths, join_consecutive, load_pairs, train_tokenizer
from .data.files import digests, named_folder
from .evaluation import score, translate_test_set
from .modeling.tokenization_posenc import PosEncTokenizer
from .plots import bleu_by_length, save_figure
from .processes import refuse_difference
from .tables import length_table, markdown, overview_table, text
from .training import train


def prepare(experiment: Experiment) -> None:
    """Everything that can go wrong before training: settings, data, vocabulary, lengths. Writes what systems share."""
    for system in experiment.systems.values():
        arguments(system.train, experiment.folder / system.name)
        check_same_settings(experiment, system)
    check_same_files(experiment)
    first, *_ = experiment.systems.values()
    tokenizer = shared_tokenizer(experiment, first)
    for system in experiment.systems.values():
        training = training_pairs(experiment, system, tokenizer)
        validation = validation_pairs(experiment, system, tokenizer)
        tests = [test_set(experiment, system, name, tokenizer) for name in test_sets(system)]
        check_lengths(system, [training] if validation is None else [training, validation], tests)


def check_lengths(system: System, encoded: list[Dataset], tests: list[Dataset]) -> None:
    """Refuse, before training, pairs that are longer than the system's encodings can tell apart."""
    config = system.model_config(system.data.vocab_size)
    sources = max(pairs.with_format("numpy")["source_length"][:].max() for pairs in [*encoded, *tests])
    targets = max(pairs.with_format("numpy")["target_length"][:].max() for pairs in encoded)
    for side, length, longest in (
        ("source", sources, config.longest_source),
        ("target", targets, config.longest_target),
    ):
        if longest is not None and length + 1 > longest:
            raise ValueError(
                f"systems.{system.name}: its encoding tells {longest} positions apart, but a {side} has {length} "
                "subwords and a special token; raise its table (such as model.learned_max_positions), lower "
                "data.max_length, or choose another test set."
            )


def check_same_settings(experiment: Experiment, system: System) -> None:
    """Refuse a run directory that other settings have made, and write down those of a new one."""
    path = experiment.folder / system.name / "settings.yaml"
    settings = system.settings()
    if not path.exists():
        write_whole(path, yaml.safe_dump(settings, sort_keys=False, allow_unicode=True))
        return
    saved = yaml.safe_load(path.read_text(encoding="utf-8"))
    data, score = DataSettings(**saved["data"]), ScoreSettings(**saved["score"])
    of_the_run = System(
        system.name, data, score, saved["model"], saved["train"]
    )  # what is newer than it, at its default
    if difference := differing_key(of_the_run.settings(), settings):
        raise ValueError(
            f"A run directory belongs to the settings that made it, but in {path.parent} {difference}; undo the "
            f"change, give the run another name (name=...), or delete the directory."
        )


def check_same_files(experiment: Experiment) -> None:
    """Refuse files that are no longer those that a run was made from, and write down those of a new one."""
    path = experiment.folder / "data" / "files.json"
    first, *_ = experiment.systems.values()
    corpora = [first.data.train, first.data.validation or {}, *first.data.test.values()]
    corpora += [system.data.train for system in experiment.systems.values()]
    found = {name: digest for where in corpora for name, digest in digests(where, first.data.folder).items()}
    saved = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for name in found.keys() & saved.keys():
        if found[name] != saved[name]:
            raise ValueError(
                f"A run directory belongs to the data that made it, but {name} has changed since {experiment.folder} "
                "was made; put the file back, give the run another name (name=...), or delete the directory."
            )
    write_whole(path, json.dumps(saved | found, indent=1))


def shared_tokenizer(experiment: Experiment, system: System) -> PosEncTokenizer:
    """The vocabulary of all systems, trained or taken over once."""
    folder = experiment.folder / "tokenizer"
    if not folder.exists():
        whole(folder, new_tokenizer(system.data, system).save_pretrained)
    return PosEncTokenizer.from_pretrained(folder)


def new_tokenizer(data: DataSettings, system: System) -> PosEncTokenizer:
    """The tokenizer that the settings name, or one trained on the unfiltered training text."""
    if data.tokenizer is not None:
        name = named_folder(data.tokenizer, data.folder)
        try:
            return PosEncTokenizer.adopt(AutoTokenizer.from_pretrained(name))
        except OSError as error:
            raise ValueError(
                f"data.tokenizer must be a folder or the name of a tokenizer on the Hub, but {name} is not, or cannot "
                f"be reached: {error}"
            ) from None
    return train_tokenizer(
        load(system, data.train),
        data.vocab_size,
        **languages(system),
        joint=data.joint_vocabulary,
        subwords=data.subwords,
    )


def training_pairs(experiment: Experiment, system: System, tokenizer: PosEncTokenizer) -> Dataset:
    """The encoded training pairs within the system's length filter."""
    joined = [system.data.train if k == 1 else system.data.train | {"join": k} for k in system.data.concatenate]
    encoded = concatenate_datasets([encoded_pairs(experiment, system, tokenizer, where) for where in joined])
    return filter_lengths(encoded, min_length=system.data.min_length, max_length=system.data.max_length)


def validation_pairs(experiment: Experiment, system: System, tokenizer: PosEncTokenizer) -> Dataset | None:
    """The encoded validation pairs, all lengths, or None if the config names none."""
    where = system.data.validation
    return encoded_pairs(experiment, system, tokenizer, where) if where else None


def encoded_pairs(experiment: Experiment, system: System, tokenizer: PosEncTokenizer, where: dict[str, Any]) -> Dataset:
    """The pairs that `where` describes as token ids, kept in the run."""
    key = json.dumps(where, sort_keys=True)
    folder = experiment.folder / "data" / f"encoded-{short_hash(key)}"
    if not folder.exists():
        encoded = encode_pairs(load(system, where), tokenizer, **languages(system))
        whole(folder, encoded.save_to_disk)
    return load_from_disk(str(folder))


def test_sets(system: System) -> dict[str, tuple[dict[str, Any], int]]:
    """Where each test set comes from and how many of its consecutive pairs are joined; joined ones are `name-xk`."""
    return {
        name if k == 1 else f"{name}-x{k}": (where, k)
        for name, where in system.data.test.items()
        for k in sorted(set(system.score.concatenate))
    }


def test_set(experiment: Experiment, system: System, name: str, tokenizer: PosEncTokenizer) -> Dataset:
    """A test set's pairs and their `source_length` in subwords, kept in the run."""
    folder = experiment.folder / "data" / f"test-{name}"
    if not folder.exists():
        where, k = test_sets(system)[name]
        pairs = join_consecutive(load(system, where), k)
        lengths = encode_pairs(pairs, tokenizer, **languages(system))["source_length"]
        whole(folder, pairs.add_column("source_length", lengths).save_to_disk)
    return load_from_disk(str(folder))


def run_system(experiment: Experiment, name: str, bar: int = 0) -> None:
    """Train, translate and score one system, from wherever it stands; `bar` is the line of its progress bar.

    Under several processes all of them train and translate, each its share, and the first one scores.
    """
    system = experiment.systems[name]
    folder = experiment.folder / name
    steps = ("settings.yaml", "model", "scores.json")
    refuse_difference({f"{name}/{step}": written(folder / step) for step in steps})
    if (folder / "scores.json").exists():
        return
    tokenizer = shared_tokenizer(experiment, system)
    if not (folder / "model").exists():
        train_system(experiment, system, tokenizer, bar)
    score_system(experiment, system, tokenizer, bar)
    PartialState().wait_for_everyone()


def score_system(experiment: Experiment, system: System, tokenizer: PosEncTokenizer, bar: int) -> None:
    """Translate and score the test sets with the saved model of a system."""
    folder = experiment.folder / system.name
    check_weights(folder / "model")
    model = AutoModelForSeq2SeqLM.from_pretrained(folder / "model")
    processes = PartialState()
    model.to(processes.device)
    tests = {name: test_set(experiment, system, name, tokenizer) for name in test_sets(system)}
    made = {
        name: translate_test_set(
            model, tokenizer, test, system, folder / "translations" / f"{name}.jsonl",
            progress=processes.is_main_process, description=f"{system.name}: {name}", bar=bar,
        )
        for name, test in tests.items()
    }  # fmt: skip
    if not processes.is_main_process:
        return
    # TER takes seconds for a bad translation of a hundred words.
    scoring = tqdm(tests.items(), desc=f"{system.name}: scoring", unit="test set", position=bar, leave=False)
    scores = {name: score(made[name], test, system.data.target_language, system.score) for name, test in scoring}
    facts = json.loads((folder / "model" / "training.json").read_text(encoding="utf-8"))
    vocabulary = short_hash(tokenizer.to_str())
    result = {"tokenizer": vocabulary, "max_length": system.data.max_length, "training": facts, "tests": scores}
    write_whole(folder / "scores.json", json.dumps(result, indent=1))


def train_system(experiment: Experiment, system: System, tokenizer: PosEncTokenizer, bar: int) -> None:
    """Train one system and save it, ready to be loaded and to translate."""
    folder = experiment.folder / system.name
    set_seed(system.train.get("seed", 42))
    ids = {f"{kind}_token_id": getattr(tokenizer, f"{kind}_token_id") for kind in ("pad", "bos", "eos")}
    sizes = {"vocab_size": len(tokenizer), "decoder_vocab_size": tokenizer.target_vocab_size}
    config = system.model_config(**sizes, decoder_start_token_id=tokenizer.bos_token_id, **ids)
    model = AutoModelForSeq2SeqLM.from_config(config)
    pairs = training_pairs(experiment, system, tokenizer)
    validation = validation_pairs(experiment, system, tokenizer)
    trained, facts = train(model, tokenizer, pairs, validation, system.train, folder, name=system.name, bar=bar)
    facts |= {"parameters": trained.num_parameters(), "pairs": len(pairs)}
    trained.generation_config.update(num_beams=system.score.num_beams, max_length=512)

    def save(unfinished: Path) -> None:
        trained.save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)
        (unfinished / "training.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")

    if PartialState().is_main_process:
        whole(folder / "model", save)
    PartialState().wait_for_everyone()


def report(experiment: Experiment) -> str:
    """The table of every test set, as text; also written to the run, with the pictures and all results in one file."""
    saved = {
        name: json.loads((experiment.folder / name / "scores.json").read_text(encoding="utf-8"))
        for name in experiment.systems
    }
    refuse_strangers(saved)
    results = {name: one["tests"] for name, one in saved.items()}
    limits = {name: one["max_length"] for name, one in saved.items()}
    write_whole(experiment.folder / "results.json", json.dumps(saved, indent=1))
    tables = {"overview": overview_table(results)}
    for test in next(iter(results.values())):
        tables[test] = length_table(results, test, training_limits=limits)
        save_figure(
            bleu_by_length(results, test, training_limits=limits), experiment.folder / f"bleu-by-length-{test}.png"
        )
    for name, table in tables.items():
        write_whole(experiment.folder / f"table-{name}.md", markdown(table))
    cut = [
        f"{name} {result['truncated']} of {result['all']['n']} on {test}"
        for name, tests in results.items()
        for test, result in tests.items()
        if result["truncated"]
    ]
    limits_met = f"Translations cut at their length limit: {', '.join(cut) or 'none'}.\n"
    return "\n".join([*(text(table) for table in tables.values()), limits_met])


def refuse_strangers(saved: dict[str, Any]) -> None:
    """Rows of one table have the same vocabulary and the same test sets, to the letter."""
    marks = {
        name: {"tokenizer": one["tokenizer"], **{test: r["test_set_sha256"] for test, r in one["tests"].items()}}
        for name, one in saved.items()
    }
    first, *others = marks
    for other in others:
        if difference := differing_key(marks[first], marks[other]):
            raise ValueError(
                f"Systems in one table share tokenizer and test sets, but between {first} and {other} {difference}; "
                "delete the scores.json and translations of the older one and run again."
            )


def load(system: System, where: dict[str, Any]) -> Dataset:
    return load_pairs(where, folder=system.data.folder, **languages(system))


def languages(system: System) -> dict[str, str]:
    return {"source_language": system.data.source_language, "target_language": system.data.target_language}


def written(path: Path) -> str:
    """When a file was written, to the nanosecond: by this, processes know whether they see the same one."""
    return f"written at {path.stat().st_mtime_ns}" if path.exists() else "missing"


def whole(folder: Path, save: Callable[[Path], Any]) -> None:
    """Let `save` write a folder that is there either whole or not at all."""
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.parent.mkdir(parents=True, exist_ok=True)
    save(unfinished)
    os.replace(unfinished, folder)
