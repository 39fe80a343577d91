"""A system without training: it translates segments of its inputs with the model of another system."""

import json
import sys
import time
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
import yaml
from datasets import Dataset
from support.experiments import TINY, load

from hf_posenc.generation.translate import TranslationOutput
from hf_posenc.lab.config.settings import Experiment
from hf_posenc.lab.data.segmentation import (
    SEGMENT_SEPARATOR,
    automatic_segments,
    fixed_segments,
    gold_segments,
    join_translations,
)
from hf_posenc.lab.reports.card import model_card
from hf_posenc.lab.reports.report import write_report
from hf_posenc.lab.results.aggregation import aggregate
from hf_posenc.lab.results.saved_files import read_results
from hf_posenc.lab.run.evaluation import translate_test_set
from hf_posenc.lab.run.pipeline import run_system, unfinished_systems
from hf_posenc.lab.run.prepare import prepare
from hf_posenc.lab.run.prepared_run import PreparedRun
from hf_posenc.lab.run.train import estimate_cost, run_parallel
from hf_posenc.utils.manifest import remove_from_manifest

SYSTEMS = {
    "in-pieces": {"segment": "relative"},
    "relative": {"seeds": [3, 4]},
    "in-sentences": {"segment": "absolute", "segmentation": "automatic"},
    "absolute": {"model": {"position_encoding_type": "sinusoidal"}},
}
SPLIT = ["in-pieces-seed3", "in-pieces-seed4", "in-sentences"]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(TINY | {"systems": SYSTEMS}, sort_keys=False), encoding="utf-8")
    return path


def run_all(experiment: Experiment) -> None:
    prepare(experiment)
    for name in experiment.systems:
        run_system(PreparedRun(experiment), name)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    """A run of all systems, as if trained in parallel; tests may write tables only."""
    path = tmp_path_factory.mktemp("finished") / "tiny.yaml"
    path.write_text(yaml.safe_dump(TINY | {"systems": SYSTEMS}, sort_keys=False), encoding="utf-8")
    experiment = load(path, "data.max_length=30", "num_parallel=2")
    run_all(experiment)
    return experiment


def translated(experiment: Any, system: str, test: str) -> list[dict[str, Any]]:
    path = experiment.folder / system / "translations" / f"{test}.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.slow
def test_the_named_model_translates_the_segments_and_nothing_is_trained(finished: Experiment) -> None:
    experiment = finished
    assert list(experiment.systems) == ["relative-seed3", "relative-seed4", "absolute", *SPLIT]
    assert [experiment.systems[name].base_name for name in SPLIT] == ["in-pieces", "in-pieces", "in-sentences"]
    for split, trained in zip(SPLIT, ("relative-seed3", "relative-seed4", "absolute"), strict=True):
        single = [row["text"] for row in translated(experiment, trained, "generated")]
        pairs = [" ".join(filter(None, single[i : i + 2])) for i in range(0, len(single), 2)]
        whole = [row["text"] for row in translated(experiment, trained, "generated-x2")]
        assert [row["text"] for row in translated(experiment, split, "generated-x2")] == pairs != whole
        assert {path.name for path in (experiment.folder / split).iterdir()} == {
            ".lock", "manifest.json", "settings.yaml", "scores.json", "statistics", "translations",
        }  # fmt: skip
        assert json.loads((experiment.folder / split / "scores.json").read_text())["segment"]["system"] == trained
        with pytest.raises(ValueError, match=rf"that of {trained}; .* card of {trained}"):
            model_card(experiment.folder, split)
    before = {path: path.stat().st_mtime_ns for path in experiment.folder.rglob("*") if path.is_file()}
    assert unfinished_systems(PreparedRun(experiment)) == []
    run_all(experiment)
    assert before == {path: path.stat().st_mtime_ns for path in experiment.folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_the_tables_have_its_scores_and_no_training_of_its_own(finished: Experiment) -> None:
    experiment = finished
    table = {row[0]: row[1:] for row in estimate_cost(experiment).rows}
    assert table["in-sentences"] == ["absolute's, by automatic segments", *["-"] * 6]
    assert estimate_cost(experiment).legend.startswith(f"{experiment.folder}: 3 trainings;")
    printed = write_report(aggregate(experiment), experiment.tables_folder)
    results = read_results(experiment.tables_folder)
    for name in SPLIT:
        system = results.systems[name]
        assert system.training is system.loss is system.diagnostics is None
    assert "in-pieces (2 seeds)" in printed
    assert "in-pieces-seed4 is relative-seed4, given its inputs in segments by gold segmentation." in printed
    assert set(results.comparisons["generated-x2"]) == {"absolute", "in-pieces", "in-sentences"}
    assert "compare times only if systems ran one at a time" in (experiment.folder / "table-time.md").read_text()
    pictures = {path.name for path in experiment.folder.glob("*-generated-x2.png")}
    assert {"bleu-by-length-generated-x2.png", "loss-by-position-generated-x2.png"} <= pictures


@pytest.mark.full
def test_a_row_is_bound_to_the_training_that_it_uses(config: Path) -> None:
    experiment = load(config)
    prepare(experiment)
    with pytest.raises(ValueError, match=r"absolute, but .* not trained"):
        run_system(PreparedRun(experiment), "in-sentences")
    (experiment.folder / "in-sentences" / "translations").mkdir()
    with pytest.raises(ValueError, match=r"in-sentences train\.max_steps was 6 and is 7"):
        prepare(load(config, "systems.absolute.train.max_steps=7"))
    with pytest.raises(ValueError, match=r"in-sentences segment\.segmentation was 'automatic' and is 'gold'"):
        prepare(load(config, "systems.in-sentences.segmentation=gold"))


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (
            "systems.in-pieces.segment=rotary",
            "whose model translates the segments, but it is 'rotary'; choose from relative",
        ),
        (
            "systems.in-pieces.segment=in-sentences",
            "names a system that is trained.*'in-sentences'; choose from relative",
        ),
        (
            "systems.in-pieces.segmentation=guessed",
            "segmentation must be one of gold, automatic, fixed, but it is 'guessed'",
        ),
        ("systems.in-pieces.model.d_model=8", "all else from the system whose inputs it segments, has no key 'model'"),
        ("systems.absolute.segmentation=gold", "systems.absolute has no key 'segmentation'"),
        ("systems.data.segment=relative", "not 'data'"),
        (
            "systems.in-pieces.segmentation=fixed",
            "in-pieces: segmentation: fixed needs .* segment_words is missing; add",
        ),
        ("systems.in-pieces.segment_words=20", "belong to segmentation: fixed, but it is gold; leave them out"),
        ("systems.in-sentences.overlap_words=2", "belong to segmentation: fixed, but it is automatic; leave them out"),
        (
            "systems.chunks={segment: relative, segmentation: fixed, segment_words: 5, overlap_words: 5}",
            "chunks: overlap_words must be less than segment_words, 5, .* but it is 5; lower it",
        ),
        ("systems.chunks={segment: relative, segmentation: fixed, segment_words: 0}", "segment_words must be a whole"),
    ],
)
def test_invalid_segmentations_are_refused(config: Path, override: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        load(config, override)


@pytest.mark.full
def test_a_row_that_could_only_repeat_another_is_refused(config: Path) -> None:
    with pytest.raises(ValueError, match=r"in-pieces-seed3: .*gold no source of generated"):
        prepare(load(config, "score.concatenate=[1]"))


def test_a_segmenting_system_is_not_pushed_to_the_repository_of_the_trained_one(config: Path) -> None:
    experiment = load(config, "train.push_to_hub=true")
    assert [name for name, one in experiment.systems.items() if not one.train["push_to_hub"]] == SPLIT


@pytest.mark.full
def test_the_segments_are_those_of_the_sampled_pairs(config: Path) -> None:
    experiment = load(
        config, "score.max_per_bucket=2", "data.test.generated.generator.pairs=40", "score.bucket_edges=[24, 40]"
    )
    for test_set in prepare(experiment).system("in-pieces-seed3").test_sets.values():
        drawn = [row["de"] for row in test_set.pairs["translation"]]
        assert 2 < len(drawn) < 20
        assert [" ".join(pieces) for pieces in test_set.segments] == drawn


@pytest.mark.full
def test_a_parallel_segmenting_system_waits_for_the_trained_one(config: Path) -> None:
    experiment, told = load(config, "num_parallel=4"), config.parent / "told"
    code = (
        "import sys, time; name, path = sys.argv[2], sys.argv[-1]\n"
        f"tell = lambda what: open({str(told)!r}, 'a').write(f'{{what}} {{name}}\\n')\n"
        "tell('begins'); time.sleep(0.2); tell('ends')"
    )
    run_parallel(list(experiment.systems.values()), [sys.executable, "-S", "-c", code], num_parallel=4, num_threads=1)
    lines = told.read_text().splitlines()
    assert len(lines) == 12
    assert {line.split()[1] for line in lines[:6]} == {"relative-seed3", "relative-seed4", "absolute"}


# Pieces


def pairs_of(*texts: str) -> Dataset:
    return Dataset.from_dict({"translation": [{"de": text, "en": "x"} for text in texts]})


@pytest.mark.full
def test_gold_segments_are_the_concatenated_texts(tmp_path: Path) -> None:
    """By `document_ids`, by `concatenate` of a corpus and of `score`, and in one of several corpora."""
    texts = ["eins zwei", "drei", "", "vier fünf", "sechs", "sieben", "acht neun", "zehn"]
    for name, lines in (("a.de", texts), ("a.en", texts), ("a.doc", list("aaaabbbb"))):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    files = {"files": ["a.de", "a.en"]}
    documents = files | {"document_ids": "a.doc", "min_words": 2}
    test = {"corpora": [documents | {"concatenate": 2}, files | {"max_examples": 3}]}
    settings = TINY | {"systems": {"relative": {}, "in-pieces": {"segment": "relative"}}}
    settings["data"] = TINY["data"] | {"test": {"news": test}, "data_dir": str(tmp_path)}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    experiment = load(tmp_path / "tiny.yaml")
    run = prepare(experiment)
    test_sets = run.system("in-pieces").test_sets
    # Documents: "eins zwei", "drei '' vier fünf", "sechs sieben", "acht neun"; "zehn" is too short a rest.
    joined = [["eins zwei", "drei", "vier fünf"], ["sechs", "sieben", "acht neun"], ["eins zwei"], ["drei"], [""]]
    assert test_sets["news"].segments == joined
    by_two = [joined[0] + joined[1], joined[2] + joined[3], [""]]
    assert test_sets["news-x2"].segments == by_two
    whole = run.system("relative").test_sets["news-x2"].segments
    assert whole == [[" ".join(pieces)] for pieces in by_two]


def test_texts_other_than_the_concatenated_ones_are_refused() -> None:
    assert gold_segments(pairs_of(f"a{SEGMENT_SEPARATOR}b"), pairs_of("a b"), "de") == [["a", "b"]]
    for joined, text in ((f"a{SEGMENT_SEPARATOR}c", "a b"), (f"a{SEGMENT_SEPARATOR}b", f"a{SEGMENT_SEPARATOR}b")):
        with pytest.raises(ValueError, match=r"source 1 is 'a.*b' .*; take U\+FDD0 out"):
            gold_segments(pairs_of("x", joined), pairs_of("x", text), "de")


def test_sentences_are_found_as_users_find_them() -> None:
    text = "Er kam z. B. am 3. Mai. War das gut? Ja!"
    assert automatic_segments(pairs_of(text, "", "kein Ende"), "de") == [
        ["Er kam z. B. am 3. Mai.", "War das gut?", "Ja!"], [""], ["kein Ende"],
    ]  # fmt: skip


def test_text_without_punctuation_has_no_sentences() -> None:
    text = "ein mann geht eine frau sitzt"
    assert automatic_segments(pairs_of(text), "de") == [[text]]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 20])
def test_fixed_segments_have_all_words_in_order(size: int) -> None:
    words = list("abcdefg")
    for number in range(len(words) + 1):
        text = "  ".join(words[:number])
        for overlap in {0, size // 2, size - 1}:
            (segments,) = fixed_segments(pairs_of(text), "de", size, overlap)
            chunks = [segment.split() for segment in segments]
            assert all(len(chunk) == size for chunk in chunks[:-1]) and len(chunks[-1]) <= size
            assert all(later[:overlap] == earlier[size - overlap :] for earlier, later in pairwise(chunks))
            assert len(chunks) == 1 or len(chunks[-1]) > overlap, "no chunk only repeats the one before"
            assert chunks[0] + [word for chunk in chunks[1:] for word in chunk[overlap:]] == words[:number]


def test_numbers_of_fixed_segments() -> None:
    text = " ".join(map(str, range(100)))
    for size, overlap, number in ((10, 0, 10), (20, 0, 5), (40, 0, 3), (20, 5, 7), (40, 10, 3), (100, 5, 1)):
        (segments,) = fixed_segments(pairs_of(text), "de", size, overlap)
        assert len(segments) == number


@pytest.mark.parametrize(
    ("texts", "overlap", "joined"),
    [
        (["a b", "", "c"], 0, "a b c"),
        ([], 3, ""),
        (["a b", "", ""], 3, "a b"),
        # The right one begins in the middle of a sentence, so its first words differ in case and punctuation.
        (["A man goes down the road. A.", "Down the Road. A dog sits."], 4, "A man goes Down the Road. A dog sits."),
        (["one two three four x", "y three four five"], 3, "one two three four five"),
        (["one two three four x", "y three four five", "four five six"], 3, "one two three four five six"),
        # Nothing in common: half of the overlap is cut from each.
        (["a b c d", "e f g h"], 2, "a b c f g h"),
        (["a b c d", "e f g h"], 3, "a b c g h"),
        # A translation that is no longer than the overlap is kept.
        (["a", "b"], 4, "a b"),
        (["a b c d e", "x", "f g h i j"], 4, "a b c d e x f g h i j"),
        (["a b c d e", "x y", "d e f g h"], 4, "a b c d e x y d e f g h"),
        (["x", "a b c d e"], 4, "x a b c d e"),
        # Nothing is cut beside a segment without a translation.
        (["a b c d", "", "e f g h"], 2, "a b c d e f g h"),
        (["a b the dog", " ", "c the dog d"], 3, "a b the dog c the dog d"),
        (["", "", "a b c d", "c d e f", "", ""], 2, "a b c d e f"),
        # The same words beyond the end are others.
        (["the dog a b c d e f", "g h i j the dog"], 2, "the dog a b c d e h i j the dog"),
    ],
)  # fmt: skip
def test_translations_of_overlapping_segments_are_merged(texts: list[str], overlap: int, joined: str) -> None:
    assert join_translations(texts, overlap) == joined


def test_a_lossless_translator_gets_the_text_back() -> None:
    text = "zwei Hunde rennen über die Wiese und ein Kind lacht laut"
    for size, overlap in ((3, 0), (4, 2), (5, 3), (20, 2)):
        (segments,) = fixed_segments(pairs_of(text), "de", size, overlap)
        assert join_translations(segments, overlap) == text


@pytest.mark.parametrize(("size", "overlap"), [(3, 0), (6, 2), (8, 4), (6, 4), (8, 6)])
def test_segments_without_a_translation_cost_the_others_no_word(size: int, overlap: int) -> None:
    words = list("abcdefghijklmnopqrstuvwxyz")
    (segments,) = fixed_segments(pairs_of(" ".join(words)), "de", size, overlap)
    for missing in (set(pair) for pair in product(range(len(segments)), repeat=2)):
        kept = ["" if number in missing else segment for number, segment in enumerate(segments)]
        assert join_translations(kept, overlap).split() == sorted({*" ".join(kept).split()})


@pytest.mark.full
def test_fixed_segments_are_saved_by_their_size(config: Path) -> None:
    chunks = "systems.chunks={segment: relative, segmentation: fixed, segment_words: 4, overlap_words: 2}"
    others = "systems.others={segment: relative, segmentation: fixed, segment_words: 4}"
    run = prepare(load(config, chunks, others))
    overlapping, plain = (run.system(f"{name}-seed3").test_sets["generated"].segments for name in ("chunks", "others"))
    assert sum(map(len, overlapping)) > sum(map(len, plain))
    assert str(run.system("chunks-seed3").settings.segment) == "fixed (4 words, overlap 2)"
    assert dict(zip(*[iter(estimate_cost(run.experiment).rows[-1][:2])] * 2, strict=True)) == {
        "others-seed4": "relative-seed4's, by fixed (4 words) segments"
    }


def test_a_missing_sentence_splitter_or_language_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"data\.source_language='xx'; use .* gold or fixed"):
        automatic_segments(pairs_of("a"), "xx")
    monkeypatch.setitem(sys.modules, "sentence_splitter", None)
    with pytest.raises(ValueError, match=r'extra "segmentation", but .* `pip install'):
        automatic_segments(pairs_of("a"), "de")


# Translating


class Slow:
    """A model that writes in capitals, is busy for a while, asleep for another, and cuts what has an x."""

    def translations(self, texts: list[str], tokenizer: Any, **options: Any) -> TranslationOutput:
        self.given = texts
        until = time.process_time() + 0.1
        while time.process_time() < until:
            pass
        time.sleep(0.2)
        return TranslationOutput([text.upper() for text in texts], ["x" in text for text in texts])


@pytest.mark.full
def test_translations_of_overlapping_segments_share_their_words(tmp_path: Path, config: Path) -> None:
    score, model = load(config).systems["in-sentences"].score, Slow()
    sources = [["a b c", "b c d", "c d e"], ["f"]]
    output = translate_test_set(lambda: model, None, sources, score, tmp_path / "a.jsonl", overlap_words=2)
    assert output.texts == ("A B C D E", "F")


@pytest.mark.full
def test_translations_of_segments_are_concatenated_with_their_time(tmp_path: Path, config: Path) -> None:
    score, model, path = load(config).systems["in-sentences"].score, Slow(), tmp_path / "a.b.jsonl"
    given = [["a", "", "b x"], ["c"], [""], ["d", "e"]]
    made = translate_test_set(lambda: model, None, given, score, path)
    assert model.given == ["a", "", "b x", "c", "", "d", "e"]
    assert made.texts == ("A B X", "C", "", "D E") and made.truncated == (True, False, False, False)
    spent = made.time
    assert spent.processes == 1 and 0.1 <= spent.processor_seconds <= spent.seconds - 0.15
    assert spent.seconds >= 0.3
    assert translate_test_set(pytest.fail, None, given, score, path) == made, "read back"
    remove_from_manifest(tmp_path / "a.b.time.json")
    (tmp_path / "a.b.time.json").unlink()
    assert translate_test_set(pytest.fail, None, given, score, path) == replace(made, time=None), "of an older version"
