"""The examples run unchanged, on synthetic sentences."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import evaluate
import pytest
import torch
import yaml
from support.family_models import tiny_family
from support.family_tokenizers import m2m100_tokenizer, marian_tokenizer
from support.marian_models import tiny_marian
from support.measured import character_tokenizer, periodic_texts, vocabulary
from support.models import tiny_model
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from hf_posenc import StreamingTranslator, measure_length
from hf_posenc.lab.data.synthetic import LANGUAGES, generate_pairs

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.slow
def test_a_plain_trainer_script_learns_to_translate(tmp_path):
    pairs = [
        dict(zip(LANGUAGES, pair, strict=True))
        for pair in generate_pairs(seed=3, pairs=4000, min_words=6, max_words=14)
    ]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps({"translation": pair}) + "\n" for pair in pairs))
    done = example("seq2seq_trainer.py", "pairs.jsonl", "model", folder=tmp_path)
    source, translation = done.stdout.splitlines()[-2:]
    assert source == pairs[0]["de"]
    words = pairs[0]["en"].split()
    assert len(set(translation.split()) & set(words)) > len(words) / 2, translation
    model, tokenizer = (auto.from_pretrained(tmp_path / "model") for auto in (AutoModelForSeq2SeqLM, AutoTokenizer))
    first, second = (" ".join(pair["de"] for pair in pairs[i : i + 2]) for i in (0, 2))
    (tmp_path / "document.txt").write_text(f"\n{first.replace(' ', chr(10), 3)}\n \n\n{second}\n", encoding="utf-8")
    done = example("document.py", "model", "document.txt", folder=tmp_path)
    translations = [model.translate([paragraph], tokenizer)[0] for paragraph in (first, second)]
    assert done.stdout == "".join(f"{translation}\n\n" for translation in translations)
    lines = [line for line in done.stderr.splitlines() if " words, " in line]
    assert [line.split(" words")[0] for line in lines] == [f"1: {len(first.split())}", f"2: {len(second.split())}"]


BOOK = "\ufeffEin Hund.\r\nZwei Kinder\n\n \n\nim Schnee\n\nEin Kinder im Schnee.\n\nZwei Hund."
PARAGRAPHS = ["Ein Hund. Zwei Kinder ", "im Schnee ", "Ein Kinder im Schnee. ", "Zwei Hund. "]
# Runs the example, and kills it at the end of that paragraph, before it is written.
KILLED = """
import os, runpy, signal, sys
from hf_posenc import StreamingTranslator, measure_length
finish, left = StreamingTranslator.finish, [int(sys.argv.pop(1))]
def finish_or_kill(self):
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    return finish(self)
StreamingTranslator.finish = finish_or_kill
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.slow
def test_a_killed_book_goes_on_and_equals_an_uninterrupted_one(tmp_path, tokenizer):
    sizes = {"vocab_size": len(tokenizer), "decoder_vocab_size": len(tokenizer), "dtype": torch.float32}
    model = tiny_model("relative+window by length_ratio", **sizes)
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "model")
    (tmp_path / "book.txt").write_bytes(BOOK.encode())
    expected = ["".join(StreamingTranslator(model, tokenizer).translate([text])) for text in PARAGRAPHS]
    assert all(expected)
    script, unfinished = str(EXAMPLES / "translate_book.py"), tmp_path / "book.en.txt.unfinished"
    arguments = [script, "model", "book.txt", "book.en.txt"]
    # Killed in the first paragraph, then in the second one of what is left, then in the middle of a record.
    for last_paragraph, num_records in ((1, 0), (2, 1)):
        command = [sys.executable, "-c", KILLED, str(last_paragraph), *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == -9, done.stderr[-2000:]
        assert len(unfinished.read_text(encoding="utf-8").splitlines()) == 1 + num_records
        assert not (tmp_path / "book.en.txt").exists()
    with unfinished.open("a", encoding="utf-8") as file:
        file.write('{"end": 51, "transl')
    # Only what is left is translated: the fourth call of `finish` would kill.
    done = subprocess.run([sys.executable, "-c", KILLED, "4", *arguments], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    text = (tmp_path / "book.en.txt").read_text(encoding="utf-8")
    assert text == "\n".join(f"{translation}\n" for translation in expected)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["book.en.txt", "book.txt", "model"]


def test_a_book_that_cannot_be_translated_is_refused(tmp_path, monkeypatch):
    def refusal(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["translate_book.py", "model", *arguments])
        with pytest.raises(SystemExit) as refused:
            runpy.run_path(str(EXAMPLES / "translate_book.py"), run_name="__main__")
        return str(refused.value)

    monkeypatch.chdir(tmp_path)
    (tmp_path / "book.txt").write_text("Ein Hund.", encoding="utf-8")
    (tmp_path / "old.txt").write_text("A dog.", encoding="utf-8")
    assert "The book must be a text file, but none.txt is none" in refusal("none.txt", "new.txt")
    assert "The translation must be a new file, but old.txt exists" in refusal("book.txt", "old.txt")
    (tmp_path / "new.txt.unfinished").write_text('{"book": "other", "model": "model"}\n', encoding="utf-8")
    assert "must be of the same book and model" in refusal("book.txt", "new.txt")
    assert (tmp_path / "old.txt").read_text(encoding="utf-8") == "A dog."


def example(name: str, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """What it prints, run in that folder."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_models_in_the_shape_of_those_of_the_hub_are_lengthened(tmp_path):
    pytest.importorskip("sentencepiece", reason="the tokenizers need it: pip install sentencepiece")
    (tmp_path / "opus-mt").mkdir()
    opus_mt = marian_tokenizer(tmp_path / "opus-mt")
    ids = {"pad_token_id": opus_mt.pad_token_id, "decoder_start_token_id": opus_mt.pad_token_id}
    tiny_marian(vocab_size=len(opus_mt), dtype=torch.float32, **ids).save_pretrained(tmp_path / "opus-mt")
    m2m100 = m2m100_tokenizer(tmp_path / "words")
    size = len(m2m100) + len(m2m100.lang_code_to_token)
    tiny_family("m2m_100", vocab_size=size, dtype=torch.float32).save_pretrained(tmp_path / "m2m100")
    m2m100.save_pretrained(tmp_path / "m2m100")
    lines = {
        "train": ["a dog sees a cat", "the cat sees the bird"] * 4,
        "test": ["a bird and the dog sing", "a cat"] * 3,
    }
    for name, texts in lines.items():
        for language in ("de", "en"):
            (tmp_path / f"{name}.{language}").write_text("\n".join(texts) + "\n", encoding="utf-8")
    quick = (
        "train.use_cpu=true", "systems.lengthened.train.max_steps=1", "score.concatenate=[1, 5]", "score.num_beams=1",
        "score.max_new_tokens=9", "score.bootstrap_samples=100", "score.metrics=[bleu]", "data.allow_overlap=[test]",
    )  # fmt: skip
    files = ("--pairs", "train.de", "train.en", "--test", "test.de", "test.en", "--to", "runs", "--lora")
    done = example("lengthen_hub_models.py", "opus-mt", "m2m100", *quick, *files, folder=tmp_path)
    assert [line for line in done.stdout.splitlines() if line.startswith("# ")] == ["# opus-mt", "# m2m100"]
    assert done.stdout.count("| lengthened |") == done.stdout.count("| segmented |") == 2
    for name, tokenizer in (("opus-mt", opus_mt), ("m2m100", m2m100)):
        folder = tmp_path / "runs" / name / "lengthened" / "model"
        assert AutoModelForSeq2SeqLM.from_pretrained(folder).config.cross_window_size == 24
        assert type(AutoTokenizer.from_pretrained(folder)) is type(tokenizer)
    settings = (tmp_path / "runs" / "m2m100" / "lengthen.yaml").read_text(encoding="utf-8")
    assert "source_tag: __de__" in settings and "lora_rank: 16" in settings


@pytest.mark.slow
def test_a_language_model_script_learns_and_measures_positions_beyond_training(tmp_path):
    sentences = [pair[0] for pair in generate_pairs(seed=3, pairs=3000, min_words=6, max_words=14)]
    lengths = [2, 4, 8, 24] * 60
    documents, start = [], 0
    for length in lengths:
        documents.append(" ".join(sentences[start % 2900 : start % 2900 + length]))
        start += length
    (tmp_path / "text.txt").write_text("\n".join(documents), encoding="utf-8")
    done = example("language_model.py", "text.txt", "model", "alibi", folder=tmp_path)
    lines = [line for line in done.stdout.splitlines() if line.startswith("positions ")]
    assert [line.split(":")[0] for line in lines] == [f"positions {k} to {k + 63}" for k in (0, 64, 128, 192)]
    perplexities = [float(line.split("perplexity ")[1].split(",")[0]) for line in lines]
    assert all(perplexity < 100 for perplexity in perplexities[:2]), lines
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert model.config.position_encoding_type == "alibi"


@pytest.mark.full
def test_the_measurement_of_usable_length_has_the_numbers_of_the_report(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    texts = periodic_texts(64, per_period=1)
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=vocabulary(), hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    )
    model.save_pretrained(tmp_path)
    character_tokenizer().save_pretrained(tmp_path)
    measurement = evaluate.load(str(EXAMPLES / "usable_length.py"))
    options = {"lengths": [32, 64], "trials": 1, "progress": False}
    result = measurement.compute(data=texts, model_id=str(tmp_path), **options)
    report = measure_length(model.eval(), character_tokenizer(), texts, **options)
    assert result["verdict"] == str(report)
    assert result["loss_by_context"] == report.numbers["loss_by_context"]


def test_tasks_of_lm_eval_are_as_long_as_they_say(subtests):
    """Their files, read without lm-evaluation-harness; each metric is that of a length."""
    module = runpy.run_path(str(EXAMPLES / "lm_eval" / "length_tasks.py"))
    folder = EXAMPLES / "lm_eval"
    group = yaml.safe_load((folder / "hf_posenc_length.yaml").read_text())
    metrics = [f"length_{length:02}" for length in module["LENGTHS"]]
    assert [metric["metric"] for metric in group["aggregate_metric_list"]] == metrics
    tasks = [yaml.safe_load(path.read_text()) for path in sorted(folder.glob("*.yaml")) if path.stem != group["group"]]
    assert sorted(task["task"] for task in tasks) == sorted(group["task"])
    for task in tasks:
        with subtests.test(task["task"]):
            dataset = module["make_dataset"](**task["metadata"], inputs=2)
            assert [document["length"] for document in dataset["test"]] == [*module["LENGTHS"]] * 2
            for document in dataset["test"]:
                assert module["score"](document, [f" {document['answer']}\nInput:"]) == {
                    f"length_{document['length']:02}": 1.0
                }
                assert module["score"](document, [""]) == {f"length_{document['length']:02}": 0.0}
