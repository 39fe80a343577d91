"""`data.normalize`: all text of a side is normalized alike, in training, validation, test and the saved tokenizer."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from datasets import Dataset
from support.experiments import TINY, load

from hf_posenc.lab.data.corpus import load_pairs, normalize_pairs
from hf_posenc.lab.data.segmentation import SEGMENT_SEPARATOR
from hf_posenc.lab.run.prepare import prepare
from hf_posenc.lab.run.prepared_run import PreparedRun

STEPS = ["lowercase", "no_punctuation"]
SYSTEMS = {"relative": {}, "by-text": {"segment": "relative"}}
LINES = ["Ein Hund, er rennt.", "Ja!", "...", "Die „Frau“ (rot) geht."]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(with_normalization(TINY, {"source": STEPS})), encoding="utf-8")
    return path


def with_normalization(settings: dict[str, Any], normalize: dict[str, Any]) -> dict[str, Any]:
    return settings | {"data": settings["data"] | {"normalize": normalize}, "systems": SYSTEMS}


def texts(pairs: Dataset, language: str) -> list[str]:
    return [row[language] for row in pairs["translation"]]


def is_normalized(text: str) -> bool:
    return text == text.lower() and all(character.isalnum() or character == " " for character in text)


@pytest.mark.full
def test_sources_of_all_corpora_are_normalized_and_targets_are_not(config: Path) -> None:
    system = prepare(load(config)).system("relative")
    tokenizer = system.tokenizer
    assert tokenizer.normalization == {"source": STEPS} and tokenizer.shares_vocabulary
    for encoded in (system.training_pairs, system.validation_pairs):
        sources = [tokenizer.decode(ids[:-1], use_source_tokenizer=True) for ids in encoded["input_ids"]]
        targets = tokenizer.batch_decode([ids[:-1] for ids in encoded["labels"]])
        assert all(map(is_normalized, sources)) and not any(map(is_normalized, targets))
    for test_set in system.test_sets.values():
        assert all(map(is_normalized, texts(test_set.pairs, "de")))
        assert not any(map(is_normalized, texts(test_set.pairs, "en")))
        lengths = [len(tokenizer(text)["input_ids"]) - 1 for text in texts(test_set.pairs, "de")]
        assert list(test_set.pairs["source_length"]) == lengths


@pytest.mark.full
def test_one_corpus_of_several_is_normalized_after_it_is_concatenated() -> None:
    """Its source is normalized and its target is not; the other corpus has the same sentences as they are."""
    corpus = {"generator": {"seed": 1, "pairs": 4, "min_words": 6, "max_words": 9}, "concatenate": 2}
    both = {"corpora": [corpus, corpus | {"normalize": {"source": STEPS}}]}
    pairs = load_pairs(both, source_language="de", target_language="en")
    plain, changed = texts(pairs, "de")[:2], texts(pairs, "de")[2:]
    assert changed == [" ".join(text.lower().replace(",", " ").replace(".", " ").split()) for text in plain]
    assert not any(map(is_normalized, plain))
    assert texts(pairs, "en")[:2] == texts(pairs, "en")[2:]


def test_references_are_normalized_with_the_target(config: Path) -> None:
    experiment = load(config, "data.normalize={source: [], target: [lowercase]}")
    system = prepare(experiment).system("relative")
    references = texts(system.test_sets["generated"].pairs, "en")
    assert references == [text.lower() for text in references] and any("." in text for text in references)
    assert any(text != text.lower() for text in texts(system.test_sets["generated"].pairs, "de"))


@pytest.mark.full
def test_gold_segments_are_normalized_one_by_one(tmp_path: Path) -> None:
    """A text of punctuation alone is no segment."""
    for name in ("a.de", "a.en"):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    settings = with_normalization(TINY, {"source": STEPS})
    settings["data"] |= {"test": {"news": {"files": ["a.de", "a.en"]}}, "data_dir": str(tmp_path)}
    settings["score"] = TINY["score"] | {"concatenate": [4]}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    test_set = prepare(load(tmp_path / "tiny.yaml")).system("by-text").test_sets["news-x4"]
    assert test_set.segments == [["ein hund er rennt", "ja", "die frau rot geht"]]
    assert texts(test_set.pairs, "de") == ["ein hund er rennt ja die frau rot geht"]
    assert texts(test_set.pairs, "en") == [" ".join(LINES)]


def test_pairs_keep_their_other_columns_and_need_no_steps() -> None:
    pairs = Dataset.from_dict({"translation": [{"de": "A, b", "en": "C!"}], "source_length": [3]})
    languages = {"source_language": "de", "target_language": "en"}
    assert normalize_pairs(pairs, {"source": []}, **languages) is pairs
    changed = normalize_pairs(pairs, {"source": STEPS, "target": ["lowercase"]}, **languages)
    assert changed[0] == {"translation": {"de": "a b", "en": "c!"}, "source_length": 3}
    separated = Dataset.from_dict({"translation": [{"de": f"A,{SEGMENT_SEPARATOR}.{SEGMENT_SEPARATOR}b ", "en": ""}]})
    changed = normalize_pairs(separated, {"source": STEPS}, separator=SEGMENT_SEPARATOR, **languages)
    assert texts(changed, "de") == [f"a{SEGMENT_SEPARATOR * 2}b"]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "{source: [lower]}",
            r"data\.normalize\.source\[0\] must be one of lowercase, no_punctuation, but it is 'lower'",
        ),
        ("{source: [lowercase, lowercase]}", r"data\.normalize\.source must be .*each once"),
        ("{sources: [lowercase]}", r"data\.normalize has no key 'sources'"),
        ("{source: lowercase}", r"data\.normalize\.source must be a list"),
        ("[lowercase]", r"data\.normalize must be keys and values"),
    ],
)
def test_unknown_steps_are_refused_before_anything_is_read(config: Path, override: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(config, f"data.normalize={override}")


@pytest.mark.full
def test_systems_of_a_run_share_their_normalization(config: Path) -> None:
    with pytest.raises(ValueError, match=r"one config .* data\.normalize"):
        load(config, "systems.other.data.normalize={source: [lowercase]}")
    experiment = load(config)
    prepare(experiment)
    (experiment.folder / "relative" / "translations").mkdir()
    with pytest.raises(ValueError, match=r"normalize.*undo the change"):
        prepare(load(config, "data.normalize={source: [lowercase]}"))


@pytest.mark.full
def test_an_existing_tokenizer_has_the_steps_of_its_run(config: Path, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    PreparedRun(prepare(load(config)).experiment).tokenizer.save_pretrained(saved)
    again = [f"data.tokenizer={saved}", "name=again"]
    assert prepare(load(config, *again)).tokenizer.normalization == {"source": STEPS}
    message = r"data\.normalize must be the normalization of data\.tokenizer, .*lowercase.*, but it is \{\}; write the"
    with pytest.raises(ValueError, match=message):
        prepare(load(config, *again, "name=other", "data.normalize={source: []}"))
