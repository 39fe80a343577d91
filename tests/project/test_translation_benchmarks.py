"""Benchmarks of document translation: rows by model and stratum, resumed after a kill; planted faults are doubted."""

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from support.marian_models import Words, tiny_marian
from support.models import translator

from hf_posenc.lab.data.synthetic import generate_pairs

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
Saved = Callable[[], tuple[dict[str, Any], str]]


@pytest.fixture
def load_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """The benchmark of a name, which saves into a folder of the test."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(importlib.import_module("common"), "FOLDER", tmp_path)
    return importlib.import_module


@pytest.fixture
def saved(tmp_path: Path) -> Saved:
    """Reads the report and the table that a benchmark saved as `tiny`."""
    folder = tmp_path / "results"
    return lambda: (json.loads((folder / "tiny.json").read_text()), (folder / "tiny.md").read_text())


@pytest.fixture
def texts(tmp_path: Path) -> list[str]:
    """Three paragraphs of two sentences; the second one has a sentence of seven words."""
    lines = ["word2 word3", "word4", "word5 " * 7, "word6", "word7", "word8 word9"]
    for name in ("source", "target"):
        (tmp_path / name).write_text("".join(f"{line.strip()}\n" for line in lines), encoding="utf-8")
    return ["--texts", str(tmp_path / "source"), str(tmp_path / "target")]


@pytest.fixture
def marians(tmp_path: Path) -> list[str]:
    """Two models that differ in their seed."""
    folders = [tmp_path / f"seed{seed}" for seed in (1, 2)]
    for seed, folder in enumerate(folders, 1):
        tiny_marian(seed=seed, dtype=torch.float32, max_position_embeddings=600).save_pretrained(folder)
        Words.tokenizer().save_pretrained(folder)
    return [str(folder) for folder in folders]


OPTIONS = ["--lines", "2", "--training-length", "4", "--rounds", "1", "--save", "tiny"]


@pytest.mark.full
def test_models_are_measured_by_stratum_and_a_killed_command_goes_on(
    load_benchmark: Callable[[str], ModuleType],
    saved: Saved,
    texts: list[str],
    marians: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    benchmark = load_benchmark("translate_documents")
    monkeypatch.setattr(benchmark, "WHOLE_NEW_TOKENS", 8)
    benchmark.main([*marians[:1], *texts, *OPTIONS])
    first, one_seed = saved()
    assert "(" not in one_seed.splitlines()[2], "a range of one model"
    monkeypatch.setattr(benchmark, "WHOLE_NEW_TOKENS", 5)  # what is measured already stays
    benchmark.main([*marians, *texts, *OPTIONS])
    report, table = saved()
    records = list(report["models"].values())
    assert len(records) == 2 and first["models"].items() <= report["models"].items()
    assert str(Path(marians[0]).parent) not in json.dumps(report), "a report is published, and nobody's folders are"
    for record in records:
        assert record["strata"] == {"all": 3, "short sentences": 2, "a longer sentence": 1}
        for rows in record["rows"].values():
            dropped = [rows[name]["dropped"] * record["strata"][name] for name in record["strata"]]
            assert dropped[0] == pytest.approx(dropped[1] + dropped[2])
    assert len(table.splitlines()) == 2 + 3 * 5 + 2
    with pytest.raises(SystemExit, match=r"training_length was 4 and is 5"):
        benchmark.main([*marians, *texts, *OPTIONS, "--training-length", "5"])


@pytest.mark.full
def test_a_lengthened_model_has_a_row_and_reads_a_paragraph_as_a_whole(
    load_benchmark: Callable[[str], ModuleType],
    saved: Saved,
    texts: list[str],
    marians: list[str],
    tmp_path: Path,
    tokenizer: Any,
) -> None:
    translator("relative+window by length_ratio", dtype=torch.float32).save_pretrained(tmp_path / "long")
    tokenizer.save_pretrained(tmp_path / "long")
    lengthened = ["--lengthened", str(tmp_path / "long")]
    load_benchmark("translate_documents").main([*marians[:1], *texts, *OPTIONS, *lengthened])
    report, table = saved()
    record = list(report["models"].values())[1]
    assert record["rows"].keys() == {"lengthened model, as a whole"} and "cost" not in record
    assert "lengthened model, as a whole | 1 |" in table and "Translator | 1 |" in table


def test_shares_and_scores_are_of_their_paragraphs_alone(load_benchmark: Callable[[str], ModuleType]) -> None:
    """The reference scores 100; a paragraph without its last sentences has those dropped."""
    benchmark = load_benchmark("translate_documents")
    pairs = [(source, target) for source, target in generate_pairs(seed=5, pairs=32, min_words=6, max_words=24)]
    paragraphs = benchmark.paragraphs_of([*pairs, ("rest", "rest")], ["a"] * 32 + ["b"], 8)
    assert [pair for paragraph in paragraphs for pair in paragraph] == pairs
    outputs = [" ".join(target for _, target in paragraph) for paragraph in paragraphs]
    outputs[1] = " ".join(target for _, target in paragraphs[1][:4])
    outputs[3] += " again" * 9
    rows = benchmark.score(paragraphs, outputs, {"all": [0, 1, 2, 3], "whole": [0, 2], "half": [1], "loop": [3]})
    assert rows["whole"] == {"dropped": 0, "repeated": 0, "loops": 0, "bleu": pytest.approx(100), "chrf": 100}
    assert (rows["half"]["dropped"], rows["all"]["dropped"]) == (4 / 8, 4 / 32)
    assert (rows["loop"]["loops"], rows["all"]["loops"], rows["half"]["loops"]) == (1, 0.25, 0)


@pytest.mark.full
def test_no_generated_sentence_is_one_that_the_quickstart_trains_with(
    load_benchmark: Callable[[str], ModuleType],
) -> None:
    benchmark = load_benchmark("translate_documents")
    sources = [source for source, _ in benchmark.read_pairs([])]
    assert len(sources) == benchmark.NUM_GENERATED
    for seed, pairs, max_words in ((1, 30_000, 24), (3, 24_000, 12)):  # configs/quickstart.yaml
        trained = {source for source, _ in generate_pairs(seed=seed, pairs=pairs, min_words=6, max_words=max_words)}
        assert trained.isdisjoint(sources)


def test_planted_faults_are_doubted(load_benchmark: Callable[[str], ModuleType], saved: Saved, tmp_path: Path) -> None:
    """All empty translations, and most of the loops and copies; a text without links has no row of them."""
    pairs = list(generate_pairs(seed=5, pairs=300, min_words=6, max_words=24))
    for column, name in enumerate(("source", "target")):
        (tmp_path / name).write_text("\n".join(pair[column] for pair in pairs), encoding="utf-8")
    load_benchmark("translation_checks").main([str(tmp_path / "source"), str(tmp_path / "target"), "--save", "tiny"])
    report, table = saved()
    rows = {
        name: dict(zip(("planted", "doubted", "precision"), cells, strict=True))
        for name, cells in report["rows"].items()
    }
    assert report["pairs"] == 300 and "without a link" not in rows
    assert rows["empty"]["planted"] == "30" and rows["empty"]["doubted"] == "100%"
    for name in ("a loop at the end", "the source", "another script"):
        assert int(rows[name]["doubted"].rstrip("%")) > 80
    assert table.startswith("| fault in a tenth of the segments |")


@pytest.mark.full
def test_a_translation_has_the_length_that_a_control_demands(
    load_benchmark: Callable[[str], ModuleType], saved: Saved, texts: list[str], marians: list[str]
) -> None:
    benchmark = load_benchmark("length_controls")
    benchmark.main([*marians, *texts, "--lines", "2", "--num-beams", "2", "--save", "tiny"])
    report, table = saved()
    assert len(report["models"]) == 2 and len(table.splitlines()) == 2 + 6 + 2
    for record in report["models"]:
        # random models write a token for each word, and these references have as many tokens as the sources
        assert record["at least 0.9 of the expected length"]["length"] >= 0.9 - 1 / 3
        assert record["0.9 to 1.1 of the expected length"]["length"] <= 1.1


def test_no_translation_ends_before_the_attention_reached_the_end_of_the_source(
    load_benchmark: Callable[[str], ModuleType],
) -> None:
    """The end token of the source, which draws attention at any step, does not count."""
    mask = torch.tensor([[1] * 11, [1] * 6 + [0] * 5])
    processor = load_benchmark("length_controls").EndAfterSource(mask, [1])

    def may_end(*attended: int) -> list[bool]:
        weights = torch.nn.functional.one_hot(torch.tensor(attended), 11)[:, None, None].float()
        processor.read(torch.nn.Identity(), None, SimpleNamespace(cross_attentions=[weights, weights]))
        return processor(torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, 4))[:, 1].isfinite().tolist()

    assert may_end(10, 5) == [False, False]
    assert may_end(8, 4) == [False, True]
    assert may_end(9, 0) == [True, True]
    assert may_end(0, 0) == [True, True]
