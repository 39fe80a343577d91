"""The latency benchmark: policies keep their rules, and OmniSTEval's latencies are those of a formula."""

import importlib
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support.models import TEXTS, tiny_model, translator

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SENTENCES = ["Ein Hund im Schnee.", "Zwei Kinder", "Zwei Hund im Schnee Ein Kinder im Schnee."]


@pytest.fixture
def benchmarks(monkeypatch) -> SimpleNamespace:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return SimpleNamespace(**{name: importlib.import_module(name) for name in ("latency", "simultaneous")})


@pytest.fixture
@torch.no_grad()
def prefix_translator(benchmarks, tokenizer):
    """A model that writes letters and spaces, no bytes, which depend on the source, and often ends."""
    model = translator("relative", output_bias=True)
    for layer in model.model.decoder.layers:
        layer.encoder_attn.out_proj.weight *= 12
        layer.encoder_attn.q_proj.weight *= 4
    model.final_logits_bias[:, :2] = model.final_logits_bias[:, 3:260] = -50
    model.final_logits_bias[:, 2] += 2
    return benchmarks.simultaneous.PrefixTranslator(model, tokenizer)


def units(benchmarks) -> list:
    return [benchmarks.simultaneous.Unit(0, 0, sentence.split()) for sentence in SENTENCES]


@pytest.mark.full
def test_prefixes_in_a_batch_are_continued_as_alone(prefix_translator):
    sources, prefixes = SENTENCES, [[270, 271, 272], [], [265]]
    for options in ({}, {"one_word": True, "may_end": [False, True, False]}):
        together = prefix_translator.continuations(sources, prefixes, **options)
        for row in range(3):
            own = {name: [value[row]] if isinstance(value, list) else value for name, value in options.items()}
            assert together[row] == prefix_translator.continuations([sources[row]], [prefixes[row]], **own)[0]
    assert any(together)


@pytest.mark.full
def test_whole_sentences_are_those_of_translate(benchmarks, prefix_translator):
    benchmarks.simultaneous.write_whole(prefix_translator, written := units(benchmarks))
    for unit, text in zip(
        written, prefix_translator.model.translate(SENTENCES, prefix_translator.tokenizer, num_beams=1), strict=True
    ):
        decoded = prefix_translator.tokenizer.decode(unit.ids)
        assert decoded and text.startswith(decoded)  # `translate` has a higher length limit
        assert set(unit.delays) == {len(unit.words)}


@pytest.mark.full
@pytest.mark.parametrize("k", [1, 3])
def test_wait_k_writes_a_word_for_each_word(benchmarks, prefix_translator, k):
    benchmarks.simultaneous.write_wait_k(prefix_translator, written := units(benchmarks), k)
    starts_word = prefix_translator.starts_word_V
    for unit in written:
        assert unit.delays == sorted(unit.delays)
        for num_read in range(1, len(unit.words)):
            new = [token for token, delay in zip(unit.ids, unit.delays, strict=True) if delay == num_read]
            assert bool(new) == (num_read >= k)
            assert not any(starts_word[token] for token in new[1:])
    assert any(delay < len(unit.words) for unit in written for delay in unit.delays)


@pytest.mark.full
def test_revised_translation_ends_as_the_whole_one_and_each_token_has_its_last_change(benchmarks, prefix_translator):
    benchmarks.simultaneous.write_whole(prefix_translator, whole := units(benchmarks))
    erasure = benchmarks.simultaneous.write_revised(prefix_translator, revised := units(benchmarks))
    assert [unit.ids for unit in revised] == [unit.ids for unit in whole] and erasure > 0
    for unit in revised:
        for num_read in range(1, len(unit.words)):
            prefix = " ".join(unit.words[:num_read])
            version = prefix_translator.continuations([prefix], [[]])[0]
            num_fixed = sum(delay <= num_read for delay in unit.delays)
            assert version[:num_fixed] == unit.ids[:num_fixed]


def test_agreement_writes_what_two_translations_share(benchmarks, monkeypatch):
    """On given translations of the prefixes of "a b c d"; what was written stays."""
    versions = {"a": [1, 2, 3], "a b": [1, 2, 4], "a b c": [1, 2, 4, 5], "a b c d": [1, 2, 4, 6]}

    def continuations(sources, prefixes):
        return [versions[source][len(prefix) :] for source, prefix in zip(sources, prefixes, strict=True)]

    written = {}
    for stride in (1, 2):
        unit = benchmarks.simultaneous.Unit(0, 0, ["a", "b", "c", "d"])
        benchmarks.simultaneous.write_agreement(SimpleNamespace(continuations=continuations), [unit], stride)
        written[stride] = list(zip(unit.ids, unit.delays, strict=True))
    assert written == {1: [(1, 2), (2, 2), (4, 3), (6, 4)], 2: [(1, 4), (2, 4), (4, 4), (6, 4)]}


def test_a_word_has_the_delay_of_its_last_character(benchmarks):
    output = benchmarks.latency.Output()
    for text, delay in (("", 1), ("The ho", 2), ("The house", 3), ("The house", 4), ("The house, is", 5)):
        output.update(text, delay)
    assert (output.words, output.delays) == (["The", "house,", "is"], [2, 5, 5])


def test_logs_are_scored_as_by_the_formula(benchmarks, tmp_path):
    """Average lagging of segments that are translated to the word, with a constant lag and with a late start."""
    pytest.importorskip("omnisteval")
    latency = benchmarks.latency
    sentences = ["Anna sieht heute einen Hund.", "Peter kauft morgen drei neue Katzen."]
    document = latency.Document(sentences, sentences)
    num_words = len(document.words)
    delays = [min(number + 3, num_words) for number in range(num_words)]
    latency.write_references(tmp_path, [document])
    latency.write_log(tmp_path / "log.jsonl", [document], [latency.Output(document.words, delays)])
    scores = latency.score(tmp_path, tmp_path / "log.jsonl")
    assert scores["bleu"] == pytest.approx(100) and scores["chrf"] == pytest.approx(100)
    # Word t of a segment of S words, T of them in the translation, is ideally written after t S / T words.
    lags = [[delays[start + t] - start - t for t in range(size)] for start, size in ((0, 5), (5, 6))]
    read_before_end = [lags[0], [lag for t, lag in enumerate(lags[1]) if delays[5 + t] < num_words]]
    assert scores["long_yaal"] == pytest.approx(sum(sum(lag) / len(lag) for lag in read_before_end) / 2)


def test_a_row_has_the_mean_and_the_range_of_its_seeds_and_counts_all_documents(benchmarks):
    """Whatever the order of the records: a system's seeds follow each other, or a policy's do."""
    latency = benchmarks.latency
    documents = [latency.Document(SENTENCES, SENTENCES)] * 2
    scores = {seed: dict.fromkeys((*latency.QUALITY, *latency.SHOWN_LATENCY), float(seed)) for seed in (1, 2, 6)}
    same = {"lookahead": 7, "same_as_offline": 2}
    records = [latency.record_of(f"aligned-seed{seed}", "streamed") | same | scores[seed] for seed in scores]
    records += [latency.record_of(f"relative-seed{seed}", "whole") | scores[seed] for seed in scores]
    for order in (records, records[::3] + records[1::3] + records[2::3]):
        rows = [line.strip("| ").split(" | ") for line in latency.table(order, documents).splitlines()[2:4]]
        expected = ["3.0 (1.0-6.0)"] * 2 + ["3.00 (1.00-6.00)"] * 2
        assert rows[0] == ["aligned", "streamed", "7", *expected, "-", "6 of 6"]
        assert rows[1] == ["relative", "whole", "-", *expected, "-", "-"]
    [row] = latency.table(records[:1], documents).splitlines()[2:3]
    assert "| 1.0 | 1.0 | 1.00 | 1.00 | - | 2 of 2 |" in row


@pytest.mark.parametrize(
    "name, row", [("aligned-seed12", ("aligned", 12)), ("aligned", ("aligned", None)), ("a-seed", ("a-seed", None))]
)
def test_a_folder_with_a_seed_is_a_seed_of_its_row(name, row, benchmarks):
    assert benchmarks.latency.split_seed(name) == row


def test_words_of_a_document_are_those_that_the_models_read(benchmarks, tmp_path):
    """A delay is counted in source words, of which normalization makes two of one."""
    for name in ("source", "target"):
        (tmp_path / name).write_text("Ein T-Shirt.\nZwei Kinder.\n", encoding="utf-8")
    options = ["run", "--output", "logs", "--files", str(tmp_path / "source"), str(tmp_path / "target")]
    options = benchmarks.latency.parse([*options, "--sentences", "2"])
    steps = {"source": ["lowercase", "no_punctuation"]}
    [document] = benchmarks.latency.documents_of(options, steps)
    assert document.words == ["ein", "t", "shirt", "zwei", "kinder"]
    assert document.references == ["Ein T-Shirt.", "Zwei Kinder."]
    [document] = benchmarks.latency.documents_of(options, {})
    assert document.words == ["Ein", "T-Shirt.", "Zwei", "Kinder."]


@pytest.mark.full
def test_a_run_is_streamed_and_its_logs_say_when_each_word_was_written(benchmarks, tokenizer, tmp_path, capsys):
    sizes = {"vocab_size": len(tokenizer), "decoder_vocab_size": len(tokenizer), "dtype": torch.float32}
    for name, sides in (("relative", "relative"), ("aligned-seed3", "relative+window by length_ratio")):
        for part in (tiny_model(sides, **sizes), tokenizer):
            part.save_pretrained(tmp_path / "run" / name / "model")
    for name in ("source", "target"):
        (tmp_path / name).write_text("\n".join([*TEXTS] * 2) + "\n", encoding="utf-8")
    files = ["--files", str(tmp_path / "source"), str(tmp_path / "target"), "--sentences", "2"]
    few = ["--wait-k", "2", "--stride", "1", "--chunks", "3"]
    benchmarks.latency.main([str(tmp_path / "run"), "--output", str(tmp_path / "logs"), *files, *few])
    names = sorted(path.stem for path in (tmp_path / "logs").glob("*.jsonl"))
    policies = ["agreement-stride-1", "revised", "wait-2", "whole"]
    chunked = [f"{policy}-chunks-of-3" for policy in policies if policy != "revised"]
    assert names == sorted(["aligned-seed3-streamed", *(f"relative-{policy}" for policy in policies + chunked)])
    for name in names:
        lines = [
            json.loads(line) for line in (tmp_path / "logs" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        ]
        assert len(lines) == 2
        for line in lines:
            assert len(line["prediction"].split()) == len(line["delays"])
            assert line["delays"] == sorted(line["delays"]) and max(line["delays"], default=0) <= line["source_length"]
    assert '"same_as_offline": 2' in capsys.readouterr().out
