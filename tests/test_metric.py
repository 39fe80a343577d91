"""Laws of the length_buckets metric: a group's score is sacrebleu's corpus score of its pairs, and nothing else."""

from __future__ import annotations

import doctest
import json
import math
import os
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import evaluate
import pytest

import hf_posenc.metrics
from hf_posenc.metrics import load_length_buckets

FOLDER = Path(hf_posenc.metrics.__file__).parent / "length_buckets"

# Ten pairs, written so that 13a tokens are the words: (source length, prediction, reference).
TEN = [
    (3, "the cat sat on the mat", "the cat sat on the mat"),
    (7, "a dog ran in the park", "the dog ran in a park"),
    (25, "He saw two big red birds there", "he saw two big red birds"),
    (26, "it rained for the whole day", "it rained for most of the whole day"),
    (30, "we went home early", "we all went home quite early"),
    (50, "the old man and the sea are calm", "the old man and the sea are calm"),
    (51, "nobody knows where this road ends", "no one knows where the road ends"),
    (75, "green ideas sleep very furiously at night", "green ideas sleep furiously at night"),
    (101, "this sentence repeats repeats repeats itself", "this sentence repeats itself"),
    (400, "one two three four five", "one two three four five six seven"),
]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate.config, "HF_METRICS_CACHE", str(tmp_path / "metrics"))


def columns(pairs: list[tuple[int, Any, Any]]) -> dict[str, list[Any]]:
    lengths, predictions, references = (list(column) for column in zip(*pairs, strict=True))
    return {"predictions": predictions, "references": references, "source_lengths": lengths}


def score(pairs: list[tuple[int, Any, Any]], **options: Any) -> dict[str, Any]:
    result = load_length_buckets().compute(**columns(pairs), **options)
    assert result is not None
    return result


def random_pairs(number: int, seed: int = 0) -> list[tuple[int, str, str]]:
    """Pairs with punctuation, capitals and repeated words; a third of each reference is changed in its prediction."""
    chance = random.Random(seed)
    words = ["The", "the", "a", "House,", "house", "is", "was", "3.5", "in", "Berlin", "(old)", "and", "it's", "red."]
    pairs = []
    for _ in range(number):
        reference = chance.choices(words, k=chance.randint(4, 14))
        prediction = [chance.choice(words) if chance.random() < 0.33 else word for word in reference]
        if chance.random() < 0.5:
            prediction.append(chance.choice(words))
        pairs.append((chance.randint(0, 130), " ".join(prediction), " ".join(reference)))
    return pairs


def bleu_by_hand(pairs: list[tuple[int, str, str]]) -> tuple[float, float, float]:
    """BLEU, brevity penalty and length ratio from Papineni et al.'s formula, with sacrebleu's `exp` smoothing."""
    logarithms, halvings = 0.0, 1
    for order in range(1, 5):
        matched = total = 0
        for _, prediction, reference in pairs:
            counts = [
                Counter(tuple(words[start : start + order]) for start in range(len(words) - order + 1))
                for words in (prediction.split(), reference.split())
            ]
            matched += (counts[0] & counts[1]).total()
            total += counts[0].total()
        if not matched:
            halvings *= 2
        logarithms += math.log(matched / total if matched else 1 / (halvings * total))
    ours = sum(len(prediction.split()) for _, prediction, _ in pairs)
    theirs = sum(len(reference.split()) for _, _, reference in pairs)
    penalty = min(1.0, math.exp(1 - theirs / ours))
    return 100 * penalty * math.exp(logarithms / 4), penalty, ours / theirs


def test_ten_pairs_by_hand() -> None:
    result = score(TEN)
    assert [group["n"] for group in result["groups"]] == [3, 3, 2, 0, 2]
    assert result["all"]["n"] == 10
    for group, pairs in zip(
        [result["all"], *result["groups"]], [TEN, TEN[:3], TEN[3:6], TEN[6:8], [], TEN[8:]], strict=True
    ):
        if pairs:
            assert (group["bleu"], group["brevity_penalty"], group["length_ratio"]) == pytest.approx(
                bleu_by_hand(pairs)
            )
    # Edits (a shift of one block counts one) by reference words. First group: 0, then two substitutions, then one
    # substitution and one deletion, by 6 + 6 + 6 words. Last group: two deletions, then two insertions, by 4 + 7.
    assert result["groups"][0]["ter"] == pytest.approx(100 * 4 / 18)
    assert result["groups"][4]["ter"] == pytest.approx(100 * 4 / 11)


def test_equals_sacrebleus_command_line_to_the_last_digit(tmp_path: Path) -> None:
    pairs = random_pairs(60)
    result = score(pairs, metrics=("bleu", "ter", "chrf"))
    borders = [(0, 1000), (0, 25), (26, 50), (51, 75), (76, 100), (101, 1000)]
    running = []
    for number, (low, high) in enumerate(borders):
        group = [pair for pair in pairs if low <= pair[0] <= high]
        (tmp_path / f"{number}.hyp").write_text("".join(f"{prediction}\n" for _, prediction, _ in group))
        (tmp_path / f"{number}.ref").write_text("".join(f"{reference}\n" for _, _, reference in group))
        command = f"{number}.ref -i {number}.hyp -m bleu ter chrf --ter-case-sensitive --width 12".split()
        running.append(
            subprocess.Popen(
                [sys.executable, "-m", "sacrebleu", *command], cwd=tmp_path, stdout=subprocess.PIPE, text=True
            )
        )
    for process, group in zip(running, [result["all"], *result["groups"]], strict=True):
        printed = {entry["name"]: entry for entry in json.loads(process.communicate(timeout=60)[0])}
        for field, name in (("bleu", "BLEU"), ("ter", "TER"), ("chrf", "chrF2")):
            assert round(group[field], 12) == printed[name]["score"], (group["label"], name)
            assert result["signatures"][field] == printed[name]["signature"]


def test_order_of_pairs_does_not_matter() -> None:
    pairs = random_pairs(60)
    shuffled = random.Random(1).sample(pairs, len(pairs))
    assert shuffled != pairs
    assert score(shuffled) == score(pairs)


@pytest.mark.parametrize("edge", [25, 50, 75, 100])
def test_upper_edges_are_inclusive(edge: int) -> None:
    text = "the same four words"
    groups = score([(edge, text, text), (edge + 1, text, text)])["groups"]
    assert [group["high"] for group in groups if group["n"]] == [edge, {25: 50, 50: 75, 75: 100, 100: None}[edge]]
    assert [group["n"] for group in groups if group["n"]] == [1, 1]


def test_edges_are_free_and_labelled() -> None:
    groups = score(TEN, edges=[49])["groups"]
    assert [(group["low"], group["high"], group["label"], group["n"]) for group in groups] == [
        (0, 49, "[0,49]", 5),
        (50, None, ">49", 5),
    ]


def test_a_lone_option_is_a_list_of_one() -> None:
    assert score(TEN, edges=49, metrics="bleu") == score(TEN, edges=[49], metrics=["bleu"])


def test_empty_groups_are_none_never_zero() -> None:
    everything = score(TEN, metrics=("bleu", "ter", "chrf"))
    empty = everything["groups"][3]
    assert empty["n"] == 0
    assert {empty[field] for field in ("bleu", "brevity_penalty", "ter", "chrf", "length_ratio")} == {None}
    nothing: Any = load_length_buckets().compute(predictions=[], references=[], source_lengths=[])
    assert {(group["n"], group["bleu"]) for group in [nothing["all"], *nothing["groups"]]} == {(0, None)}


def test_planted_errors_are_seen() -> None:
    pairs = random_pairs(40)
    before = score(pairs)["all"]
    lengths, predictions, references = zip(*pairs, strict=True)
    shifted = score(list(zip(lengths, predictions, references[1:] + references[:1], strict=True)))["all"]
    assert shifted["bleu"] < before["bleu"] and shifted["ter"] > before["ter"]
    lowered = score([(length, prediction.lower(), reference) for length, prediction, reference in pairs])["all"]
    assert lowered["bleu"] < before["bleu"] and lowered["ter"] > before["ter"]
    cut = score([(length, prediction.split()[0], reference) for length, prediction, reference in pairs])["all"]
    assert cut["length_ratio"] < 0.5 and cut["brevity_penalty"] < 0.5


def test_several_references_and_their_nesting() -> None:
    good, bad = "the house is red today", "yesterday nothing was green"
    assert score([(5, good, [bad, good])])["all"]["bleu"] == pytest.approx(100)
    # A second reference for some sentences only.
    result = score([(5, good, [bad, good]), (6, good, good)])
    assert result["all"]["bleu"] == pytest.approx(100)
    assert "nrefs:var" in result["signatures"]["bleu"]
    assert score([(5, good, [good])]) == score([(5, good, good)])


def test_batches_and_single_pairs_add_up() -> None:
    pairs = random_pairs(20)
    at_once = score(pairs)
    metric = load_length_buckets()
    metric.add_batch(**columns(pairs[:7]))
    for length, prediction, reference in pairs[7:11]:
        metric.add(prediction=prediction, reference=reference, source_lengths=length)
    metric.add_batch(**columns(pairs[11:]))
    assert metric.compute() == at_once
    assert load_length_buckets(keep_in_memory=True).compute(**columns(pairs)) == at_once


def test_combines_with_another_metric() -> None:
    combined = evaluate.combine({"one": load_length_buckets(), "two": load_length_buckets()})
    combined.add_batch(**columns(TEN[:4]))
    for length, prediction, reference in TEN[4:]:
        combined.add(prediction=prediction, reference=reference, source_lengths=length)
    result = combined.compute(metrics=("bleu",))
    assert result["one_all"] == result["two_all"] == score(TEN, metrics=("bleu",))["all"]


def test_evaluate_loads_the_folder_offline(tmp_path: Path) -> None:
    """A fresh process without network or cache, started far from the repository, from a folder it cannot write to."""
    code = (
        "import evaluate, json, socket, sys\n"
        "def refuse(*_): raise AssertionError('the network was asked')\n"
        "socket.socket.connect = refuse\n"
        "metric = evaluate.load(sys.argv[1])\n"
        "print(json.dumps(metric.compute(**json.loads(sys.argv[2]))))\n"
    )
    folder = tmp_path / "length_buckets"
    folder.mkdir()
    for file in FOLDER.iterdir():
        if file.is_file():
            (folder / file.name).write_bytes(file.read_bytes())
    folder.chmod(0o555)
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}
    for name in ("HF_METRICS_CACHE", "HF_EVALUATE_CACHE", "HF_MODULES_CACHE", "PYTHONPATH"):
        environment.pop(name, None)
    process = subprocess.run(
        [sys.executable, "-c", code, str(folder), json.dumps(columns(TEN))],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert process.returncode == 0, process.stderr
    assert json.loads(process.stdout) == score(TEN)


def test_result_is_plain_json() -> None:
    result = score(TEN, metrics=("bleu", "ter", "chrf"))
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert "case:mixed" in result["signatures"]["ter"]


def test_the_cards_example_runs() -> None:
    card = (FOLDER / "README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL)
    example = example.replace("src/hf_posenc/metrics/length_buckets", str(FOLDER))
    test = doctest.DocTestParser().get_doctest(example, {}, "README", None, 0)
    assert len(test.examples) == 4
    said: list[str] = []
    outcome = doctest.DocTestRunner().run(test, out=said.append)
    assert outcome.failed == 0, "".join(said)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"predictions": ["one"]}, "1 predictions, 2 references, 2 source_lengths"),
        ({"references": [["one", "two"]]}, r"2 predictions, 1 references.*\[\[first, second\], ...\]"),
        ({"source_lengths": [1, 2, 3]}, "3 source_lengths"),
        ({"source_lengths": None}, "source_lengths must be a list.*missing.*pass source_lengths="),
        ({"predictions": None}, "predictions must be a list.*missing"),
        ({"references": "one"}, "references must be a list.*str"),
        ({"predictions": ["one", ["two"]]}, r"predictions\[1\] is of type list"),
        ({"predictions": ["one", None]}, r"predictions\[1\] is of type NoneType"),
        ({"references": ["one", [["two"]]]}, r"references\[1\] is of type list.*flat list"),
        ({"references": ["one", 2]}, r"references\[1\] is of type int"),
        ({"references": ["one", []]}, r"references\[1\] is empty"),
        ({"source_lengths": [1, -1]}, r"source_lengths\[1\] is -1.*without special tokens"),
        ({"source_lengths": [1, 2.5]}, r"source_lengths\[1\] is 2.5"),
        ({"edges": (25, 25)}, r"must ascend; edges=\(25, 25\); sort"),
        ({"edges": (50, 25)}, "must ascend"),
        ({"edges": (0, 25)}, "positive whole numbers"),
        ({"edges": (25.0, 50)}, "positive whole numbers"),
        ({"edges": ()}, "at least one"),
        ({"edges": "25"}, "positive whole numbers"),
        ({"metrics": ("bleu", "tre")}, "'tre' is not one; did you mean 'ter'"),
        ({"metrics": ("BLEU",)}, "'BLEU' is not one; did you mean 'bleu'"),
        ({"metrics": ("comet",)}, "'comet' is not one; choose from bleu, ter, chrf"),
        ({"metrics": ()}, "at least one"),
        ({"metrics": None}, "None is not one"),
    ],
)
def test_bad_input_is_refused_and_the_metric_lives_on(change: dict[str, Any], said: str) -> None:
    metric = load_length_buckets()
    good: dict[str, Any] = {"predictions": ["one", "two"], "references": ["one", "two"], "source_lengths": [1, 2]}
    with pytest.raises(ValueError, match=said):
        metric.compute(**(good | change))
    assert metric.compute(**good) == load_length_buckets().compute(**good)
