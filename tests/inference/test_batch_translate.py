"""Translating many lines: in order, in several processes, resumable, with output files written atomically."""

import io
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
import torch
from support.models import TEXTS_VOCABULARY, tiny_model
from torch import nn

from hf_posenc import POSITION_ENCODINGS, PosEncTokenizer, __main__, to_ctranslate2
from hf_posenc.generation.translate import translate_in_batches
from hf_posenc.inference.int8 import Int8Linear, quantize_int8
from hf_posenc.inference.loading import checkpoint_name, load_model
from hf_posenc.lab import cli, commands
from hf_posenc.translator.checks import TextTranslation
from hf_posenc.translator.documents import Part, TextDocument, parse_document
from hf_posenc.translator.translation_job import TranslateFunction, TranslationJob, translate_document
from hf_posenc.translator.translation_job import translate_to_file as write_translation
from hf_posenc.utils.atomic_io import exclusive_lock
from hf_posenc.utils.command_line import register_encodings
from hf_posenc.utils.text_io import replace_line_ends

LINES = ["Ein Hund.", "Zwei Kinder im Schnee", "", "Ein Hund im Schnee. Zwei Kinder.", "x", "Kinder", "Hund Hund"]


# Few lines, in several chunks.
Job = partial(TranslationJob, num_beams=1, texts_per_chunk=3)


def document_of(lines: Sequence[str]) -> TextDocument:
    """The document of lines, which a test may give values that no file has."""
    parts: list[Part] = []
    for number, line in enumerate(lines, 1):
        parts += [Part(line, f"line {number}"), Part("\n")]
    return TextDocument(parts)


def translate_lines(lines: Sequence[str], job: TranslationJob, **options: int) -> Iterator[str]:
    for chunk, _ in translate_document(document_of(lines), job, **options):
        yield from (part.text for part in chunk)


def translate_to_file(lines: Sequence[str], target: Path, job: TranslationJob) -> None:
    write_translation(document_of(lines), target, job)


def translations(job: TranslationJob, lines: Sequence[str]) -> list[str]:
    return [made.text for made in job.translator()(list(lines), [""] * len(lines))]


def job_without_model(
    folder: Path, write: Callable[[str], str] = str.upper, out_of_memory_at: str | None = None, seen: Sequence[str] = ()
) -> TranslationJob:
    """A job that writes the lines in capitals in place of a model's translations, appends them to `seen`, and runs out
    of memory at one of them."""

    class JobWithoutModel(TranslationJob):
        def translator(self, threads: int | None = None, progress: bool = False) -> TranslateFunction:
            def translate(lines: list[str], places: list[str]) -> list[TextTranslation]:
                if out_of_memory_at in lines:
                    raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes.")
                if isinstance(seen, list):
                    seen.extend(lines)
                return [TextTranslation(write(line), []) for line in lines]

            return translate

    return JobWithoutModel(folder, texts_per_chunk=3)


@pytest.fixture
def folder(tmp_path: Path, tokenizer: PosEncTokenizer) -> Path:
    sizes = {"vocab_size": TEXTS_VOCABULARY, "decoder_vocab_size": TEXTS_VOCABULARY}
    model = tiny_model("relative", dtype=torch.float32, **sizes)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def expected(folder: Path) -> list[str]:
    made = translations(Job(folder), LINES)
    assert len(set(made)) > 3
    return [replace_line_ends(translation) for translation in made]


@pytest.mark.full
def test_translations_come_in_order_chunk_by_chunk(folder, expected):
    lines = translate_lines(LINES, Job(folder))
    assert [next(lines), *lines] == expected


OWN = """
from hf_posenc import PositionEncoding, register_position_encoding

class Nearer(PositionEncoding):
    summary = "One less for each token between."
    shift_invariant = True

    def score_bias(self, q_BHQK, k_BHSK, ctx):
        return -ctx.distance_BQS.abs()[:, None].to(q_BHQK.dtype)

register_position_encoding("nearer", Nearer)
"""


@pytest.mark.slow
def test_several_processes_translate_what_one_does_and_register_a_custom_encoding(
    tmp_path, tokenizer, unregistered_after
):
    own, saved = tmp_path / "own.py", tmp_path / "model"
    own.write_text(OWN)
    register_encodings(own)
    sizes = {"vocab_size": TEXTS_VOCABULARY, "decoder_vocab_size": TEXTS_VOCABULARY}
    tiny_model("nearer", dtype=torch.float32, **sizes).save_pretrained(saved)
    tokenizer.save_pretrained(saved)
    job = Job(saved, register=own)
    expected = [replace_line_ends(translation) for translation in translations(job, LINES)]
    assert len(set(expected)) > 3
    assert list(translate_lines(LINES * 4, job, processes=2)) == expected * 4
    del POSITION_ENCODINGS["nearer"]
    with pytest.raises(ValueError, match="'nearer' is no registered"):
        load_model(saved)


@pytest.mark.full
@pytest.mark.parametrize("command", ["translate", "encodings"])
def test_a_reader_that_closes_standard_output_ends_the_command_quietly(command, folder):
    """As in `hf-posenc translate FOLDER < sentences | head -1`; here the reader is gone from the start."""
    arguments = [command, str(folder), "--num-beams", "1"] if command == "translate" else [command]
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(
        [sys.executable, "-m", "hf_posenc", *arguments], input=b"Ein Hund.\n" * 9, stdout=writer, stderr=subprocess.PIPE
    )
    os.close(writer)
    assert "pipe" not in ended.stderr.decode().lower()
    assert "Traceback" not in ended.stderr.decode()
    assert ended.returncode == 128 + signal.SIGPIPE


def test_a_broken_pipe_elsewhere_is_still_an_error(folder, monkeypatch):
    def broken(options):
        raise BrokenPipeError("a worker's pipe")

    monkeypatch.setattr(commands, "encodings", broken)
    monkeypatch.setattr(sys, "argv", ["hf_posenc", "encodings"])
    with pytest.raises(SystemExit, match="BrokenPipeError: a worker's pipe"):
        __main__.main()


@pytest.mark.full
def test_a_file_is_there_when_it_is_whole(folder, expected, tmp_path):
    translate_to_file(LINES, tmp_path / "out", Job(folder))
    assert (tmp_path / "out").read_text(encoding="utf-8") == "".join(f"{line}\n" for line in expected)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "out"]
    with pytest.raises(ValueError, match=r"must be new, but .* exists"):
        translate_to_file(LINES, tmp_path / "out", Job(folder))


def test_one_process_at_a_time_writes_a_file(folder, tmp_path):
    with (
        exclusive_lock(tmp_path / ".out.lock"),
        pytest.raises(ValueError, match=r"another one .* at work .*; wait"),
    ):
        translate_to_file(LINES, tmp_path / "out", Job(folder))
    assert not (tmp_path / "out").exists()


def texts_of(unfinished: Path) -> list[str]:
    return [json.loads(line)["text"] for line in unfinished.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("after", [0, 1, 3, 5, 7])
def test_a_killed_translation_resumes_after_the_last_whole_chunk(after, folder, tmp_path):
    """It was killed when it had written `after` lines and a part of the next one."""
    out, expected, seen, num_whole = tmp_path / "out", [line.upper() for line in LINES], [], 3 * (after // 3)
    if after < len(LINES):
        with pytest.raises(MemoryError):
            translate_to_file(LINES, out, job_without_model(folder, out_of_memory_at=LINES[after]))
        unfinished = tmp_path / ".out.unfinished"
        assert texts_of(unfinished) == expected[:num_whole] and not out.exists()
        with unfinished.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps({"text": line}) + "\n" for line in expected[num_whole:after]) + '{"text')
    translate_to_file(LINES, out, job_without_model(folder, seen=seen))
    assert out.read_text(encoding="utf-8").splitlines() == expected
    assert seen == LINES[num_whole if after < len(LINES) else 0 :]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "out"]


def test_leftovers_of_another_call_are_refused(folder, tmp_path):
    task = Job(folder)
    translate_to_file([], tmp_path / "other", task)
    about = tmp_path / ".out.task.json"
    about.write_text(json.dumps({"texts": "0", "model": str(folder), "num_beams": 1, "texts_per_chunk": 3}))
    (tmp_path / ".out.unfinished").write_text("kept\n")
    with pytest.raises(ValueError, match=r"texts was '0' .* delete .*\.out\.task\.json"):
        translate_to_file(LINES, tmp_path / "out", task)
    assert (tmp_path / ".out.unfinished").read_text() == "kept\n"


def test_leftovers_of_other_weights_are_refused(folder, tmp_path):
    with pytest.raises(MemoryError):
        translate_to_file(LINES, tmp_path / "out", job_without_model(folder, out_of_memory_at=LINES[0]))
    os.utime(folder / "model.safetensors", ns=(0, 0))
    with pytest.raises(ValueError, match=r"weights\.model\.safetensors was .* and is"):
        translate_to_file(LINES, tmp_path / "out", job_without_model(folder))


@pytest.mark.parametrize("bias", [True, False])
def test_in_int8_a_token_is_computed_as_it_is_alone(bias):
    torch.manual_seed(0)
    linear, x_BTD = nn.Linear(24, 40, bias=bias), torch.randn(3, 5, 24) * torch.logspace(-3, 3, 5)[:, None]
    x_BTD[1, 2] = 0
    with torch.no_grad():
        expected, layer = linear(x_BTD), Int8Linear(linear)
        made = layer(x_BTD)
        for batch, number in itertools.product(range(3), range(5)):
            assert torch.equal(layer(x_BTD[batch, number][None])[0], made[batch, number])
            assert torch.equal(layer(x_BTD[batch : batch + 1, : number + 1])[0], made[batch, : number + 1])
    error = (made - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert error[1, 2] == 0 if bias else made[1, 2].count_nonzero() == 0
    assert error.nan_to_num().max() < 0.02


@pytest.mark.full
@pytest.mark.parametrize("beams", [1, 3])
def test_in_int8_a_line_is_translated_as_it_is_alone(beams, folder):
    model, tokenizer = load_model(folder)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    made = quantize_int8(model)
    assert not [module for module in made.modules() if isinstance(module, nn.Linear)]
    lines, options = [LINES[3], LINES[4], LINES[1]], {"num_beams": beams, "max_new_tokens": 20}
    together = made.translate(lines, tokenizer, **options)
    assert together == [made.translate([line], tokenizer, **options)[0] for line in lines]
    torch.testing.assert_close(dict(model.state_dict()), before, rtol=0, atol=0)


@pytest.mark.full
def test_in_int8_it_translates_too_but_not_what_was_exported(folder, tokenizer, tmp_path):
    model, _ = load_model(folder)
    quantized = list(translate_lines(LINES, Job(folder, quantize=True)))
    assert len(quantized) == len(LINES)
    half = tmp_path / "half"
    load_model(folder)[0].bfloat16().save_pretrained(half)
    tokenizer.save_pretrained(half)
    assert len(list(translate_lines(LINES, Job(half, quantize=True)))) == len(LINES)
    exported = to_ctranslate2(model, tokenizer, tmp_path / "engine")
    with pytest.raises(ValueError, match="leave `quantize` out"):
        Job(exported, quantize=True)
    assert list(translate_lines(["x"], Job(exported))) == list(translate_lines(["x"], Job(folder)))


def test_bad_calls_are_refused_before_anything_is_read(folder, tmp_path):
    with pytest.raises(ValueError, match=r"has no config\.json"):
        Job(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="1 or more wide, but it is 0;"):
        Job(folder, num_beams=0)
    with pytest.raises(ValueError, match="`texts_per_chunk` must be 1 or more, but it is 0;"):
        Job(folder, texts_per_chunk=0)
    with pytest.raises(ValueError, match=r"`processes` must be 1 .* is 0"):
        list(translate_lines(LINES, Job(folder), processes=0))
    (tmp_path / "mine").mkdir()
    folder.rename(tmp_path / "mine" / "model")
    for folder, verb in ((tmp_path, "holds"), (tmp_path / "min", "has")):
        with pytest.raises(ValueError, match=rf"{tmp_path} {verb} the systems mine"):
            Job(folder)


def standard_input(given: bytes) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BufferedReader(io.BytesIO(given)))


@pytest.mark.full
def test_the_command_line_writes_a_file_or_prints(folder, expected, tmp_path, monkeypatch, capsys):
    for more in ([], ["--output", str(tmp_path / "out")]):
        monkeypatch.setattr(sys, "stdin", standard_input("\n".join(LINES).encode()))
        monkeypatch.setattr(sys, "argv", ["hf_posenc", "translate", str(folder), "--num-beams", "1", *more])
        __main__.main()
    printed = capsys.readouterr().out
    assert printed == (tmp_path / "out").read_text(encoding="utf-8") == "".join(f"{line}\n" for line in expected)


@pytest.mark.full
def test_the_command_line_reads_a_file_with_limits(folder, tmp_path, monkeypatch, capsys):
    """`max_new_tokens` limits each translation; the batch and the device change nothing."""
    model, tokenizer = load_model(folder)
    model.float()
    expected = model.translate(LINES, tokenizer, num_beams=1, max_new_tokens=3)
    assert expected != model.translate(LINES, tokenizer, num_beams=1)
    (tmp_path / "in").write_text("\n".join(LINES), encoding="utf-8")
    options = ["--num-beams", "1", "--max-new-tokens", "3", "--batch-size", "2", "--device", "cpu"]
    cli.main(["translate", str(folder), "--input", str(tmp_path / "in"), *options])
    assert capsys.readouterr().out == "".join(f"{replace_line_ends(line)}\n" for line in expected)


def test_a_device_that_is_not_there_is_refused_before_anything_is_loaded(folder, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    for device in ("cpuu", "meta", "cuda:99", "xpu"):
        with pytest.raises(ValueError, match=rf"A device must be cpu or one that is there, .* is '{device}'; choose"):
            Job(folder, device=device)
    assert Job(folder, device="cpu").load()[0].device.type == "cpu"


def test_sentences_that_are_not_utf8_are_refused_with_their_line(folder, monkeypatch):
    monkeypatch.setattr(sys, "stdin", standard_input("Ja.\nEin Hund läuft.\n".encode("latin1")))
    monkeypatch.setattr(sys, "argv", ["hf_posenc", "translate", str(folder)])
    with pytest.raises(SystemExit, match=r"UTF-8, but standard input has the byte 0xe4 in line 2;"):
        __main__.main()


# The 5th of 7 lines, in the second piece, and how a message names it.
BAD = {
    "no UTF-8": (
        "Ein \ud83d Hund.",
        ValueError,
        r"must be UTF-8, but line 5 has half a character, '\\ud83d', at index 4",
    ),
    "too long": ("Hund " * 30, ValueError, r"at most 20 tokens, .* but line 5 has \d+; shorten it"),
    "no text": (None, TypeError, r"takes strings, but line 5 is None"),
}


@pytest.mark.parametrize("bad", ["no UTF-8", "too long"])
@pytest.mark.parametrize("to_file", [False, True])
def test_an_untranslatable_line_is_named_before_any_compute(bad, to_file, tmp_path, tokenizer):
    sizes = {"vocab_size": TEXTS_VOCABULARY, "decoder_vocab_size": TEXTS_VOCABULARY}
    tiny_model("learned", dtype=torch.float32, learned_max_positions=20, **sizes).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    line, kind, said = BAD[bad]
    lines, task = [*LINES[:4], line, *LINES[5:]], Job(tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").unlink()  # no weights are read
    with pytest.raises(kind, match=said):
        translate_to_file(lines, tmp_path / "out", task) if to_file else next(translate_lines(lines, task))
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_of_an_exported_model_too_the_line_is_named(tmp_path, tokenizer):
    sizes = {"vocab_size": TEXTS_VOCABULARY, "decoder_vocab_size": TEXTS_VOCABULARY}
    model = tiny_model("sinusoidal", dtype=torch.float32, **sizes)
    exported = to_ctranslate2(model, tokenizer, tmp_path / "engine", positions=16)
    with pytest.raises(ValueError, match=r"at most 16 tokens, .* but line 4 has \d+; .* export with more `positions`"):
        next(translate_lines([*LINES[:3], "Ein Hund im Schnee. " * 4], Job(exported)))


@pytest.mark.parametrize("bad", BAD)
def test_a_model_names_an_untranslatable_text_before_any_compute(bad, tokenizer):
    sizes = {"vocab_size": TEXTS_VOCABULARY, "decoder_vocab_size": TEXTS_VOCABULARY}
    model = tiny_model("learned", dtype=torch.float32, learned_max_positions=20, **sizes).to("meta")  # no weights
    line, kind, said = BAD[bad]
    with pytest.raises(kind, match=said.replace("line 5", r"texts\[4\]")):
        model.translate([*LINES[:4], line, *LINES[5:]], tokenizer)


def test_a_translation_is_one_line_whatever_it_holds(folder, tmp_path):
    job = job_without_model(folder, write=lambda _: "a\rb\nc\u2028d\x85e\x0bf\r\ng")
    translate_to_file(LINES, tmp_path / "out", job)
    assert (tmp_path / "out").read_text(encoding="utf-8").splitlines() == ["a b c d e f g"] * len(LINES)


def test_out_of_memory_names_the_lines_of_the_batch(folder):
    lines = translate_lines(LINES, job_without_model(folder, out_of_memory_at=LINES[4]))
    assert [next(lines) for _ in range(3)] == [line.upper() for line in LINES[:3]]
    with pytest.raises(MemoryError, match=r"^The text of line 4 to line 6 must .* \(.*\); .* resumes"):
        next(lines)


def test_a_document_without_text_to_translate_stays_as_it_is(folder, tmp_path):
    document = parse_document(b"- - -\n", Path("page.md"), "markdown")
    write_translation(document, tmp_path / "out", Job(folder))
    assert (tmp_path / "out").read_bytes() == b"- - -\n"


def test_a_name_that_begins_with_no_local_folder_is_one_on_the_hub(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    assert checkpoint_name("Helsinki-NLP/opus-mt-de-en") == "Helsinki-NLP/opus-mt-de-en"
    assert checkpoint_name("model") == "model"
    for missing in ("model/other", "/nowhere", "a/b/c"):
        with pytest.raises(ValueError, match=r"has no config\.json"):
            checkpoint_name(missing)


def test_a_batch_has_so_many_sentences_and_no_more_tokens_than_that():
    batches: list[list[int]] = []

    def translated(sources: list[list[int]]) -> list[tuple[str, bool]]:
        batches.append([len(source) for source in sources])
        return [(str(len(source)), False) for source in sources]

    sizes = [3, 0, 100, 4, 9, 0, 5]
    made = translate_in_batches([[0] * size for size in sizes], translated, batch_size=3, tokens_per_batch=10)
    assert made.texts == ["3", "", "100", "4", "9", "", "5"], "a source of no tokens has an empty translation"
    assert batches == [[100], [9], [5, 4], [3]]
