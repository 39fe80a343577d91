"""Language tags: special tokens of the source or the target that no translation contains."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.tokenizers import ANY_TEXT, KINDS, SOURCES, TARGETS, bert
from tokenizers import AddedToken
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_posenc import PosEncTokenizer
from hf_posenc.lab.config.loading import load_experiment
from hf_posenc.lab.data.corpus import group_by_tags, load_pairs, prepend_tags
from hf_posenc.lab.run.pipeline import run_system
from hf_posenc.lab.run.prepare import (
    prepare,
)
from hf_posenc.lab.run.prepared_run import PreparedRun

TAGS = ["<2en>", "<2de>"]


def trained(kind: str) -> PosEncTokenizer:
    how = KINDS[kind]
    return PosEncTokenizer.train(SOURCES if "target_texts" in how else SOURCES + TARGETS, 380, tags=TAGS, **how)


def grown(kind: str) -> PosEncTokenizer:
    """Tags added to a vocabulary that was trained without them."""
    how = KINDS[kind]
    made = PosEncTokenizer.train(SOURCES if "target_texts" in how else SOURCES + TARGETS, 378, **how)
    assert made.add_special_tokens({"additional_special_tokens": TAGS}) == 2
    return made


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> PosEncTokenizer:
    return trained(request.param)


@pytest.mark.parametrize("text", [text for text in ANY_TEXT if text == text.lstrip()])
def test_a_tag_is_one_token_more_and_decoding_leaves_it_out(tokenizer: PosEncTokenizer, text: str) -> None:
    for source in (f"<2en> {text}", f"<2en>{text}"):
        assert tokenizer(source)["input_ids"] == [378, *tokenizer(text)["input_ids"]]
        target = tokenizer(text_target=source)["input_ids"]
        assert target == [378, *tokenizer(text_target=text)["input_ids"]]
        assert tokenizer.decode(target, skip_special_tokens=True) == text
        assert tokenizer.batch_decode([target], skip_special_tokens=True) == [text]
        assert tokenizer.decode([378, *target[1:]], skip_special_tokens=False).startswith("<2en>")


def test_tags_are_special_tokens_of_both_sides(tokenizer: PosEncTokenizer) -> None:
    assert len(tokenizer) == tokenizer.target_vocab_size == 380
    for side in (tokenizer, tokenizer.target):
        assert side.convert_tokens_to_ids(TAGS) == [378, 379]
        assert side.extra_special_tokens == TAGS and set(side.all_special_ids) == {0, 1, 2, 3, 378, 379}


@pytest.mark.parametrize("kind", KINDS)
def test_tags_may_be_added_later_and_travel(kind: str, tmp_path: Path) -> None:
    made = grown(kind)
    made.add_special_tokens({"extra_special_tokens": ["<2fr>"]})
    made.save_pretrained(tmp_path)
    for one in (made, copy.deepcopy(made), AutoTokenizer.from_pretrained(tmp_path)):
        ids = one(text_target="<2en> a <2fr> b")["input_ids"]
        assert [token for token in ids if token >= 378] == [378, 380]
        assert one.decode(ids, skip_special_tokens=True) == "a b"
        assert one.to_str() == made.to_str() and len(one) == one.target_vocab_size == 381
        assert not set(one("</s><s><pad>")["input_ids"][:-1]) & {0, 1, 2, 3}


def test_a_word_that_is_added_is_said(tokenizer: PosEncTokenizer) -> None:
    other = copy.deepcopy(tokenizer)
    other.add_tokens(["<word>"])
    assert "<word>" in other.decode(other(text_target="a <word> b")["input_ids"], skip_special_tokens=True)
    assert other.add_tokens(["<tag>"], special_tokens=True) == 1
    assert other("<tag>", text_target="<tag>")["labels"] == [381, 2]


def test_a_tag_keeps_the_flags_it_is_given() -> None:
    tokenizer = grown("bpe")
    tokenizer.add_special_tokens({"extra_special_tokens": [AddedToken("en_XX", single_word=True)]})
    assert 380 in tokenizer("en_XX a")["input_ids"] and 380 not in tokenizer("men_XX a")["input_ids"]


def test_languages_of_an_adopted_tokenizer_are_tags(tmp_path: Path) -> None:
    theirs = bert()
    theirs.add_special_tokens({"extra_special_tokens": ["deu_Latn"]})
    assert theirs("deu_Latn 3")["input_ids"][1] == 10
    PosEncTokenizer.from_fast_tokenizer(theirs).save_pretrained(tmp_path)
    for ours in (PosEncTokenizer.from_fast_tokenizer(theirs), AutoTokenizer.from_pretrained(tmp_path)):
        assert ours("deu_Latn 3")["input_ids"] == [10, 7, ours.eos_token_id]
        assert ours.decode([10, 7], skip_special_tokens=True) == "3"
        assert 3 not in ours("[SEP]")["input_ids"][:-1]


@pytest.mark.parametrize(
    ("tags", "rule"),
    [
        (["en"], "does not occur in ordinary text, such as '<2en>', but it is 'en'"),
        (["<2 en>"], "but it is '<2 en>'"),
        ([" <2en>"], "but it is ' <2en>'"),
        ([""], "but it is ''"),
        ([5], "but it is 5"),
        (["</s>"], "a new token, but '</s>' is a reserved one"),
        (["<2en>", "<2en>"], "a list of different tokens"),
        ("<2en>", "a list of different tokens, such as"),
    ],
)
def test_a_tag_that_could_be_text_is_refused(tags: Any, rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        PosEncTokenizer.train(SOURCES, 380, tags=tags)


GENERATED = {"min_words": 6, "max_words": 12}
TO_EN: dict[str, Any] = {
    "generator": {"seed": 1, "pairs": 40, **GENERATED},
    "source_language": "de",
    "target_language": "en",
}
TO_DE: dict[str, Any] = {
    "generator": {"seed": 2, "pairs": 30, **GENERATED},
    "source_language": "en",
    "target_language": "de",
}
NAMES = {"source_language": "source", "target_language": "target"}


def with_tags(side: str) -> dict[str, Any]:
    """Both directions in one corpus, their tags on one side."""
    return {"corpora": [TO_EN | {side: "<2en>"}, TO_DE | {side: "<2de>"}]}


def texts(pairs: Any, *languages: str) -> list[tuple[str, ...]]:
    return [tuple(row[language] for language in languages) for row in pairs["translation"]]


def test_corpora_of_several_languages_are_read_under_one_name() -> None:
    """As source and target of their own languages, whatever the run calls them."""
    both = texts(load_pairs(with_tags("source_tag"), **NAMES), "source", "target")
    plain = [{"generator": part["generator"]} for part in (TO_EN, TO_DE)]
    german, english = (load_pairs(part, source_language="de", target_language="en") for part in plain)
    assert both == texts(german, "de", "en") + texts(english, "en", "de")


@pytest.mark.parametrize("join", [None, 4])
def test_corpora_of_one_tag_are_concatenated_separately(join: int | None) -> None:
    where = {"corpora": [TO_EN | {"source_tag": "<2en>"}, *with_tags("source_tag")["corpora"]], "concatenate": join}
    parts = group_by_tags(where)
    assert [tags for _, tags in parts] == [("<2en>", None), ("<2de>", None)]
    sizes = [len(load_pairs(part, **NAMES)) for part, _ in parts]
    assert sizes == ([80, 30] if join is None else [20, 8])
    assert group_by_tags(TO_EN) == [(TO_EN, (None, None))]
    outer = {"corpora": [TO_EN, TO_DE], "source_tag": "<2xx>", "concatenate": 2}
    assert group_by_tags(outer) == [(outer, ("<2xx>", None))]


def test_tags_stand_at_the_head_of_what_is_joined_and_blank_texts_stay_blank() -> None:
    pairs = load_pairs(TO_EN | {"concatenate": 2}, **NAMES).select(range(2))
    pairs = pairs.map(
        lambda row, i: {"translation": row["translation"] if i else {"source": "", "target": " "}}, with_indices=True
    )
    pairs = pairs.add_column("source_length", [1, 2])
    read = prepend_tags(pairs, ("<2en>", "<2de>"), **NAMES)
    assert read["source_length"] == [1, 2]
    assert read["translation"][0] == {"source": "", "target": " "}
    for side, tag in (("source", "<2en>"), ("target", "<2de>")):
        assert read["translation"][1][side] == f"{tag} {pairs['translation'][1][side]}"
    assert prepend_tags(pairs, (None, None), **NAMES) is pairs


def small(seed: int, pairs: int) -> list[dict[str, Any]]:
    """Both directions again, other and fewer pairs of each."""
    parts = with_tags("source_tag")["corpora"]
    return [part | {"generator": {"seed": seed, "pairs": pairs, **GENERATED}} for part in parts]


CONFIG: dict[str, Any] = {
    "name": "tags",
    "data": {
        **NAMES,
        "tags": TAGS,
        "train": with_tags("source_tag"),
        "validation": {"corpora": small(seed=5, pairs=4)},
        "test": dict(zip(("de-en", "en-de"), small(seed=7, pairs=3), strict=True)),
        "vocab_size": 500,
    },
    "model": {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16},
    "train": {"max_steps": 2, "per_device_train_batch_size": 4, "save_strategy": "no", "use_cpu": True},
    "score": {
        "bucket_edges": [20],
        "metrics": ["bleu"],
        "num_beams": 1,
        "bootstrap_samples": 100,
        "concatenate": [1, 2],
    },
    "diagnose": False,
    "systems": {"one": {}},
}


def on_side(side: str, **data: Any) -> dict[str, Any]:
    """The config with its tags on that side, and other data."""
    text = json.dumps(CONFIG).replace("source_tag", side)
    config = json.loads(text)
    config["data"] |= data
    return config


def load(config: dict[str, Any], folder: Path, *overrides: str) -> Any:
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    return load_experiment(folder / "config.yaml", [f"output_dir={folder}/runs", *overrides])


@pytest.mark.full
def test_references_of_a_validation_set_with_several_tags_are_those_of_its_pairs(tmp_path: Path) -> None:
    """Pairs of one tag are concatenated separately, and so are their references."""
    config = on_side("source_tag")
    config["data"]["validation"]["concatenate"] = 3
    (system,) = prepare(load(config, tmp_path, "train.predict_with_generate=true"))
    labels = [ids[:-1] for ids in system.validation_pairs["labels"]]
    assert system.validation_references == system.tokenizer.batch_decode(labels)


@pytest.mark.full
@pytest.mark.parametrize(("side", "joint"), [("source_tag", True), ("target_tag", False)])
def test_each_pair_is_encoded_with_the_tag_of_its_corpus(side: str, joint: bool, tmp_path: Path) -> None:
    experiment = load(on_side(side, joint_vocabulary=joint, concatenate=[1, 2]), tmp_path)
    (system,) = prepare(experiment)
    tokenizer = system.tokenizer
    assert len(tokenizer) == tokenizer.target_vocab_size == 500
    column, other = ("input_ids", "labels")[:: 1 if side == "source_tag" else -1]
    for pairs, numbers in (
        (system.training_pairs, [40, 30, 20, 15]),
        (system.validation_pairs, [4, 4]),
    ):
        tags = [ids[0] for ids in pairs[column]]
        expected = [tag for number, tag in zip(numbers, [498, 499] * 2, strict=False) for _ in range(number)]
        assert tags == expected
        assert not any({498, 499} & {*ids[1:]} for ids in pairs[column])
        assert not any({498, 499} & {*ids} for ids in pairs[other])
    for name, tag in (("de-en", "<2en>"), ("en-de-x2", "<2de>")):
        texts = [text for (text,) in system.test_sets[name].segments]
        assert all(text.count("<2") == text.startswith(tag) == (side == "source_tag") for text in texts)
        test = system.test_sets[name].pairs
        assert test["source_length"] == [len(ids) - 1 for ids in tokenizer(texts)["input_ids"]]
        assert "<2" not in json.dumps(list(test["translation"]))


@pytest.mark.slow
@pytest.mark.parametrize("side", ["source_tag", "target_tag"])
def test_a_model_of_two_languages_is_trained_scored_and_loaded_elsewhere(side: str, tmp_path: Path) -> None:
    experiment = load(on_side(side), tmp_path)
    prepare(experiment)
    run_system(PreparedRun(experiment), "one")
    scores = json.loads((experiment.folder / "one" / "scores.json").read_text(encoding="utf-8"))["tests"]
    assert {name: test["overall"]["n"] for name, test in scores.items()} == {
        "de-en": 3, "de-en-x2": 2, "en-de": 3, "en-de-x2": 2
    }  # fmt: skip
    folder = experiment.folder / "one" / "model"
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    for name, tag in (("de-en", "<2en>"), ("en-de", "<2de>")):
        (system,) = PreparedRun(experiment)
        texts = [text for (text,) in system.test_sets[name].segments]
        first = tokenizer.target.convert_tokens_to_ids(tag)
        how = {"num_beams": 1} | ({"forced_bos_token_id": first} if side == "target_tag" else {})
        lines = (experiment.folder / "one" / "translations" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        assert model.translate(texts, tokenizer, **how) == [json.loads(line)["text"] for line in lines]
        if side == "target_tag":
            ids = model.generate(**tokenizer(texts, return_tensors="pt", padding=True), **how)
            assert (ids[:, 1] == first).all()


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        (
            {"tags": ["<2en>", "<2fr>"]},
            r"data\.train: a tag must be one of data\.tags, but '<2de>' is not; the nearest",
        ),
        ({"tags": []}, r"a tag must be one of data\.tags, but '<2en>' is not; correct it, or add it"),
        ({"tags": ["en"]}, r"data\.tags: A tag must be a word that does not occur in ordinary text"),
        ({"test": {"both": with_tags("source_tag")}}, r"data\.test\.both: A test set has one pair of tags"),
        (
            {"train": with_tags("source_tag") | {"max_examples": 3}},
            r"data\.train: `max_examples` is of pairs with the same tags",
        ),
        ({"train": TO_EN | {"source_tag": ["<2en>"]}}, r"data\.train\.source_tag must be text"),
        ({"train": TO_EN | {"target_language": "de"}}, "must differ, but both are 'de'"),
    ],
)
def test_tags_that_go_with_nothing_are_refused(changes: dict[str, Any], rule: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rule):
        prepare(load(on_side("source_tag", **changes), tmp_path))


@pytest.mark.parametrize("override", ["diagnose=true", "train.predict_with_generate=true"])
def test_decoding_without_the_tag_of_the_target_is_refused(override: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"systems\.one: .* a target_tag; "):
        load(on_side("target_tag"), tmp_path, override)
    load(on_side("source_tag"), tmp_path, override)


def test_a_pair_the_other_way_round_is_contamination(tmp_path: Path) -> None:
    reversed_train = TO_DE | {"generator": TO_EN["generator"], "source_tag": "<2de>"}
    held_out = TO_EN | {"generator": TO_EN["generator"] | {"pairs": 2}, "source_tag": "<2en>"}
    with pytest.raises(ValueError, match=r"of de-en 2 of 2 pairs"):
        prepare(load(on_side("source_tag", train=reversed_train, test={"de-en": held_out}), tmp_path))


@pytest.mark.full
def test_a_run_is_of_its_tags(tmp_path: Path) -> None:
    prepare(load(CONFIG, tmp_path))
    (tmp_path / "runs" / "tags" / "one" / "model").mkdir()
    with pytest.raises(ValueError, match="tags"):
        prepare(load(on_side("source_tag", tags=[*TAGS, "<2fr>"]), tmp_path))
