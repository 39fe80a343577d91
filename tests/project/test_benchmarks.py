"""Benchmarks run on tiny models, measure what their options name and save it."""

import gzip
import importlib
import importlib.util
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import datasets
import pytest
import torch
import yaml
from support.experiments import TINY as SETTINGS
from support.measured import character_tokenizer, vocabulary
from support.models import ALIGNED, EVERY_ENCODING, tiny_model, translator
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM

from hf_posenc import POSITION_ENCODINGS
from hf_posenc.lab.config.loading import load_experiment
from hf_posenc.lab.data.synthetic import generate_pairs
from hf_posenc.lab.results.records import TestSetTranslations
from hf_posenc.lab.results.saved_files import write_translations
from hf_posenc.lab.run.pipeline import run_system
from hf_posenc.lab.run.prepare import prepare
from hf_posenc.lab.run.prepared_run import PreparedRun

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
of_an_export = pytest.mark.skipif(not EVERY_ENCODING, reason="exports are tested by test_onnx.py and test_ecosystem.py")
TINY = ["--width", "16", "--layers", "1", "--rounds", "2", "--save", "tiny"]


@pytest.fixture
def benchmark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unregistered_after: None
) -> Callable[..., tuple[dict[str, Any], str]]:
    """Runs a benchmark of that name on tiny models, in a folder of its own: the report and the table it saves."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(importlib.import_module("common"), "FOLDER", tmp_path)

    def run(name: str, *options: str, tiny: list[str] = TINY) -> tuple[dict[str, Any], str]:
        module: ModuleType = importlib.import_module(name)
        module.main([*tiny, *options])
        assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["tiny.json", "tiny.md"]
        report = json.loads((tmp_path / "results" / "tiny.json").read_text(encoding="utf-8"))
        return report, (tmp_path / "results" / "tiny.md").read_text(encoding="utf-8")

    return run


def check(report: dict[str, Any], table: str, names: list[str], sizes: list[tuple[int, int]]) -> None:
    """A record for each name and size, a ratio of 1 for what all are compared with, and a row for each name."""
    rows = [(record["batch"], record[report["axis"]], record["encoding"]) for record in report["records"]]
    assert rows == [(*size, name) for size in sizes for name in names]
    for record in report["records"]:
        assert 0 < record["time_ratio_min"] <= record["time_ratio"] <= record["time_ratio_max"]
        if record["encoding"] == report["base"]:
            assert record["time_ratio_min"] == record["time_ratio_max"] == record.get("memory_ratio", 1) == 1
    assert report["machine"]["torch"] == torch.__version__
    assert table.startswith("| encoding |") and table.endswith(".\n")
    assert [line.split("`")[1] for line in table.splitlines() if line.startswith("| `")] == names


@pytest.mark.full
@pytest.mark.parametrize("padding", [[], ["--padding", "0.25"]], ids=["full", "padded"])
def test_a_training_step_is_compared(benchmark, padding):
    report, table = benchmark(
        "training_step", "--encodings", "gru", "naive_relative", "none", "--sizes", "2x6", "3x8", *padding
    )
    check(report, table, ["none", "gru", "naive_relative"], [(2, 6), (3, 8)])
    assert report["padding"] == float(padding[-1] if padding else 0)
    assert ("25 % padding" in table) == bool(padding)


@pytest.mark.full
def test_a_decoding_step_is_compared_for_all_by_default(benchmark):
    report, table = benchmark("decoding_step", "--sizes", "2x3")
    names = [record["encoding"] for record in report["records"]]
    check(report, table, names, [(2, 3)])
    assert {part for name in names for part in re.split(r"\+| by ", name)} >= {*POSITION_ENCODINGS, "rnn_nmt"}
    assert names[-1 - len(ALIGNED) :] == [*ALIGNED, "rnn_nmt"]


@pytest.mark.full
@pytest.mark.parametrize("step", ["training", "decoding"])
def test_a_decoder_only_model_is_compared_with_llama_for_all_by_default(benchmark, step):
    report, table = benchmark("causal_step", "--step", step, "--sizes", "2x3")
    names = [record["encoding"] for record in report["records"]]
    check(report, table, names, [(2, 3)])
    assert names == ["llama", *(name for name, entry in POSITION_ENCODINGS.items() if not entry.is_modifier)]


@pytest.mark.full
def test_generate_is_compared_with_marians_for_all_by_default(benchmark):
    report, table = benchmark("generation", "--sizes", "2x1", "1x2", "--tokens", "3")
    names = list(dict.fromkeys(record["encoding"] for record in report["records"]))
    check(report, table, names, [(2, 1), (1, 2)])
    assert names[0] == "marian" and names[-len(ALIGNED) :] == [*ALIGNED]
    assert {part for name in names for part in re.split(r"\+| by ", name)} >= {*POSITION_ENCODINGS}


@pytest.mark.full
def test_keys_in_a_window_are_compared_with_all_keys(benchmark):
    report, table = benchmark("cross_window", "--lengths", "9", "300", "--training-lengths", "9")
    rows = [(record["kind"], record["source_tokens"]) for record in report["records"]]
    assert rows == [("step", 9), ("step", 300), ("beams", 9), ("beams", 300), ("training", 9)]
    long = report["records"][3]
    assert long["kib, window"] < long["kib, all keys"]
    assert len(table.splitlines()) == len(rows) + 4


@pytest.mark.full
def test_engines_are_compared_on_a_models_own_lines(benchmark, tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    sizes = {"vocab_size": len(tokenizer), "decoder_vocab_size": len(tokenizer)}
    for part in (tiny_model("sinusoidal", **sizes, dtype=torch.float32), tokenizer):
        part.save_pretrained(folder)
    (folder / "lines.de").write_text("Ein Hund.\nZwei Kinder im Schnee.\nEin Kind.\n", encoding="utf-8")
    tiny = ["--rounds", "1", "--max-lines", "2", "--save", "tiny"]
    report, table = benchmark("engines", str(folder), str(folder / "lines.de"), tiny=tiny)
    names = ["generate", "generate, int8", "Marian", "CTranslate2", "CTranslate2, int8"]
    records = {(one["engine"], one["batch_size"], one["num_beams"]): one for one in report["records"]}
    assert [*records] == [(name, batch, beams) for batch in (1, 16) for beams in (1, 5) for name in names]
    for (name, _, beams), record in records.items():
        assert record["tokens_per_second"] > 0 and 0 < record["time_ratio_min"] <= record["time_ratio"]
        if name in ("generate", "Marian") or (name, beams) == ("CTranslate2", 1):
            assert record["same"] == report["first"] == 2
    assert re.search(r"^\| generate( \| \d+ \(1\.0\)){4} \|", table, re.MULTILINE)


@of_an_export
@pytest.mark.slow
def test_onnx_graphs_are_compared_and_write_the_tokens_of_generate(benchmark):
    pytest.importorskip("onnxscript")
    report, table = benchmark("onnx_engine", "--encodings", "relative", "--batches", "2")
    names = ["generate", "generate, int8", "ONNX", "ONNX, int8", "products alone"]
    records = {(one["engine"], one["beams"]): one for one in report["records"]}
    assert [*records] == [(name, beams) for beams in (1, 5) for name in names]
    for (name, _), record in records.items():
        assert 0 < record["time_ratio_min"] <= record["time_ratio"]
        if name in ("generate", "ONNX"):
            assert record["same"] == 2
    assert "| `relative` | generate | 1.0 (2 of 2) | 1.0 (2 of 2) |" in table


@pytest.mark.full
def test_a_decoding_step_leaves_the_cache_as_it_was(benchmark):
    """Or the steps of later rounds would follow a longer prefix than the table says."""
    common, decoding_step = importlib.import_module("common"), importlib.import_module("decoding_step")
    options = common.parse(common.parser(None, encodings=[], sizes=[], rounds=1), TINY)
    for name in ("relative", "lstm", *ALIGNED, "rnn_nmt"):
        step = decoding_step.DecodingStep(name, (2, 3), options)
        expected = step.logits()
        step.reset()
        step.seconds(common.CLOCKS["wall"])
        assert step.cache.get_seq_length() == 3
        torch.testing.assert_close(step.logits(), expected)


def test_padding_is_the_share_that_was_asked_for(benchmark):
    sentences = importlib.import_module("training_step").sentences
    tokens = sentences((5, 40), 0.3)
    assert tokens.float().mean() == pytest.approx(0.7)
    assert sorted(tokens.sum(1).tolist()) == [16, 22, 28, 34, 40]
    assert torch.equal(tokens, tokens.cummin(dim=1).values), "padding is on the right"


@pytest.mark.full
def test_one_pass_is_compared_with_segments(benchmark):
    report, table = benchmark("one_pass", "--sizes", "1x2", "2x3", "--tokens", "4")
    check(report, table, ["segments", "one pass"], [(1, 2), (2, 3)])
    assert [(record["steps"], record["rows"]) for record in report["records"]] == [(4, 2), (8, 1), (4, 6), (12, 2)]


@pytest.mark.full
def test_one_pass_takes_as_many_steps_as_segments_in_batches_of_as_many_rows(benchmark):
    report, _ = benchmark("one_pass", "--sizes", "1x4", "4x3", "--tokens", "4", "--rows", "4")
    steps = [(record["steps"], record["rows"]) for record in report["records"]]
    assert steps == [(4, 4), (16, 1), (12, 4), (12, 4)]


@pytest.mark.parametrize(
    "wrong, reason",
    [(["--padding", "0.5"], "less than 0.5"), (["--padding", "0.3", "--sizes", "1x8"], "2 sentences or more")],
)
def test_padding_that_cannot_be_is_refused(benchmark, capsys, wrong, reason):
    with pytest.raises(SystemExit):
        benchmark("training_step", *wrong)
    assert reason in capsys.readouterr().err


@pytest.fixture
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config") / "tiny.yaml"
    data = SETTINGS["data"] | {"train": {"generator": {"seed": 1, "pairs": 400, "min_words": 6, "max_words": 30}}}
    path.write_text(yaml.safe_dump(SETTINGS | {"data": data}), encoding="utf-8")
    return path


BUDGET = ["--tokens-per-batch", "200", "--steps", "2", "--rounds", "2", "--system", "relative"]


@pytest.mark.full
def test_ways_to_make_batches_are_compared(benchmark, config, capsys):
    report, table = benchmark("batching", str(config), *BUDGET, tiny=["--save", "tiny"])
    random, grouped, budget = report["records"]
    assert [record["batching"] for record in report["records"]] == ["random", "grouped", "budget"]
    for record in report["records"]:
        assert 0 < record["speed_ratio_min"] <= record["speed_ratio"] <= record["speed_ratio_max"]
        assert record["batches"] == pytest.approx(budget["batches"], rel=0.1), "the same number of pairs at a time"
    assert random["speed_ratio_min"] == random["speed_ratio_max"] == 1
    assert budget["padding"] < grouped["padding"] < random["padding"]
    assert budget["largest"] <= 200 < random["largest"]
    assert report["settings"]["model"]["d_model"] == 16
    assert str(config.parent) not in json.dumps(report), "a report is published, and nobody's folders are"
    assert table.startswith("| batching |")
    assert "| `budget` |" in table
    with pytest.raises(SystemExit, match="--steps must be fewer than the batches"):
        benchmark("batching", str(config), *BUDGET, "--steps", "900", tiny=[])


@pytest.mark.full
def test_padding_is_that_of_the_batches_which_the_model_is_given(benchmark, config, tmp_path):
    batching, common = importlib.import_module("batching"), importlib.import_module("common")
    parser = common.base_parser(None, rounds=1, what="")
    for name, number in (("--tokens-per-batch", 200), ("--steps", 1)):
        parser.add_argument(name, type=int, default=number)
    parser.set_defaults(system="relative")
    experiment = load_experiment(config, [f"output_dir={tmp_path}"])
    trainings = batching.TimedTrainings(prepare(experiment), parser.parse_args([]))
    for record in trainings.measure():
        epoch, _ = trainings.first_epoch(record["batching"])
        assert sorted(row for rows in epoch for row in rows) == list(range(len(trainings.pairs)))
        collate = trainings.trainer(record["batching"], 0).data_collator
        columns = trainings.pairs.select_columns(["input_ids", "labels"])
        batches = [collate(columns.__getitems__(rows)) for rows in epoch]
        tokens = sum(int(batch["attention_mask"].sum() + (batch["labels"] != -100).sum()) for batch in batches)
        places = sum(batch["input_ids"].numel() + batch["labels"].numel() for batch in batches)
        assert tokens == trainings.lengths_N2.sum()
        assert record["padding"] == pytest.approx(1 - tokens / places, abs=1e-4)


@pytest.mark.full
def test_every_stage_of_preparing_a_run_is_measured(benchmark):
    cache = datasets.config.HF_DATASETS_CACHE
    sizes = ["--pairs", "300", "--vocab-size", "700", "--tokens-per-batch", "200"]
    report, table = benchmark("scale", *sizes, tiny=["--save", "tiny"])
    records = {record["stage"]: record for record in report["records"]}
    assert [line.split(" | ")[0].removeprefix("| ") for line in table.splitlines() if line.startswith("| ")][1:] == [
        *records
    ]
    kept = records.pop("cut into batches")["pairs"], records.pop("draw an epoch")["pairs"]
    kept += (records.pop("fetch 200 batches")["pairs"],)
    assert 0 < kept[0] < 300, "some pairs are too long, as in any real text"
    assert kept[0] == kept[1] == kept[2]
    for record in records.values():
        assert record["pairs"] == report["pairs"] == 300
        assert record["resident_mib"] > record["anonymous_mib"] > 0
        assert record["disk_mib"] > 0
    assert cache == datasets.config.HF_DATASETS_CACHE


def test_a_folder_that_is_not_empty_is_refused(benchmark, tmp_path, capsys):
    (tmp_path / "pairs.tsv").touch()
    with pytest.raises(SystemExit):
        benchmark("scale", "--folder", str(tmp_path), tiny=[])
    assert "is not empty; name a new folder" in capsys.readouterr().err


def test_peak_memory_is_measured_afterwards_and_in_children(benchmark):
    scale = importlib.import_module("scale")
    before, peak = scale.memory_in_use(), scale.PeakMemory()
    peak.start()
    block = b"x" * 2**26
    held = "block = b'x' * 2**26; input()"
    with subprocess.Popen([sys.executable, "-c", held], stdin=subprocess.PIPE) as child:
        while peak.mebibytes["anonymous_mib"] - before["anonymous_mib"] < 127:
            assert child.poll() is None
            time.sleep(0.01)
        child.communicate(b"\n")
    del block
    assert peak.end()["anonymous_mib"] - before["anonymous_mib"] >= 127
    assert scale.memory_in_use()["anonymous_mib"] - before["anonymous_mib"] < 64


@pytest.mark.slow
def test_damaged_files_end_in_one_error(benchmark, capsys, monkeypatch):
    fuzz = importlib.import_module("fuzz_loaders")
    kinds = ["aligned", "sharded", "causal", "rnn", "bart", "tokenizer"]
    assert fuzz.main(["--files", "18", "--seed", "9", "--only", *kinds]) == 0
    assert "18 files, 0 faults." in capsys.readouterr().out
    with monkeypatch.context() as patched:  # a reader of today's, without what explains its errors
        patched.setattr(fuzz, "try_case", lambda case, folder: ("traceback", "KeyError: 'weight_map'"))
        assert fuzz.main(["--files", "2", "--only", "tokenizer"]) == 1
    assert "2 files, 2 faults." in capsys.readouterr().out


def test_ter_is_compared_with_sacrebleus(benchmark, tmp_path_factory, monkeypatch, capsys):
    folder = tmp_path_factory.mktemp("text")
    lines = [" ".join(f"w{row}.{word}" for word in range(7)) + "\n" for row in range(80)]
    (folder / "reference").write_text("".join(lines), encoding="utf-8")
    (folder / "hypothesis.gz").write_bytes(gzip.compress("".join(lines[1:] + lines[:1]).encode()))
    text = ["--text", str(folder / "reference"), "--pairs", "1"]
    ter = importlib.import_module("ter")
    monkeypatch.setattr(ter, "ERROR_RATES", (0.02,))  # sacrebleu takes seconds for the others
    report, table = benchmark("ter", *text, "--short", "20", tiny=["--save", "tiny"])
    assert [record["pairs"] for record in report["records"]] == [1] * 5 + [20]
    long = [record["words"] for record in report["records"] if record["pairs"] == 1]
    assert long.pop() == 0, "the empty reference"
    assert all(100 <= words <= 500 for words in long)
    assert not any(record["differ"] for record in report["records"])
    assert str(folder) not in json.dumps(report), "a report is published, and nobody's folders are"
    assert table.startswith("| pairs |") and "| runaway, 5 times as long | 1 | 100.0 |" in table
    assert ter.main([*text, "--translations", str(folder / "hypothesis.gz")]) == 0
    assert "| translations, joined | 1 |" in capsys.readouterr().out
    (folder / "short").write_text("one line\n", encoding="utf-8")
    with pytest.raises(SystemExit):
        ter.main([*text, "--translations", str(folder / "short")])
    assert "translations must be as many as lines of text; 1 and 80" in capsys.readouterr().err


@pytest.mark.full
def test_a_statistic_that_differs_is_said(benchmark, monkeypatch, capsys):
    ter = importlib.import_module("ter")
    monkeypatch.setitem(ter.IMPLEMENTATIONS, "ours", ter.TER)  # not case-sensitive
    monkeypatch.setattr(ter.PairSource, "kinds", lambda *_: iter([("case", [("A", "a"), ("a", "a")])]))
    assert ter.main([]) == 1
    assert capsys.readouterr().out.splitlines()[2].endswith("| 1 |")


@pytest.fixture
def aligned_folder(tokenizer, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("aligned")
    translator("relative+window by length_ratio", dtype=torch.float32).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.full
def test_streamed_documents_are_compared_with_offline_ones(benchmark, aligned_folder):
    text = aligned_folder / "text"
    text.write_text("Ein Hund.\n\nZwei Kinder\n", encoding="utf-8")
    how = ["--dtype", "float64", "--source-tokens", "0", "--files", str(text), "--documents", "1"]
    report, table = benchmark("streaming", str(aligned_folder), *how, tiny=["--save", "tiny"])
    assert [(record["words"], record["equal"]) for record in report["documents"]] == [(1, True), (2, True), (2, True)]
    assert "| 1-2 | 3 | 3 |" in table and "\n1 word a call of `feed`, float64" in table


@pytest.mark.full
def test_what_the_rules_of_the_end_token_change_is_counted(benchmark, tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fertility")
    translator("relative+window by fertility", dtype=torch.float32).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    text = folder / "text"
    text.write_text("Ein Hund.\nZwei Kinder\n", encoding="utf-8")
    how = ["--files", str(text), str(text), "--concatenate", "1", "2", "--num-beams", "1"]
    how += ["--expected-length-range", "0.5", "0.75"]
    report, table = benchmark("source_end", str(folder), *how, tiny=["--save", "tiny"])
    rows = [(record["lines"], record["documents"], record["rule"]) for record in report["records"]]
    rules = ["off", "on", "on, 0.5 to 0.75 times the expected length"]
    assert rows == [(lines, documents, rule) for lines, documents in ((1, 2), (2, 1)) for rule in rules]
    assert [report["records"][number]["changed"] for number in (0, 2)] == [0, 2]
    assert table.startswith("| lines a document |") and "1 beam; text and text." in table


@pytest.mark.slow
def test_a_runs_scores_are_compared_with_sacrebleus_command_line(config, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    compare = importlib.import_module("against_sacrebleu").compare
    experiment = load_experiment(config, [f"output_dir={config.parent}", "score.bootstrap_samples=100"])
    experiment = replace(experiment, systems={"relative": experiment.systems["relative"]})
    prepare(experiment)
    for name in experiment.systems:
        run_system(PreparedRun(experiment), name)
    compared, wrong = compare(experiment)
    assert compared > 3 * 2 * len(experiment.systems), "score, mean and half of the interval, of both metrics"
    assert not wrong
    path = experiment.folder / "relative" / "scores.json"
    scores = json.loads(path.read_text(encoding="utf-8"))
    scores["tests"]["generated"]["overall"]["scores"]["ter"]["half_width"] += 1e-6
    path.write_text(json.dumps(scores), encoding="utf-8")
    assert compare(experiment) == (compared, 1)
    assert "relative, generated, all: ter, half_width differs" in capsys.readouterr().err


@pytest.mark.full
def test_segment_scores_of_a_run(benchmark: Callable[..., tuple[dict[str, Any], str]], tmp_path: Path) -> None:
    """Translations that are the references score 100 in every segment; without a segment, they do not."""
    pytest.importorskip("mweralign")
    config = tmp_path.parent / f"{tmp_path.name}-run" / "tiny.yaml"
    config.parent.mkdir()
    systems = {"relative": {}, "by-text": {"segment": "relative"}}
    config.write_text(yaml.safe_dump(SETTINGS | {"systems": systems}), encoding="utf-8")
    output = f"output_dir={config.parent}"
    run = prepare(load_experiment(config, [output]))
    for system, num_cut in (("relative", 0), ("by-text", 8)):
        for name, test_set in run.system(system).test_sets.items():
            texts = [" ".join(row["en"].split()[num_cut:]) for row in test_set.pairs["translation"]]
            translations = TestSetTranslations(texts=tuple(texts), truncated=(False,) * len(texts), time=None)
            write_translations(run.paths.system(system).translation(name), translations)
    report, table = benchmark("segment_scores", str(config), output, tiny=["--save", "tiny"])
    records = {(record["row"], record["test_set"]): record for record in report["records"]}
    assert {record["segments"] for record in records.values()} == {6}
    for test_set in ("generated", "generated-x2"):
        perfect, cut = records["relative", test_set], records["by-text", test_set]
        assert (perfect["bleu"], perfect["chrf"], perfect["ter"]) == (pytest.approx(100), pytest.approx(100), 0)
        assert cut["bleu"] < 90 and cut["ter"] > 0
    assert "| relative, 1 seed | 100.0 (100.0-100.0) / 100.0 / 0.0 |" in table


@pytest.mark.full
def test_planted_errors_are_found(benchmark, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    pairs = list(generate_pairs(seed=5, pairs=600, min_words=6, max_words=24))
    for column, name in enumerate(("source", "reference")):
        (folder / name).write_text("".join(f"{pair[column]}\n" for pair in pairs), encoding="utf-8")
    files = [str(folder / name) for name in ("source", "reference", "reference")]
    report, table = benchmark("translation_audit", "--files", *files, "--save", "tiny", tiny=[])
    assert (report["documents"], report["segments"]) == (40, 600) and "40 documents, 600 segments, seed 0." in table
    scores = {(record["evidence"], record["kind"]): record for record in report["records"]}
    assert len(scores) == 8 and all(record["planted"] >= 5 for record in scores.values())
    assert all(scores["references", kind]["f1"] > 0.9 for kind in ("dropped", "repeated", "invented"))


@pytest.mark.full
def test_planted_errors_are_found_by_language(benchmark, tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    (folder / "multi30k").mkdir()
    pairs = list(generate_pairs(seed=5, pairs=300, min_words=6, max_words=24))
    for column, language in enumerate(("cs", "fr")):
        for name in ("test_2016_flickr", "test_2018_flickr"):
            with gzip.open(folder / "multi30k" / f"{name}.{language}.gz", "wt", encoding="utf-8") as file:
                file.writelines(f"{pair[column]}\n" for pair in pairs)
    report, table = benchmark("audit_languages", str(folder), "--only", "captions cs", "--save", "tiny", tiny=[])
    assert len(report["records"]) == 8 and {record["segments"] for record in report["records"]} == {600}
    assert report["records"][0]["f1"] > 0.9 and "| captions | cs-fr | 600 | " in table


@of_an_export
@pytest.mark.slow
def test_exporters_whose_packages_are_installed_write_graphs_that_equal_the_model(benchmark):
    """That of ONNX is tested by tests/inference/test_onnx.py, which takes longer."""
    base = pytest.importorskip("transformers.exporters.base")
    if not hasattr(base, "ExportedModel"):
        pytest.skip("transformers saves and loads what it exported from 5.23 on")
    packages = {"DynamoExporter": "torch", "OpenVINOExporter": "openvino", "ExecutorchExporter": "executorch"}
    options = ["--width", "16", "--layers", "1", "--save", "tiny", "--exporters", *packages]
    report, table = benchmark("exporters", tiny=options)
    for record in report["records"]:
        if importlib.util.find_spec(packages[record["exporter"]]) is None:
            assert record["outcome"] == "not installed"
        elif record["exporter"] == "DynamoExporter":  # what the others write is what the benchmark is for
            assert record["outcome"] == "equal"
    assert len(report["records"]) == 6 and "| `DynamoExporter` | equal | equal |" in table


def test_a_pass_calls_few_functions_of_our_own(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    """A reader can follow one attention; each number may only be lowered."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    importlib.import_module("call_budget").main(["--encodings", "relative", "none"])
    rows = [re.findall(r"\d+", line) for line in capsys.readouterr().out.splitlines()[2:]]
    assert len(rows) == 2
    assert all(int(count) <= most for count, most in zip(rows[0], (33, 9, 18, 86), strict=True))
    assert all(int(count) <= most for count, most in zip(rows[1], (16, 7, 7, 45), strict=True))


@pytest.fixture
def model_and_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """The paths of a tiny model and of a text, outside the working folder of the benchmark's results."""
    folder, text = tmp_path.parent / "llama", tmp_path.parent / "text.txt"
    config = LlamaConfig(
        vocab_size=vocabulary(), hidden_size=16, intermediate_size=16, num_hidden_layers=4, num_attention_heads=2
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    character_tokenizer().save_pretrained(folder)
    text.write_text("a text " * 80, encoding="utf-8")
    monkeypatch.chdir(tmp_path.parent)
    return str(folder), str(text)


def test_changed_positions_are_compared_with_the_model_as_it_is(
    benchmark: Callable[..., tuple[dict[str, Any], str]], model_and_text: tuple[str, str]
) -> None:
    report, table = benchmark(
        "changed_positions", *model_and_text, "--lengths", "128", "512", "--save", "tiny", tiny=[]
    )
    losses = report["losses"]
    assert report["edges"] == [0, 128, 512] and all(len(values[0]) == 2 for values in losses.values())
    assert losses["window 128, 0 sinks"] != losses["window 128, 4 sinks"] != losses["as it is"] != losses["YaRN x 2"]
    assert table.count("\n| ") == len(losses) + 1 and "1.00" in table


def test_lengthened_encoders_are_compared_by_retrieval(
    benchmark: Callable[..., tuple[dict[str, Any], str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, talks, speeches = tmp_path.parent / "bert", tmp_path.parent / "talks.txt", tmp_path.parent / "speeches.txt"
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    tokenizer = character_tokenizer()
    tokenizer.add_special_tokens({"cls_token": "<s>", "sep_token": "</s>"})
    tokenizer.save_pretrained(folder)
    BertModel(BertConfig(vocab_size=len(tokenizer), max_position_embeddings=512, **sizes)).save_pretrained(folder)
    talks.write_text("\n\n".join(["a talk to all " * 40] * 4), encoding="utf-8")
    words = ("house", "garden", "street", "dog", "cat", "tree", "river", "bird")
    speeches.write_text("\n\n".join(f"the {word} and a {word} " * 5 for word in words), encoding="utf-8")
    monkeypatch.chdir(tmp_path.parent)
    texts = ["--documents", str(talks), "--passages", str(speeches), "--train", str(talks)]
    options = ["--lengths", "512", "700", "--count", "2", "--steps", "2", "--seeds", "1", "2", "--save", "tiny"]
    report, table = benchmark("lengthen_encoder", str(folder), *texts, *options, tiny=[])
    rank_lists = [ranks for found in report["ranks"].values() for ranks in found.values()]
    assert all(len(ranks) == 8 and set(ranks) <= {1, 2} for ranks in rank_lists)
    assert report["ranks"]["first 512 tokens"]["512"] == report["ranks"]["windows of 512, max"]["512"]
    assert table.count("\n| ") == len(report["ranks"]) + 1


def test_a_planted_passage_stands_at_its_depth_and_its_rank_is_that_of_a_plain_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    module = importlib.import_module("lengthen_encoder")
    passages = [[-part] * part for part in (1, 2, 3, 4)]
    ids = module.with_passages(list(range(500)), passages, 92)
    assert len(ids) == 90 and [token for token in ids if token >= 0] == list(range(80))
    for depth, passage in zip(module.DEPTHS, passages, strict=True):
        start = ids.index(passage[0])
        assert ids[start : start + len(passage)] == passage and ids[start - 1] == round(depth * 80) - 1
    assert [len(window) for window in module.windows(list(range(1022)), 512)] == [340, 341, 341]
    queries = torch.randn(8, 5)
    documents = [torch.randn(3, 5), torch.randn(1, 5)]
    expected = []
    for number, query in enumerate(queries):
        best = [max(float(query @ vector) for vector in document) for document in documents]
        expected.append(1 + sum(score > best[number // 4] for score in best))
    assert module.ranks(queries, documents) == expected


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # PEFT reads it
def test_a_recalibrated_model_is_compared_with_the_untrained_one(
    benchmark: Callable[..., tuple[dict[str, Any], str]], model_and_text: tuple[str, str]
) -> None:
    pytest.importorskip("peft")
    model, text = model_and_text
    texts = ["--train", text, "--test", text, "--seeds", "1", "2", "--steps", "3"]
    sizes = ["--length", "64", "--test-length", "512", "--save", "tiny"]
    report, table = benchmark("recalibration", model, *texts, *sizes, tiny=[])
    assert report["losses"].keys() == {"as it is", "none in every 4th layer", "none"}
    for losses in report["losses"].values():
        assert losses.keys() == {"0", "1", "2"}
        assert losses["1"] != losses["0"] != losses["2"] and losses["1"] != losses["2"]
        assert losses["1"][0][0] < losses["0"][0][0]  # the text is that of the training
    assert table.count("→") == 6 + 1  # in each cell, and in the note
