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
from pathlib import Path
from typing import Any

from accelerate import PartialState
from tqdm.auto import tqdm
from transformers import AutoModelForSeq2SeqLM, set_seed

from .checkpoints import check_weights
from .config import Experiment, System, differing_key, short_hash, write_whole
from .evaluation import score, translate_test_set
from .modeling.tokenization_posenc import PosEncTokenizer
from .plots import bleu_by_length, save_figure
from .preparation import shared_tokenizer, test_set, test_sets, training_pairs, validation_pairs, whole
from .processes import refuse_difference
from .tables import length_table, markdown, overview_table, text
from .training import train


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
    tokenizer = shared_tokenizer(experiment)
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


def written(path: Path) -> str:
    """When a file was written, to the nanosecond: by this, processes know whether they see the same one."""
    return f"written at {path.stat().st_mtime_ns}" if path.exists() else "missing"
