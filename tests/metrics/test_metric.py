"""The length_buckets metric: the score of a bucket is sacrebleu's corpus score of its pairs."""

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
import torch
from sacrebleu.metrics import BLEU, CHRF, TER
from transformers import BertConfig, BertModel, BertTokenizer

import hf_posenc.metrics
from hf_posenc import PosEncTokenizer
from hf_posenc.metrics.length_buckets.scorers import PAIRS_PER_CHUNK
from hf_posenc.metrics.loading import load_length_buckets

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


def test_exact_match_and_token_accuracy_by_hand() -> None:
    """Words at their places count; words beyond the reference do not, but an exact match has none."""
    pairs = [(1, "1 2 3", "1 2 3"), (1, "1 3", "1 2 3"), (2, "1  2 3 4", "1 2 3"), (2, "", ""), (2, "7", "")]
    result = load_length_buckets().compute(
        predictions=[pair[1] for pair in pairs],
        references=[pair[2] for pair in pairs],
        source_lengths=[pair[0] for pair in pairs],
        edges=(1, 2),
        metrics=("exact_match", "token_accuracy"),
        bootstrap=20,
    )
    assert [group["exact_match"] for group in result["groups"]] == [50.0, pytest.approx(100 / 3), None]
    assert [group["token_accuracy"] for group in result["groups"]] == [pytest.approx(100 * 4 / 6), 80.0, None]
    assert result["all"]["exact_match"] == 40.0 and result["all"]["exact_match_ci"] > 0


@pytest.mark.full
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
        printed = {entry["name"]: entry for entry in json.loads(process.communicate()[0])}
        for field, name in (("bleu", "BLEU"), ("ter", "TER"), ("chrf", "chrF2")):
            assert round(group[field], 12) == printed[name]["score"], (group["label"], name)
            assert result["signatures"][field] == printed[name]["signature"]


@pytest.mark.full
def test_intervals_equal_sacrebleus_command_line(tmp_path: Path) -> None:
    pairs = random_pairs(40)
    pairs = [(length % 50, prediction, reference) for length, prediction, reference in pairs]
    result = score(pairs, metrics=("bleu", "ter", "chrf"), bootstrap=200)
    for number, (low, high) in enumerate([(0, 1000), (0, 25), (26, 50)]):
        group = [pair for pair in pairs if low <= pair[0] <= high]
        (tmp_path / "hyp").write_text("".join(f"{prediction}\n" for _, prediction, _ in group))
        (tmp_path / "ref").write_text("".join(f"{reference}\n" for _, _, reference in group))
        command = "ref -i hyp -m bleu ter chrf --ter-case-sensitive --confidence --confidence-n 200 --width 9"
        printed = subprocess.run(
            [sys.executable, "-m", "sacrebleu", *command.split()],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        ours = [result["all"], *result["groups"]][number]
        for entry in json.loads(printed):
            name = {"BLEU": "bleu", "TER": "ter", "chrF2": "chrf"}[entry["name"]]
            assert (entry["score"], entry["confidence_mean"], entry["confidence_var"]) == pytest.approx(
                (ours[name], ours[f"{name}_mean"], ours[f"{name}_ci"]), abs=1e-8
            )
    for name, signature in result["signatures"].items():
        assert "bs:200|seed:12345" in signature, name
    assert result["groups"][2]["bleu_ci"] is None  # of an empty group


def test_an_interval_of_one_pair_is_none_with_a_note() -> None:
    with pytest.warns(UserWarning, match=r"two pairs; \[0,25\] has one"):
        result = score([TEN[0], *TEN[3:5]], bootstrap=10)
    assert result["groups"][0]["bleu"] == pytest.approx(100)
    assert result["groups"][0]["bleu_mean"] is result["groups"][0]["bleu_ci"] is None
    assert result["groups"][1]["bleu_ci"] > 0


def test_statistics_are_what_the_scores_are_sums_of() -> None:
    metric, pairs = load_length_buckets(), random_pairs(30)
    result: Any = metric.compute(**columns(pairs), metrics=("bleu", "ter", "chrf"))
    assert metric.lengths == [length for length, _, _ in pairs]
    inside = [length <= 25 for length in metric.lengths]
    for name, scorer in (("bleu", BLEU()), ("ter", TER(case_sensitive=True)), ("chrf", CHRF())):
        assert len(metric.statistics[name]) == 30
        total = metric.statistics[name][inside].sum(0)
        assert scorer._compute_score_from_stats(list(total)).score == pytest.approx(result["groups"][0][name])


@pytest.mark.slow
def test_processes_share_the_work_and_change_nothing() -> None:
    pairs = random_pairs(150)
    assert score(pairs, num_proc=2, bootstrap=5) == score(pairs, bootstrap=5)


@pytest.mark.slow
def test_a_script_without_a_main_guard_gets_an_error_that_says_so(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from hf_posenc import load_length_buckets\n"
        "pairs = ['a b'] * 200\n"
        "load_length_buckets().compute(predictions=pairs, references=pairs, source_lengths=[1] * 200, num_proc=2)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(FOLDER.parents[2]), "HF_METRICS_CACHE": str(tmp_path)}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True)
    assert done.returncode and "put what that does under `if __name__ == '__main__':`" in done.stderr


class Words:
    """Counts the words of sources, and one more in references, as a tokenizer of two vocabularies may."""

    def __call__(self, text: Any = None, text_target: Any = None, add_special_tokens: bool = True) -> dict[str, Any]:
        special = ["</s>"] * add_special_tokens
        texts = [one.split() for one in text] if text_target is None else [["en", *one.split()] for one in text_target]
        return {"input_ids": [words + special for words in texts]}


def test_lengths_may_be_counted_by_a_tokenizer(tmp_path: Path) -> None:
    sources = ["a b c", "a b c d e", "a", ""]
    given = {"predictions": ["x y"] * 4, "references": ["x y", ["x", "x y z"], "x y z", "x y"]}
    metric = load_length_buckets()
    by_source: Any = metric.compute(**given, sources=sources, tokenizer=Words(), edges=(1, 4))
    assert metric.lengths == [3, 5, 1, 0]
    assert by_source == metric.compute(**given, source_lengths=[3, 5, 1, 0], edges=(1, 4))
    assert by_source["by"] == "source"
    metric.add_batch(predictions=["x y"], references=["x y"], sources=["a b"], tokenizer=Words())
    metric.add(prediction="x", reference="x", source_lengths=7)
    metric.compute(edges=(1,))
    assert metric.lengths == [2, 7]
    by_reference: Any = metric.compute(**given, tokenizer=Words(), by="reference", edges=(1, 4))
    assert metric.lengths == [3, 2, 4, 3]  # of the first reference
    assert by_reference["by"] == "reference"
    by_prediction: Any = metric.compute(**given, tokenizer=Words(), by="prediction", edges=(1, 4))
    assert metric.lengths == [3] * 4
    assert [group["n"] for group in by_prediction["groups"]] == [0, 4, 0]
    real = PosEncTokenizer.train(["the cat sat on the mat"] * 3, 275)
    real.save_pretrained(tmp_path)
    metric.compute(predictions=["x"], references=["x"], sources=["the cat"], tokenizer=str(tmp_path))
    assert metric.lengths == [len(real("the cat", add_special_tokens=False)["input_ids"])]


@pytest.fixture(scope="module")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("bert")
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *sorted({w.lower() for _, p, r in TEN for w in (p + r).split()}),
    ]
    (folder / "vocab.txt").write_text("\n".join(words))
    BertTokenizer(str(folder / "vocab.txt"), model_max_length=64).save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(words), hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=8
    )
    BertModel(config).save_pretrained(folder)
    return str(folder)


@pytest.mark.full
def test_bertscore_is_its_definition(tiny_bert: str) -> None:
    """Greedy matching of the words of Zhang et al.'s equations, on the hidden states of the model itself."""
    model, tokenizer = BertModel.from_pretrained(tiny_bert).eval(), BertTokenizer.from_pretrained(tiny_bert)

    def states(text: str) -> torch.Tensor:
        with torch.no_grad():
            hidden = model(**tokenizer(text, return_tensors="pt"), output_hidden_states=True).hidden_states[2][0]
        return torch.nn.functional.normalize(hidden, dim=-1)

    def f1(prediction: str, reference: str) -> float:
        similarity = states(prediction) @ states(reference).T
        precision = similarity[1:-1].max(1).values.mean()  # of its words, each with any token of the reference
        recall = similarity[:, 1:-1].max(0).values.mean()
        return float(2 * precision * recall / (precision + recall))

    expected = [f1(prediction, reference) for _, prediction, reference in TEN]
    options = {"metrics": ("bertscore",), "bertscore_model": tiny_bert, "bertscore_layers": 2}
    result = score(TEN, bootstrap=50, **options)
    assert result["all"]["bertscore"] == pytest.approx(100 * sum(expected) / 10, abs=1e-3)
    assert result["groups"][1]["bertscore"] == pytest.approx(100 * sum(expected[3:6]) / 3, abs=1e-3)
    assert 0 < result["all"]["bertscore_ci"] < 20
    assert "_L2_no-idf_version=" in result["signatures"]["bertscore"]
    silent = score([(3, " ", "the cat"), (3, "the cat", "the cat")], **options)
    assert silent["all"]["bertscore"] == pytest.approx(50, abs=1e-3)  # nothing scores 0, not an error
    nothing = [(3, "", "the cat"), (3, "the cat", ""), (3, "", ""), (3, "\u200b", "the cat"), (3, "the cat", "\u200b")]
    empty = score(nothing, bootstrap=10, **options)["all"]
    assert (empty["bertscore"], empty["bertscore_mean"], empty["bertscore_ci"]) == (0, 0, 0)
    several = score([(3, "the cat", ["dog", "the cat"])], **options)
    assert several["all"]["bertscore"] == pytest.approx(100, abs=1e-3)


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
    metrics = ("bleu", "ter", "chrf", "exact_match", "token_accuracy")
    nothing: Any = load_length_buckets().compute(predictions=[], references=[], source_lengths=[], metrics=metrics)
    for group in (nothing["all"], *nothing["groups"]):
        assert (group["n"], *(group[metric] for metric in metrics)) == (0, None, None, None, None, None)


def test_planted_errors_are_detected() -> None:
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
    more = [(5, good, good)] * PAIRS_PER_CHUNK + [(6, good, [bad, good])] * 4  # the last share alone has two
    assert "nrefs:var" in score(more)["signatures"]["bleu"]


def test_bleu_may_have_a_tokenizer_for_words_that_are_not_written_apart() -> None:
    pairs = [(5, "私は学生ですか", "私は学生ですよ"), (5, "猫がいるの", "猫がいるね")]
    predictions, references = (list(texts) for texts in list(zip(*pairs, strict=True))[1:])
    assert score(pairs)["all"]["bleu"] == 0
    result = score(pairs, bleu_tokenize="char")
    assert result["all"]["bleu"] == pytest.approx(BLEU(tokenize="char").corpus_score(predictions, [references]).score)
    assert result["all"]["bleu"] > 50 and "tok:char" in result["signatures"]["bleu"]


def test_a_refused_computation_changes_no_state() -> None:
    metric = load_length_buckets()
    with pytest.raises(ValueError, match="pass tokenizer="):
        metric.compute(predictions=["a"], references=["a"], by="reference")
    assert metric.compute(predictions=["a"], references=["a"], source_lengths=[5])["all"]["n"] == 1
    metric.add(prediction="a", reference="a")
    with pytest.raises(ValueError, match=r"of those added before, to add\)"):
        metric.compute(source_lengths=[4])


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


@pytest.mark.full
def test_combines_with_another_metric() -> None:
    combined = evaluate.combine({"one": load_length_buckets(), "two": load_length_buckets()})
    combined.add_batch(**columns(TEN[:4]))
    for length, prediction, reference in TEN[4:]:
        combined.add(prediction=prediction, reference=reference, source_lengths=length)
    result = combined.compute(metrics=("bleu",))
    assert result["one_all"] == result["two_all"] == score(TEN, metrics=("bleu",))["all"]


@pytest.mark.full
def test_evaluate_loads_the_folder_offline(tmp_path: Path) -> None:
    """A fresh process without network or cache, started far from the repository, from a folder it cannot write to."""
    code = (
        "import evaluate, json, socket, sys\n"
        "def refuse(*_): raise AssertionError('the network was asked')\n"
        "socket.socket.connect = refuse\n"
        "metric = evaluate.load(sys.argv[1])\n"
        "print(json.dumps(metric.compute(**json.loads(sys.argv[2]))))\n"
        "assert 'hf_posenc' not in sys.modules\n"
        "pair = {'predictions': ['the cat'], 'references': ['the cat'], 'sources': ['the cat sat']}\n"
        "metric.compute(**pair, tokenizer=sys.argv[3])\n"
        "print(metric.lengths)\n"
    )
    tokenizer = PosEncTokenizer.train(["the cat sat on the mat"] * 3, 275)
    tokenizer.save_pretrained(tmp_path / "tokenizer")
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
        [sys.executable, "-c", code, str(folder), json.dumps(columns(TEN)), str(tmp_path / "tokenizer")],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    scores, lengths = process.stdout.splitlines()
    assert json.loads(scores) == score(TEN)
    assert json.loads(lengths) == [len(tokenizer("the cat sat", add_special_tokens=False)["input_ids"])]


def test_a_tokenizer_whose_class_is_not_installed_is_refused_and_its_code_not_run(tmp_path: Path) -> None:
    """Without a question at the terminal, and with a remedy that there is."""
    (tmp_path / "tokenization_strange.py").write_text("raise AssertionError('this code was run')\n")
    named = {"tokenizer_class": "Strange", "auto_map": {"AutoTokenizer": ["tokenization_strange.Strange", None]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(named))
    pair: dict[str, Any] = {"predictions": ["x"], "references": ["x"], "sources": ["a b"]}
    metric = load_length_buckets()
    with pytest.raises(ValueError, match=r"installed, .*pass the tokenizer") as refused:
        metric.compute(**pair, tokenizer=str(tmp_path))
    assert "trust_remote_code" not in str(refused.value) and str(tmp_path) in str(refused.value)
    assert metric.compute(**pair, tokenizer=Words())["all"]["n"] == 1


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
        ({"source_lengths": None}, r"some come without; pass source_lengths="),
        ({"predictions": None}, "predictions must be a list.*missing"),
        ({"references": "one"}, "references must be a list.*str"),
        ({"predictions": ["one", ["two"]]}, r"predictions\[1\] is of type list"),
        ({"predictions": ["one", None]}, r"predictions\[1\] is of type NoneType"),
        ({"references": ["one", [["two"]]]}, r"references\[1\] is of type list.*flat list"),
        ({"references": ["one", 2]}, r"references\[1\] is of type int"),
        (
            {"predictions": ["one", "x\ud83d"]},
            r"must be UTF-8; predictions\[1\] has half a character, '\\ud83d',",
        ),
        ({"references": ["one", ["two", "\ud83d"]]}, r"references must be UTF-8; references\[1\] has half a character"),
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
        ({"sources": ["a", "b"]}, "source_lengths and sources must not both be given"),
        ({"sources": ["a", "b"], "source_lengths": None}, "the length of sources is counted by a tokenizer"),
        ({"sources": ["a"], "source_lengths": None, "tokenizer": Words()}, "2 predictions, 2 references, 1 sources"),
        ({"sources": ["a", 1], "source_lengths": None, "tokenizer": Words()}, r"sources\[1\] is of type int"),
        (
            {"sources": ["a", "\ud83d"], "source_lengths": None, "tokenizer": Words()},
            r"UTF-8; sources\[1\]",
        ),
        ({"by": "target"}, "'target' is not one; choose from source, reference"),
        ({"by": "reference"}, "the length of references is counted by a tokenizer"),
        ({"bootstrap": -1}, "bootstrap must be a whole number from 0 on; bootstrap=-1"),
        ({"num_proc": 0}, "num_proc must be a whole number from 1 on"),
        ({"metrics": "bertscore"}, "BERTScore needs a model; pass bertscore_model="),
        ({"bleu_tokenize": "13"}, "bleu_tokenize must be names of this metric; '13' is not one; did you mean '13a'"),
        ({"metrics": "bertscore", "bertscore_model": "mine"}, "has no default layer for mine; pass bertscore_layers="),
    ],
)
def test_bad_input_is_refused_and_the_metric_lives_on(change: dict[str, Any], said: str) -> None:
    metric = load_length_buckets()
    good: dict[str, Any] = {"predictions": ["one", "two"], "references": ["one", "two"], "source_lengths": [1, 2]}
    with pytest.raises(ValueError, match=said):
        metric.compute(**(good | change))
    assert metric.compute(**good) == load_length_buckets().compute(**good)
