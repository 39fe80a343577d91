"""Model cards: their facts are those of the saved files, huggingface_hub parses them, and their examples run."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import yaml
from datasets import Dataset
from huggingface_hub import EvalResult, ModelCard
from support.hub_server import Hub
from support.models import REGISTERED, tiny_model
from support.run_folders import RESULT, SETTINGS, TRAINING, change, run_folder
from support.source_text import words_of_the_code

from hf_posenc import POSITION_ENCODINGS, PosEncTokenizer, PositionEncoding, Reference, register_position_encoding
from hf_posenc.__main__ import main as command_line
from hf_posenc.alignments.length_ratio import LengthRatio
from hf_posenc.lab.data.lengths import stratified_sample
from hf_posenc.lab.reports import card
from hf_posenc.lab.reports.card import TEMPLATE, model_card, write_card
from hf_posenc.utils.run_folder import RunPaths, SystemPaths


def flat(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.full
def test_the_limitations_of_a_card_follow_from_its_data(tmp_path: Path) -> None:
    told = "- The training sentences are synthetic", "training pairs are few"
    folder = run_folder(tmp_path)
    mixed = {"corpora": [{"files": ["a.de", "a.en"]}, SETTINGS["data"]["train"]]}
    for changes, said in (
        ({}, (True, True)),
        ({"init_from": "someone/model"}, (False, False)),
        ({"data": SETTINGS["data"] | {"train": mixed}}, (False, True)),
    ):
        (folder / "tiny" / "settings.yaml").write_text(yaml.safe_dump(SETTINGS | changes), encoding="utf-8")
        text = model_card(folder, "tiny").text
        assert tuple(one in text for one in told) == said
        assert ("The training data of the initial weights are not recorded." in text) == ("init_from" in changes)
    config = folder / "tiny" / "model" / "config.json"
    sides = {"position_encoding_type": "learned", "decoder_position_encoding_type": "sinusoidal"}
    config.write_text(json.dumps(json.loads(config.read_text()) | sides), encoding="utf-8")
    text = model_card(folder, "tiny").text
    assert "- No input can have more than `learned_max_positions`" in text and "No output" not in text


def test_a_card_says_from_which_weights_the_training_went_on(tmp_path: Path) -> None:
    assert "initial weights" not in str(model_card(run_folder(tmp_path), "tiny"))
    path = tmp_path / "tiny" / "settings.yaml"
    path.write_text(path.read_text(encoding="utf-8") + "init_from: models/absolute\n", encoding="utf-8")
    made = model_card(tmp_path, "tiny")
    assert "- initial weights: those of `models/absolute`\n" in made.text and made.data.base_model == "models/absolute"


def test_a_name_that_no_system_has_is_answered_with_those_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no system 'tny'; name one of tiny\."):
        model_card(run_folder(tmp_path), "tny")


def test_a_card_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    path = write_card(run_folder(tmp_path), "tiny")
    assert path == tmp_path / "tiny" / "model" / "README.md"
    made, read = model_card(tmp_path, "tiny"), ModelCard.load(path)
    assert str(read) == str(made) == path.read_text(encoding="utf-8")
    assert read.data.to_dict() == made.data.to_dict()
    dataset = {"dataset_type": "news", "dataset_name": "news", "dataset_revision": "1736879ea46b"}
    assert read.data.eval_results == [
        EvalResult(
            task_type="translation",
            task_name="Translation de-en",
            metric_type=kind,
            metric_value=value,
            metric_name=name,
            **dataset,
        )
        for kind, name, value in (("bleu", "BLEU", 31.46), ("ter", "TER", 57.94))
    ]


def test_the_metadata_have_what_the_hub_requires(tmp_path: Path) -> None:
    """https://github.com/huggingface/hub-docs/blob/main/modelcard.md, which marks these as required."""
    _, block, body = str(model_card(run_folder(tmp_path), "tiny", "someone/tiny")).split("---\n", 2)
    metadata = yaml.safe_load(block)
    (index,) = metadata.pop("model-index")
    assert metadata == {
        "language": ["de", "en"],
        "library_name": "transformers",
        "pipeline_tag": "translation",
        "tags": ["translation", "hf_posenc", "relative"],
        "metrics": ["bleu", "ter"],
    }
    assert index["name"] == "someone/tiny"
    for result in index["results"]:
        assert result["task"]["type"] == "translation"
        assert result["dataset"]["type"]
        assert result["dataset"]["name"]
        assert all(metric["type"] and type(metric["value"]) is float for metric in result["metrics"])
    assert body.startswith("\n# someone/tiny\n")


@pytest.mark.skipif(
    int(huggingface_hub.__version__.split(".")[0]) < 2,
    reason="this client asks huggingface.co whatever the endpoint is",
)
def test_the_hubs_client_sends_the_card_to_be_validated(tmp_path: Path, hub: Hub) -> None:
    """What the client asks is well formed, and a refusal arrives. What the Hub's own validation says is not tested."""
    made = model_card(run_folder(tmp_path), "tiny")
    made.validate()
    assert hub.asked == {"/api/validate-yaml": [{"repoType": "model", "content": str(made)}]}
    hub.refusal = "`license` must be one of ..."
    with pytest.raises(ValueError, match="must be one of"):
        made.validate()


@pytest.mark.full
@pytest.mark.parametrize("kind", [*REGISTERED, "gru+relative", "relative to none", "rnn_nmt"])
def test_every_model_has_a_card_with_what_it_is_and_whose(tmp_path: Path, kind: str) -> None:
    made = model_card(run_folder(tmp_path, kind), "tiny")
    text, used = flat(made.text), [] if kind == "rnn_nmt" else re.split(r"\+| to ", kind)
    assert made.data.tags == ["translation", "hf_posenc", *used]
    for name, entry in POSITION_ENCODINGS.items():
        assert (entry.summary in text) == (name in used)
        if name in used:
            prose = sys.modules[entry.encoding.__module__].__doc__ or ""
            theirs = re.findall(r"https://\S*\w", prose)
            assert not theirs or set(theirs) & set(re.findall(r"https://\S*\w", text))
    bibtex = made.text.partition("## Citation")[2]
    assert re.findall(r"url = \{https://", bibtex) and "others}" not in bibtex
    assert bibtex.count("{") == bibtex.count("}")
    assert "hf_posenc" not in re.findall(r"^import (\w+)$", made.text, flags=re.MULTILINE)[1:]


@pytest.mark.parametrize(
    ("kind", "urls"),
    [
        ("none", ["arxiv.org/abs/1706.03762"]),
        ("relative", ["arxiv.org/abs/1706.03762", "arxiv.org/abs/1803.02155", "aclanthology.org/2019.iwslt-1.20"]),
        ("rotary", ["arxiv.org/abs/1706.03762", "arxiv.org/abs/2104.09864"]),
        ("lstm", ["arxiv.org/abs/1706.03762", "aclanthology.org/2019.iwslt-1.20"]),
        ("gru", ["arxiv.org/abs/1706.03762", "aclanthology.org/K19-1031"]),
        ("rnn_nmt", ["arxiv.org/abs/1508.04025", "aclanthology.org/K19-1031"]),
    ],
)
def test_the_papers_cited_are_those_of_the_model_and_no_others(tmp_path: Path, kind: str, urls: list[str]) -> None:
    made = model_card(run_folder(tmp_path, kind), "tiny")
    assert re.findall(r"url = \{https://(.*)\}", made.text) == urls


def test_a_paper_is_cited_with_its_authors_title_venue_and_year(tmp_path: Path) -> None:
    text = model_card(run_folder(tmp_path, "relative"), "tiny").text
    assert (
        "@misc{shaw2018selfattention,\n"
        "  author = {Peter Shaw and Jakob Uszkoreit and Ashish Vaswani},\n"
        "  title = {{Self-Attention with Relative Position Representations}},\n"
        "  howpublished = {NAACL},\n"
        "  year = {2018},\n"
        "  url = {https://arxiv.org/abs/1803.02155},\n"
        "}\n"
    ) in text
    surnames = Reference("Rosendahl et al.", "Title", "", 2019, "https://example.org")
    assert "  author = {Rosendahl and others},\n" in card.bibtex(surnames)


@pytest.fixture
def own_encoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unregistered_after: None) -> None:
    """An encoding from a user's file, which names its source."""
    (tmp_path / "nearness_of_a_card.py").write_text('"""Near is good."""\n')
    monkeypatch.syspath_prepend(tmp_path)
    module = __import__("nearness_of_a_card")
    source = Reference("Me & You", "Near", "", 2026, "https://example.org/near")
    facts = {"summary": "Every head pays for distance.", "shift_invariant": True, "references": (source,)}
    near = type("Nearness", (PositionEncoding,), {"__module__": module.__name__} | facts)
    register_position_encoding("nearness", near)


def test_a_custom_encoding_has_its_summary_source_and_import_in_the_card(tmp_path: Path, own_encoding: None) -> None:
    text = model_card(run_folder(tmp_path, "nearness"), "tiny").text
    assert "`nearness`: Every head pays for distance." in text
    assert "  author = {Me and You},\n  title = {{Near}},\n" in text
    assert "import hf_posenc\nimport nearness_of_a_card\n" in text


def test_an_encoding_that_is_not_registered_is_refused(tmp_path: Path) -> None:
    run_folder(tmp_path)
    change(tmp_path / "tiny" / "model" / "config.json", position_encoding_type="nearness")
    with pytest.raises(ValueError, match=r"'nearness' is no .*encoding"):
        model_card(tmp_path, "tiny")


WITHOUT_PACKAGE = "import sys\nsys.modules['hf_posenc'] = None\nimport torch\ntorch.set_num_threads(1)\n"


@pytest.mark.slow
def test_the_examples_run_as_they_stand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the package here, without it in a process that cannot import it; both print the same translations."""
    folder = run_folder(tmp_path) / "tiny" / "model"
    tokenizer = PosEncTokenizer.train(["Alle Menschen sind frei und gleich an Würde und Rechten geboren."] * 9, 284)
    sizes = {"vocab_size": len(tokenizer), "decoder_vocab_size": len(tokenizer)}
    model = tiny_model("relative", **sizes).float()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    write_card(tmp_path, "tiny", "someone/tiny")
    text = (folder / "README.md").read_text(encoding="utf-8")
    with_package, without = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert "trust_remote_code" not in with_package
    assert "hf_posenc" not in without
    exec(with_package.replace("someone/tiny", str(folder)), {})
    printed = capsys.readouterr().out
    sentence = "Alle Menschen sind frei und gleich an Würde und Rechten geboren."
    assert printed == f"{model.translate([sentence], tokenizer, num_beams=SETTINGS['score']['num_beams'])}\n"
    child = subprocess.run(
        [sys.executable, "-P", "-c", WITHOUT_PACKAGE + without.replace("someone/tiny", str(folder))],
        env={"HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert child.returncode == 0, child.stderr[-4000:]
    assert child.stdout == printed


def test_the_recipe_and_the_limits_are_the_runs(tmp_path: Path) -> None:
    text = model_card(run_folder(tmp_path, "learned"), "tiny").text
    for line in (
        "| `learned_max_positions` | 64 |",
        "| parameters | 39,168 |",
        "| encoder | 2 layers of 2 attention heads and feed-forward width 24, a vocabulary of 29 subwords |",
        "- pairs: 2,500 synthetic pairs from hf_posenc's generator (`seed 1, 6 to 12 tokens`)",
        "- vocabulary: bpe, trained on the unfiltered text, one for both languages",
        "- length filter: at most 40 subwords on either side, which left 2,060 pairs",
        "| steps | 6 |",
        "| batch of a process | 8 pairs |",  # transformers' default
        "| processes | 2 |",
        "| learning rate | 0.0003, schedule `linear`, warm-up of 0 steps |",
        "| label smoothing | 0.1 |",
        "| seed | 7 |",
        "- No input can have more than `learned_max_positions` = 64 tokens.",
        "- No output can have more than `learned_max_positions` = 64 tokens.",
        "- The results are preliminary: one training with one seed (7).",
        "| news | 2 of 3 |",
        "- The training sentences are synthetic, with few words and few patterns. The model translates no other text.",
        "- 2,060 training pairs are few: translators in use are trained on millions.",
        "| tiny | 31.5 / 57.9 / 1.02 | 31.5 / 57.9 / 1.02 | - |",
        "bleu: `nrefs:1|case:mixed`.",
    ):
        assert line in text.splitlines(), line
    assert "1,234.5 seconds" in text
    assert "the model's own `generate` with beam size 4" in flat(text)


@pytest.mark.parametrize(
    ("section", "changes", "line"),
    [
        (
            "train",
            {"tokens_per_batch": 4700},
            "| batch of a process | pairs of like length, at most 4,700 tokens a side with padding |",
        ),
        ("train", {"gradient_accumulation_steps": 3}, "| batch of a process | 8 pairs, 3 batches accumulated |"),
        (
            "train",
            {"warmup_steps": 0.1, "lr_scheduler_type": "cosine"},
            "| learning rate | 0.0003, schedule `cosine`, warm-up of 0.1 of all steps |",
        ),
        ("data", {"tokenizer": "google/mt5-small"}, "- vocabulary: that of `google/mt5-small`"),
        ("data", {"tokenizer": "/home/someone/bert"}, "- vocabulary: that of `bert`"),
        (
            "data",
            {"joint_vocabulary": False, "subwords": "unigram"},
            "- vocabulary: unigram, trained on the unfiltered text, one for each language",
        ),
        (
            "data",
            {"min_length": 3},
            "- length filter: at least 3 and at most 40 subwords on either side, which left 2,060 pairs",
        ),
        (
            "data",
            {"train": {"files": "a.tsv", "document_ids": "a.doc", "min_words": 50}, "concatenate": [1, 2]},
            "- pairs: the files `a.tsv`, consecutive pairs of a document concatenated to 50 source words or more; of "
            "these also 2 consecutive ones concatenated",
        ),
        (
            "data",
            {"balance_lengths": 5},
            "- length filter: at most 40 subwords on either side, which left 2,060 pairs; sampled so that source "
            "lengths are as equally frequent as at most 5 copies of a pair allow",
        ),
        (
            "data",
            {"max_length": None, "min_length": 34},
            "- The length of training pairs had no upper limit. The longest is not recorded.",
        ),
        (
            "data",
            {"normalize": {"source": ["lowercase", "no_punctuation"], "target": []}},
            "- normalization of the source text, by the tokenizer: lowercase, no punctuation - length filter:",
        ),
        ("data", {"validation": {"files": ["v.de", "v.en"]}}, "- validation: the files `v.de`, `v.en`"),
    ],
)
def test_the_card_describes_other_training_recipes(
    tmp_path: Path, section: str, changes: dict[str, Any], line: str
) -> None:
    path = run_folder(tmp_path) / "tiny" / "settings.yaml"
    settings = SETTINGS | {section: SETTINGS[section] | changes}
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    assert f"{line} " in f"{flat(model_card(tmp_path, 'tiny').text)} "


@pytest.mark.full
def test_a_card_says_that_training_read_the_target_length(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    said = "Training and validation used the length of each target."
    assert said not in flat(model_card(folder, "tiny").text)
    aligned = {"cross_position_encoding_type": "rotary", "alignment_type": "length_ratio", "length_ratio_step": 0.93}
    change(folder / "tiny" / "model" / "config.json", **aligned)
    card = flat(model_card(folder, "tiny").text)
    assert said in card
    assert f"- `length_ratio`: {LengthRatio.summary}" in card
    assert "| `length_ratio_step` | 0.93 |" in card
    assert "Monotonic Location Attention" in card


def test_what_the_files_do_not_hold_is_left_out(tmp_path: Path) -> None:
    """No None of Python or YAML, no gap where a value would stand; the files are as older versions wrote them."""
    empty = RESULT["buckets"][1]
    bare = {"overall": empty | {"label": "all"}, "buckets": [empty], "truncated": 0, "test_set_sha256": "17"}
    run_folder(tmp_path, "lstm", tests={"news": bare}, max_length=None)
    facts = {name: value for name, value in TRAINING.items() if name not in ("processes", "loss")}
    change(tmp_path / "tiny" / "scores.json", training=facts)
    (tmp_path / "tiny" / "model" / "training.json").write_text(json.dumps(facts), encoding="utf-8")
    made = model_card(tmp_path, "tiny")
    assert not re.search(r"\b(None|null|nan|Undefined)\b", str(made))
    listed = [line for line in made.text.splitlines() if line.startswith("- ")]
    assert len(listed) > 8
    assert [line for line in listed if re.search(r":$|  |``|\b(of|is|by|to|and|than)([,;.]|$)", line)] == []
    assert made.data.eval_results is None
    assert "| processes |" not in made.text
    assert "lstm_hidden_size" not in made.text
    assert "- length filter: none" in made.text


@pytest.mark.parametrize(
    ("licence", "identifier"), [("cc-by-4.0", "cc-by-4.0"), ("TED's terms, CC BY-NC-ND", "other"), (None, None)]
)
def test_the_licence_is_the_configs_or_none(tmp_path: Path, licence: str | None, identifier: str | None) -> None:
    """In the metadata as one that the Hub names, or as "other" with a name of its own."""
    made = model_card(run_folder(tmp_path, **({"license": licence} if licence else {})), "tiny")
    assert made.data.license == identifier
    assert getattr(made.data, "license_name", None) == ("ted-s-terms-cc-by-nc-nd" if identifier == "other" else None)
    assert f"- licence of the data: {licence or 'not stated in the config (data.license)'}\n" in made.text


def test_a_kept_card_is_what_the_hubs_client_reads(subtests: pytest.Subtests) -> None:
    """Licence, languages, task and at most six metrics; the model index survives a round trip."""
    for path in (Path(__file__).parents[3] / "model_cards").glob("posenc-*.md"):
        with subtests.test(path.stem):
            kept = ModelCard(path.read_text(encoding="utf-8"))
            data = kept.data
            assert data.license and (data.license != "other" or data.license_name)
            assert data.language == ["de", "en"] and data.pipeline_tag == "translation"
            assert data.library_name == "transformers" and data.model_name == path.stem
            assert data.eval_results and len(data.eval_results) <= 6
            again = ModelCard(str(kept)).data
            assert again.eval_results == data.eval_results and again.to_dict() == data.to_dict()


def test_a_licence_that_is_given_replaces_that_of_the_config(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run_folder(tmp_path, license="cc-by-4.0")
    monkeypatch.setattr("sys.argv", ["hf_posenc", "card", str(folder), "tiny", "--license", "mit"])
    command_line()
    made = ModelCard(capsys.readouterr().out)
    assert made.data.license == "mit" and "The licence of the data is mit." in flat(made.text)
    with pytest.raises(ValueError, match=r"license must be .*cc-by-4\.0 .*, but .* empty"):
        model_card(folder, "tiny", licence=" ")


@pytest.mark.parametrize(
    ("train", "described", "datasets"),
    [
        ({"files": ["/home/someone/a.de.gz", "/home/someone/a.en.gz"]}, "the files `a.de.gz`, `a.en.gz`", None),
        (
            {"files": ["a.tsv", ["b.de", "b.en"]], "max_examples": 5000},
            "the files `a.tsv`, `b.de`, `b.en`, the first 5,000 pairs",
            None,
        ),
        (
            {"dataset": "wmt/wmt14", "name": "de-en", "split": "train"},
            "the Hub's dataset [wmt/wmt14](https://huggingface.co/datasets/wmt/wmt14), name `de-en`, split `train`",
            ["wmt/wmt14"],
        ),
        ({"dataset": "/home/someone/corpus"}, "a dataset in the local folder `corpus`", None),
        ({"dataset": "here/corpus"}, "a dataset in the local folder `corpus`", None),
        (
            {"corpora": [{"dataset": "wmt/wmt14", "revision": None}, {"files": "a.tsv", "concatenate": 2}]},
            "the Hub's dataset [wmt/wmt14](https://huggingface.co/datasets/wmt/wmt14) - pairs: the files `a.tsv`, 2 "
            "consecutive pairs concatenated into one",
            ["wmt/wmt14"],
        ),
    ],
)
def test_the_training_data_are_named(
    tmp_path: Path, train: dict[str, Any], described: str, datasets: list[str] | None
) -> None:
    """By the names of files and not by where they lie; a folder is told from a dataset on the Hub by its files."""
    path = run_folder(tmp_path, train=train) / "tiny" / "settings.yaml"
    path.write_text(path.read_text(encoding="utf-8") + "files: {here/corpus/train.jsonl: 1a2b}\n", encoding="utf-8")
    made = model_card(tmp_path, "tiny")
    assert f"- pairs: {described} - licence" in flat(made.text)
    assert made.data.datasets == datasets
    assert "someone" not in made.text.partition("## Training data")[2]
    assert "synthetic" not in made.text


@pytest.mark.full
@pytest.mark.parametrize(("side", "said"), [("source", '"<2en> A sentence."'), ("target", 'to_ids("<2en>")')])
def test_a_card_of_many_languages_names_them_and_says_how_one_is_chosen(tmp_path: Path, side: str, said: str) -> None:
    languages = [("de", "en", "<2en>"), ("en", "fr", "<2fr>")]
    train = {
        "corpora": [
            {"files": "a.tsv", "source_language": source, "target_language": target, f"{side}_tag": tag}
            for source, target, tag in languages
        ]
    }
    given = {"source_language": "source", "target_language": "target", "tags": ["<2en>", "<2fr>"], "train": train}
    made = model_card(run_folder(tmp_path, **given), "tiny")
    assert made.data.language == ["de", "en", "fr"]
    assert "A tag gives the target language: `<2en>`, `<2fr>`." in made.text
    assert said.strip('"') in made.text
    assert ("forced_bos_token_id" in made.text) == (side == "target")
    assert "A tag gives" not in model_card(run_folder(tmp_path / "plain"), "tiny").text


@pytest.mark.full
def test_results_stay_with_the_test_set_they_are_of(tmp_path: Path) -> None:
    """A model index merges what has the same dataset, configuration, split and revision, under the first name."""
    on_hub = {"dataset": "wmt/wmt14", "name": "de-en", "split": "test"}
    where = {"news": on_hub, "again": on_hub, "some": on_hub | {"max_examples": 2}, "a+b": {"files": "x.tsv"}}
    scored = {
        f"{name}{end}": RESULT | {"test_set_sha256": f"{number}{end}" * 9}
        for number, name in enumerate(where)
        for end in ("", "-x2")
    }
    path = run_folder(tmp_path, tests=scored, test=where) / "tiny" / "settings.yaml"
    path.write_text(path.read_text(encoding="utf-8") + "  concatenate: [1, 2]\n", encoding="utf-8")
    results = ModelCard.load(write_card(tmp_path, "tiny")).data.eval_results
    assert [result.dataset_name for result in results] == list(scored)[:6]
    assert [(result.dataset_type, result.dataset_config, result.dataset_split) for result in results] == [
        ("wmt/wmt14", "de-en", "test"),
        *((name, None, None) for name in ("news-x2", "again", "again-x2", "some", "some-x2")),
    ]
    assert {result.metric_type for result in results} == {"bleu"}
    assert len({result.unique_identifier for result in results}) == 6
    settings = path.read_text(encoding="utf-8")
    for most, num_published in ((3, None), (4, 6)):
        path.write_text(f"{settings}  max_per_bucket: {most}\n", encoding="utf-8")
        sampled = model_card(tmp_path, "tiny")
        assert (sampled.data.eval_results and len(sampled.data.eval_results)) == num_published
        assert f"At most {most} pairs of each bucket were sampled" in flat(sampled.text)


def test_concatenated_pairs_are_not_reported_as_a_dataset_of_the_hub(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, tests={"news-x2": RESULT}, test={"news": {"dataset": "wmt/wmt14"}})
    path = folder / "tiny" / "settings.yaml"
    path.write_text(path.read_text(encoding="utf-8") + "  concatenate: [2]\n", encoding="utf-8")
    made = model_card(folder, "tiny")
    assert {result.dataset_type for result in made.data.eval_results} == {"news-x2"}
    assert "; each 2 consecutive pairs concatenated into one." in made.text


def test_a_card_without_a_repository_is_named_after_its_run(tmp_path: Path) -> None:
    assert model_card(run_folder(tmp_path / "small news"), "tiny").text.startswith(
        "\n# posenc-deen-small-news-39k-tiny\n"
    )


def test_a_card_shows_a_translation_of_median_length_and_a_long_one(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    assert "example from" not in model_card(folder, "tiny").text
    pairs = [{"de": f"{'eins ' * n}.", "en": f"{'one ' * n}."} for n in (200, 3, 90)]
    Dataset.from_dict({"translation": pairs}).save_to_disk(RunPaths(folder).test_set("news", "0123456789ab"))
    (folder / "tiny" / "translations").mkdir()
    lines = [json.dumps({"text": f"{n} *words*", "truncated": False}) for n in (200, 3, 90)]
    SystemPaths(folder / "tiny").translation("news").write_text("\n".join([*lines, ""]), encoding="utf-8")
    text = model_card(folder, "tiny").text
    assert "An example from `news`, with 91 source words:" in text and "| translation | 90 *words* |\n" in text
    assert text.count("example from") == 2 and "A long example from `news`, with 91 source words:" in text


@pytest.mark.parametrize(
    ("references", "normalize", "said"),
    [
        (["a house.", "Berlin."], {}, "cased"),
        (["a house.", "berlin."], {}, "lower-cased"),
        (["a house.", "Berlin."], {"source": ["lowercase"]}, "cased"),
        (["3 %", "房子。"], {}, None),
        (None, {}, None),
        (None, {"source": ["lowercase"], "target": []}, None),
        (None, {"target": ["no_punctuation", "lowercase"]}, "lower-cased"),
    ],
)
def test_a_card_says_the_case_of_its_references_where_it_is_known(
    tmp_path: Path, references: list[str] | None, normalize: dict[str, list[str]], said: str | None
) -> None:
    folder = run_folder(tmp_path, normalize=normalize)
    if references is not None:
        test_set = Dataset.from_dict({"translation": [{"de": "Ein Haus", "en": text} for text in references]})
        test_set.save_to_disk(RunPaths(folder).test_set("news", "0123456789ab"))
        (folder / "tiny" / "translations").mkdir()
        lines = [json.dumps({"text": "A\u2028house", "truncated": False}, ensure_ascii=False) + "\n"] * 2
        SystemPaths(folder / "tiny").translation("news").write_text("".join(lines), encoding="utf-8")
    text = flat(model_card(folder, "tiny").text)
    assert ["cased" in text, "lower-cased" in text] == [said is not None, said == "lower-cased"]
    assert text.count("example from") == (2 if references else 0)


@pytest.mark.parametrize("text", ["Alle Menschen", "alle menschen"])
def test_a_card_without_test_text_has_the_case_of_the_translations_and_a_known_sentence(tmp_path: Path, text: str):
    folder = run_folder(tmp_path, domain="laws and treaties")
    (folder / "tiny" / "translations").mkdir()
    SystemPaths(folder / "tiny").translation("news").write_text(json.dumps({"text": text}) + "\n", encoding="utf-8")
    card = model_card(folder, "tiny").text
    sentence = "Alle Menschen sind frei und gleich an Würde und Rechten geboren."
    case, sample = ("cased", sentence) if text[0] == "A" else ("lower-cased", sentence.lower())
    assert f"- letters of the target: {case}\n" in card and "- domain: laws and treaties\n" in card
    assert card.count(f'model.translate(["{sample}"], tokenizer, num_beams=4)') == 2


def test_examples_of_sampled_test_sets_are_the_pairs_that_were_translated(tmp_path: Path) -> None:
    """With `max_per_bucket` a test set has more pairs than translations; each translation stays with its source."""
    folder = run_folder(tmp_path)
    settings = SETTINGS | {"score": {"bucket_edges": [5], "max_per_bucket": 2}}
    (folder / "tiny" / "settings.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    pairs = [{"de": f"{'eins ' * n}.", "en": f"{'one ' * n}."} for n in range(1, 21)]
    test_set = Dataset.from_dict({"translation": pairs, "source_length": list(range(1, 21))})
    test_set.save_to_disk(RunPaths(folder).test_set("news", "0123456789ab"))
    sampled = stratified_sample(test_set, [5], 2)
    assert len(sampled) == 4
    (folder / "tiny" / "translations").mkdir()
    lines = [json.dumps({"text": f"{n} words", "truncated": False}) for n in sampled["source_length"]]
    SystemPaths(folder / "tiny").translation("news").write_text("\n".join([*lines, ""]), encoding="utf-8")
    text = model_card(folder, "tiny").text
    longest = max(sampled["source_length"])
    assert f"A long example from `news`, with {longest + 1} source words:" in text
    assert f"| translation | {longest} words |" in text


@pytest.mark.parametrize("file", ["settings.yaml", "scores.json", "model/config.json", "model/training.json"])
@pytest.mark.full
def test_a_truncated_file_is_one_error_and_the_old_card_stays(tmp_path: Path, file: str) -> None:
    card_file = write_card(run_folder(tmp_path), "tiny")
    before, path = card_file.read_bytes(), tmp_path / "tiny" / file
    whole = path.read_bytes()
    end = whole.index(b"\nscore:") if file == "settings.yaml" else len(whole) - 1
    for length in range(0, end, 7):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"whole files, but .*: .*; restore") as refused:
            write_card(tmp_path, "tiny")
        assert str(path) in str(refused.value)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"is missing; run train\.py first"):
        write_card(tmp_path, "tiny")
    assert card_file.read_bytes() == before
    assert {one.name for one in card_file.parent.iterdir()} <= {"README.md", "config.json", "training.json"}


def test_scores_of_another_training_or_test_set_are_refused(tmp_path: Path) -> None:
    path = run_folder(tmp_path) / "tiny" / "scores.json"
    whole = path.read_text(encoding="utf-8")
    for strange in ({"training": TRAINING | {"steps": 7}}, {"tests": {"other": RESULT}}):
        change(path, **strange)
        with pytest.raises(ValueError, match=r"one run, but .*; delete scores\.json"):
            model_card(tmp_path, "tiny")
        path.write_text(whole, encoding="utf-8")


def test_the_card_names_no_encoding_in_its_code() -> None:
    assert not set(POSITION_ENCODINGS) & words_of_the_code(Path(card.__file__))
    template = set(re.findall(r"\w+", TEMPLATE.read_text(encoding="utf-8")))
    assert not (set(POSITION_ENCODINGS) - {"none", "learned", "relative"}) & template
