"""The benchmarks run, measure what they are asked to and save it whole, on models too small to learn anything from."""

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from hf_posenc import POSITION_ENCODINGS

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
TINY = ["--width", "16", "--layers", "1", "--rounds", "2", "--save", "tiny"]
README = "before\n<!-- tiny: begin -->\n| an older table |\n<!-- tiny: end -->\nafter\n"


@pytest.fixture
def benchmark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unregistered_after: None
) -> Callable[..., tuple[dict[str, Any], str]]:
    """Runs a benchmark of that name on tiny models, in a folder of its own: the report and the README it saves."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(importlib.import_module("ratios"), "HERE", tmp_path)
    (tmp_path / "README.md").write_text(README, encoding="utf-8")

    def run(name: str, *options: str) -> tuple[dict[str, Any], str]:
        module: ModuleType = importlib.import_module(name)
        module.main([*TINY, *options])
        assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["README.md", "tiny.json"]
        report = json.loads((tmp_path / "results" / "tiny.json").read_text(encoding="utf-8"))
        return report, (tmp_path / "README.md").read_text(encoding="utf-8")

    return run


def check(report: dict[str, Any], readme: str, names: list[str], sizes: list[tuple[int, int]]) -> None:
    """A record for each name and size, a ratio of 1 for `none`, and the table where the older one was."""
    rows = [(record["batch"], record["length"], record["encoding"]) for record in report["records"]]
    assert rows == [(*size, name) for size in sizes for name in names]
    for record in report["records"]:
        assert 0 < record["time_ratio_min"] <= record["time_ratio"] <= record["time_ratio_max"]
        if record["encoding"] == "none":
            assert record["time_ratio_min"] == record["time_ratio_max"] == record.get("memory_ratio", 1) == 1
    assert report["machine"]["torch"] == torch.__version__
    assert readme.startswith("before\n<!-- tiny: begin -->\n| encoding |")
    assert readme.endswith(".\n<!-- tiny: end -->\nafter\n")
    assert "older" not in readme
    assert [line.split("`")[1] for line in readme.splitlines() if line.startswith("| `")] == names


@pytest.mark.parametrize("padding", [[], ["--padding", "0.25"]], ids=["full", "padded"])
def test_a_training_step_is_compared(benchmark, padding):
    report, readme = benchmark(
        "training_step", "--encodings", "gru", "naive_relative", "none", "--sizes", "2x6", "3x8", *padding
    )
    check(report, readme, ["none", "gru", "naive_relative"], [(2, 6), (3, 8)])
    assert report["padding"] == float(padding[-1] if padding else 0)
    assert ("25 % padding" in readme) == bool(padding)


def test_a_decoding_step_is_compared_for_all_by_default(benchmark):
    report, readme = benchmark("decoding_step", "--sizes", "2x3")
    check(report, readme, [*POSITION_ENCODINGS, "rnn_nmt"], [(2, 3)])


def test_a_decoding_step_leaves_the_cache_as_it_was(benchmark):
    """Or the steps of later rounds would follow a longer prefix than the table says."""
    ratios, decoding_step = importlib.import_module("ratios"), importlib.import_module("decoding_step")
    options = ratios.parse(ratios.parser(None, encodings=[], sizes=[], rounds=1), TINY)
    for name in ("relative", "lstm", "rnn_nmt"):
        step = decoding_step.DecodingStep(name, (2, 3), options)
        expected = step.logits()
        step.undo()
        step.seconds(ratios.CLOCKS["wall"])
        assert step.cache.get_seq_length() == 3
        torch.testing.assert_close(step.logits(), expected)


def test_padding_is_the_share_that_was_asked_for(benchmark):
    sentences = importlib.import_module("training_step").sentences
    tokens = sentences((5, 40), 0.3)
    assert tokens.float().mean() == pytest.approx(0.7)
    assert sorted(tokens.sum(1).tolist()) == [16, 22, 28, 34, 40]
    assert torch.equal(tokens, tokens.cummin(dim=1).values), "padding is on the right"


def test_a_table_without_markers_is_put_at_the_end(benchmark, tmp_path):
    (tmp_path / "README.md").write_text("before\n", encoding="utf-8")
    _, readme = benchmark("training_step", "--encodings", "gru", "--sizes", "2x6")
    assert readme.startswith("before\n\n<!-- tiny: begin -->\n| encoding |")


@pytest.mark.parametrize(
    "wrong, reason",
    [(["--padding", "0.5"], "less than 0.5"), (["--padding", "0.3", "--sizes", "1x8"], "2 sentences or more")],
)
def test_padding_that_cannot_be_is_refused(benchmark, capsys, wrong, reason):
    with pytest.raises(SystemExit):
        benchmark("training_step", *wrong)
    assert reason in capsys.readouterr().err
