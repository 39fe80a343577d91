"""Translator: over-long input of every family, threads, files and the command that resumes after a kill."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support.models import TEXTS_VOCABULARY, tiny_model
from support.threads import together

from hf_posenc import PosEncTokenizer
from hf_posenc.lab import cli
from hf_posenc.translator import translation_job
from hf_posenc.translator.translator import Translator

FIXTURES = Path(__file__).parent / "fixtures"
LANGUAGES = {"marian": (None, None), "marian_many": ("de", "deu"), "m2m_100": ("de", "en"), "nllb": ("de", "en")}
LANGUAGES |= {"mbart": ("de", "en"), "t5": ("de", "en"), "madlad": ("de", "en")}
LANGUAGES |= {"bart": (None, None), "pegasus": (None, None)}
SENTENCE = "Wir gehen morgen in die Stadt, wenn es nicht regnet."
LONG = " und ".join([SENTENCE.rstrip(".")] * 12) + "."
pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")


def load(name: str, **options: Any) -> Translator:
    return Translator.from_pretrained(FIXTURES / name, *LANGUAGES[name], **{"num_beams": 1, "repair": False, **options})


@pytest.mark.parametrize("name", LANGUAGES)
@pytest.mark.parametrize("text", [LONG, "x" * 700, " ".join([SENTENCE] * 20)])
def test_every_token_of_a_long_input_reaches_the_model(name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The models have 64 positions and a `max_length` of 48. Nothing is truncated, and each cut output is doubted."""
    translator = load(name, max_new_tokens=60)
    seen: list[list[int]] = []
    generate = translator.model.generate

    def recorded(input_ids: torch.Tensor, attention_mask: torch.Tensor, **options: Any) -> torch.Tensor:
        seen.extend(row[mask.bool()].tolist() for row, mask in zip(input_ids, attention_mask, strict=True))
        return generate(input_ids=input_ids, attention_mask=attention_mask, **options)

    monkeypatch.setattr(translator.model, "generate", recorded)
    translation = translator(text)
    sources = [segment.source for segment in translation.segments]
    assert "".join("".join(sources).split()) == "".join(text.split())
    assert sorted(seen) == sorted(translator.encode(source) for source in sources)
    assert not any(mark in translation.text for mark in ("__", "_Latn", "_XX"))
    assert max(map(len, seen)) <= (translator.max_source_length or 0)
    assert translator.max_new_tokens(40, 60) == 60, "not the 48 of the generation config"


@pytest.mark.parametrize("name", ["marian", "nllb"])
def test_a_segment_length_beyond_the_model_is_refused(name: str) -> None:
    with pytest.raises(
        ValueError, match=r"max_segment_tokens must be from 1 to 6[23], the model's limit, but it is 64"
    ):
        load(name, max_segment_tokens=64)


def test_a_model_of_this_package_has_the_limit_of_its_encoding(tokenizer: PosEncTokenizer) -> None:
    """Its `max_position_embeddings`, from which `rope_parameters` scale, bounds nothing."""
    sizes = {"vocab_size": TEXTS_VOCABULARY, "decoder_vocab_size": TEXTS_VOCABULARY}
    model = tiny_model("relative", max_position_embeddings=8, **sizes)
    text = "Ein Hund im Schnee. " * 4
    (expected,) = model.translate([text], tokenizer, num_beams=1, max_new_tokens=9)
    assert Translator(model, tokenizer, num_beams=1, max_new_tokens=9)(text).text.strip() == expected.strip()
    learned = tiny_model("learned", learned_max_positions=20, **sizes)
    assert Translator(learned, tokenizer).max_source_length == learned.config.max_source_length


def test_sampling_is_refused() -> None:
    with pytest.raises(ValueError, match="do_sample is true; leave it out"):
        load("marian", do_sample=True)


@pytest.mark.full
def test_threads_share_a_translator() -> None:
    translator = load("nllb", max_new_tokens=20, repair=True)
    texts = [SENTENCE, "Haus", "Der Preis beträgt 1.250 Euro; das ist viel.", "Was ist das?"]
    alone = [translator(text).text for text in texts]
    assert together(translator.model, lambda text: translator(text).text, texts * 2) == alone * 2


@pytest.mark.parametrize("name", ["marian", "m2m_100"])
def test_a_segment_without_words_stays_as_it_is(name: str) -> None:
    translator = load(name, max_new_tokens=8, repair=True)
    for text in ("\U0001f600", "* * *", " \u2014 \u2026 \u200b", ""):
        assert translator(text).text == text


DOCUMENT = "# Titel\n\nDie Katze sitzt auf dem Dach. Was ist das?\n\n```\nx = 1\n```\n\n- Haus\n"


def command(folder: Path, output: Path, *more: str) -> None:
    (folder / "page.md").write_text(DOCUMENT * 4, encoding="utf-8")
    options = ["--input", str(folder / "page.md"), "--output", str(output), "--num-beams", "1", "--no-repair"]
    languages = ["--source-language", "deu", "--target-language", "en"]
    cli.main(["translate", str(FIXTURES / "m2m_100"), *options, *languages, "--max-new-tokens", "12", *more])


def test_a_document_keeps_its_form_and_a_killed_command_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(translation_job, "CHARACTERS_PER_CHUNK", 60)
    command(tmp_path, whole := tmp_path / "whole.md")
    lines = whole.read_text(encoding="utf-8").splitlines()
    assert len(lines) == len((DOCUMENT * 4).splitlines())
    assert lines.count("x = 1") == 4 and lines[0].startswith("# ") and lines[8].startswith("- ")
    translate, calls = Translator.translate_texts, []

    def killed(self: Translator, *arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return translate(self, *arguments, **options)

    monkeypatch.setattr(Translator, "translate_texts", killed)
    with pytest.raises(SystemExit, match="130"):
        command(tmp_path, tmp_path / "resumed.md")
    finished = (tmp_path / ".resumed.md.unfinished").read_text(encoding="utf-8").splitlines()
    assert finished and all(json.loads(line)["segments"] for line in finished)
    num_before = len(calls)
    command(tmp_path, tmp_path / "resumed.md")
    assert (tmp_path / "resumed.md").read_bytes() == whole.read_bytes()
    assert sum(len(texts) for texts, *_ in calls[num_before:]) == 12 - len(finished)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.md", "resumed.md", "whole.md"]


def test_a_document_appears_after_its_report(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit, match="Error: "):
        command(tmp_path, tmp_path / "out.md", "--report", str(tmp_path / "file" / "report.json"))
    assert not (tmp_path / "out.md").exists() and (tmp_path / ".out.md.unfinished").read_bytes()
    command(tmp_path, tmp_path / "out.md", "--report", str(tmp_path / "report.json"))
    assert json.loads((tmp_path / "report.json").read_bytes())["segments"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "out.md", "page.md", "report.json"]


def test_no_file_of_a_command_is_written_over(tmp_path: Path) -> None:
    same = tmp_path / ".." / tmp_path.name / "out.html"
    with pytest.raises(
        SystemExit, match=r"A report must be a file of its own, but .*out\.html is read or written too;"
    ):
        command(tmp_path, tmp_path / "out.html", "--report", str(same))
    with pytest.raises(SystemExit, match=r"must be written as plain text, but .*out\.md\.gz ends with \.gz; compress"):
        command(tmp_path, tmp_path / "out.md.gz")
    assert [path.name for path in tmp_path.iterdir()] == ["page.md"]


def test_a_document_of_standard_input_is_printed_in_its_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"id": 7, "text": "Haus", "other": "Tor"}\n')))
    options = ["--form", "jsonl", "--num-beams", "1", "--max-new-tokens", "8"]
    cli.main(["translate", str(FIXTURES / "marian"), *options])
    row = json.loads(capsysbinary.readouterr().out)
    assert {**row, "text": ""} == {"id": 7, "text": "", "other": "Tor"} and row["text"] != "Haus"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--target-language", "zz"], "target_language must be a language of this model, but it has no 'zz'"),
        (["--input", "a.pdf"], "A document must be one of lines, text, .*, but a.pdf is none; save its text"),
    ],
)
def test_what_cannot_be_translated_is_one_line(arguments: list[str], message: str, monkeypatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Haus\n")))
    monkeypatch.setattr(translation_job, "load_model", lambda _: pytest.fail("it is found before weights are loaded"))
    with pytest.raises(SystemExit, match=message) as ended:
        cli.main(["translate", str(FIXTURES / "nllb"), "--source-language", "de", *arguments])
    assert "\n" not in str(ended.value)
