"""`lengthen`: a trained translator, fine-tuned for longer input and scored before and after by one command."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from support.causal import tiny_causal_config
from support.family_models import tiny_family
from support.family_tokenizers import m2m100_tokenizer, marian_tokenizer, nllb_tokenizer
from support.marian_models import Words, tiny_marian
from support.models import EVERY_ENCODING
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_posenc import __main__, from_transformers
from hf_posenc.lab.data.corpus import prepend_tag
from hf_posenc.lab.results.saved_files import read_results, read_translations
from hf_posenc.lab.run.lengthen import LENGTHENED, LengthenJob, lengthen
from hf_posenc.tokenizer.tokenization_posenc import PosEncTokenizer
from hf_posenc.utils.run_folder import SystemPaths

# Small enough for seconds, and for an untrained model.
QUICK = (
    "train.use_cpu=true", "train.tokens_per_batch=200", "systems.lengthened.train.max_steps=2",
    "score.concatenate=[1, 2]", "score.num_beams=1", "score.bootstrap_samples=100", "score.metrics=[bleu]",
    "score.bucket_edges=[4, 8]",
)  # fmt: skip


def write_pairs(folder: Path, words: list[str]) -> tuple[list[str], list[str]]:
    """Twelve pairs to train with, and six others to test with, as aligned texts."""
    files = []
    for name, number, step in (("train", 12, 1), ("test", 6, 2)):
        paths = [folder / f"{name}.{language}" for language in ("de", "en")]
        for shift, path in enumerate(paths):
            rows = [[words[(i + step * j + shift) % len(words)] for j in range(3 + i % 4)] for i in range(number)]
            path.write_text("".join(f"{' '.join(row)}\n" for row in rows), encoding="utf-8")
        files.append([str(path) for path in paths])
    return files[0], files[1]


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["hf_posenc", "lengthen", *arguments])
    __main__.main()


@pytest.mark.slow
def test_one_command_lengthens_a_marian_and_scores_it_before_and_after(tmp_path, monkeypatch, capsys):
    marian = tiny_marian(dtype=torch.float32, d_model=16)
    marian.save_pretrained(tmp_path / "marian")
    Words.tokenizer().save_pretrained(tmp_path / "marian")
    train, test = write_pairs(tmp_path, [f"word{i}" for i in range(2, 20)])
    files = ("--pairs", *train, "--test", *test, "--source-language", "de", "--target-language", "en")
    command = (str(tmp_path / "marian"), *files, "--to", str(tmp_path / "run"), *QUICK)
    run(monkeypatch, *command)
    printed = capsys.readouterr().out
    before, lengthened = (
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "run" / name / "model") for name in ("before", "lengthened")
    )
    torch.testing.assert_close(before.state_dict(), from_transformers(marian).state_dict(), rtol=0, atol=0)
    expected = LENGTHENED["model"]
    assert {name: getattr(lengthened.config, name) for name in expected} == expected
    assert not torch.equal(lengthened.model.shared.weight, before.model.shared.weight)
    results = read_results(tmp_path / "run")
    assert list(results.systems) == ["before", "lengthened", "segmented"]
    assert all(set(system.tests) == {"test", "test-x2"} for system in results.systems.values())
    assert all(name in printed for name in results.systems)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run" / "lengthened" / "model")
    assert len(lengthened.translate(["word3 word4 " * 20], tokenizer, num_beams=1)) == 1
    modified = (tmp_path / "run" / "lengthened" / "model" / "model.safetensors").stat().st_mtime_ns
    run(monkeypatch, *command)  # what is there is not made again
    assert (tmp_path / "run" / "lengthened" / "model" / "model.safetensors").stat().st_mtime_ns == modified


@pytest.mark.slow
def test_a_multilingual_model_reads_and_writes_its_tags(tmp_path, monkeypatch, capsys):
    tokenizer = nllb_tokenizer(tmp_path)
    theirs = tiny_family("m2m_100", vocab_size=len(tokenizer), dtype=torch.float32)
    # So that a random model writes words.
    special = [[token] for token in tokenizer.all_special_ids if token != tokenizer.eos_token_id]
    theirs.generation_config.update(no_repeat_ngram_size=1, bad_words_ids=special)
    theirs.save_pretrained(tmp_path / "nllb")
    tokenizer.save_pretrained(tmp_path / "nllb")
    train, test = write_pairs(tmp_path, ["a", "dog", "sees", "the", "cat", "bird"])
    files = ("--pairs", *train, "--test", *test, "--source-language", "de", "--target-language", "en")
    tags = ("--source-tag", "deu_Latn", "--target-tag", "eng_Latn")
    run(
        monkeypatch,
        str(tmp_path / "nllb"),
        *files,
        *tags,
        "--to",
        str(tmp_path / "run"),
        *QUICK,
    )
    saved = AutoTokenizer.from_pretrained(tmp_path / "run" / "before" / "model")
    assert isinstance(saved, PosEncTokenizer)
    sources = Path(test[0]).read_text(encoding="utf-8").splitlines()
    tokenizer.src_lang = "deu_Latn"
    assert saved([prepend_tag(line, "deu_Latn") for line in sources])["input_ids"] == tokenizer(sources)["input_ids"]
    target = tokenizer.convert_tokens_to_ids("eng_Latn")
    expected = from_transformers(theirs).translate(sources, tokenizer, num_beams=1, forced_bos_token_id=target)
    written = read_translations(SystemPaths(tmp_path / "run" / "before").translation("test"), len(sources))
    assert list(written.texts) == expected and len(set(expected)) > 1


ENGLISH = ["a", "dog", "sees", "the", "cat", "bird"]


@pytest.mark.slow
@pytest.mark.parametrize("separate", [True, *([False] if EVERY_ENCODING else [])], ids=lambda two: f"separate={two}")
@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_opus_mt_is_lengthened_with_its_own_tokenizer(separate, tmp_path, monkeypatch, capsys):
    pytest.importorskip("sentencepiece", reason="MarianTokenizer needs it: pip install sentencepiece")
    folder = tmp_path / "opus-mt"
    folder.mkdir()
    tokenizer = marian_tokenizer(folder, separate)
    ids = {"pad_token_id": tokenizer.pad_token_id, "decoder_start_token_id": tokenizer.pad_token_id}
    target_size = len(tokenizer.target_encoder) if separate else len(tokenizer)
    sizes = {"vocab_size": len(tokenizer), "decoder_vocab_size": target_size, "d_model": 16}
    marian = tiny_marian(dtype=torch.float32, share_encoder_decoder_embeddings=not separate, **sizes, **ids)
    marian.generation_config.update(no_repeat_ngram_size=1, bad_words_ids=[[tokenizer.pad_token_id]])
    marian.save_pretrained(folder)
    train, test = write_pairs(tmp_path, ENGLISH)
    files = ("--pairs", *train, "--test", *test, "--source-language", "de", "--target-language", "en")
    documents = ("score.concatenate=[1, 5]", "--lora", "2")
    run(monkeypatch, str(folder), *files, "--to", str(tmp_path / "run"), *QUICK, *documents)
    printed = capsys.readouterr()
    sources = Path(test[0]).read_text(encoding="utf-8").splitlines()
    expected = from_transformers(marian).translate(sources, tokenizer, num_beams=1)
    written = read_translations(SystemPaths(tmp_path / "run" / "before").translation("test"), len(sources))
    assert list(written.texts) == expected and len(set(expected)) > 1
    saved = AutoTokenizer.from_pretrained(tmp_path / "run" / "lengthened" / "model")
    assert type(saved) is type(tokenizer)
    assert saved(sources)["input_ids"] == tokenizer(sources)["input_ids"]
    before, after = (
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "run" / name / "model").state_dict()
        for name in ("before", "lengthened")
    )
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed and all(name.endswith(("proj.weight", "fc1.weight", "fc2.weight")) for name in changed)
    assert "lengthened: LoRA trains" in printed.err
    paths = SystemPaths(tmp_path / "run" / "lengthened")
    shutil.rmtree(paths.model)  # as a kill between the last step and the saving of the model leaves it
    paths.scores.unlink()
    run(monkeypatch, str(folder), *files, "--to", str(tmp_path / "run"), *QUICK, *documents)
    torch.testing.assert_close(AutoModelForSeq2SeqLM.from_pretrained(paths.model).state_dict(), after, rtol=0, atol=0)
    audits = json.loads((tmp_path / "run" / "audit.json").read_text(encoding="utf-8"))
    assert list(audits) == ["test-x5"] and list(audits["test-x5"]) == ["before", "lengthened", "segmented"]
    for system, audit in audits["test-x5"].items():
        assert audit["all"]["segments"] == 6 and audit["all"]["documents"] == 2
        assert f"| {system} | 6 | {audit['all']['dropped']} |" in printed.out


@pytest.mark.slow
def test_m2m100_is_lengthened_with_its_own_tokenizer_and_languages(tmp_path, monkeypatch, capsys):
    pytest.importorskip("sentencepiece", reason="M2M100Tokenizer needs it: pip install sentencepiece")
    tokenizer = m2m100_tokenizer(tmp_path / "words")
    size = len(tokenizer) + len(tokenizer.lang_code_to_token)
    theirs = tiny_family("m2m_100", vocab_size=size, dtype=torch.float32)
    tags = [[token] for token in tokenizer.lang_token_to_id.values()]  # else a random model writes them
    theirs.generation_config.update(no_repeat_ngram_size=1, bad_words_ids=[[tokenizer.pad_token_id], *tags])
    theirs.save_pretrained(tmp_path / "m2m100")
    tokenizer.save_pretrained(tmp_path / "m2m100")
    train, test = write_pairs(tmp_path, ENGLISH)
    files = ("--pairs", *train, "--test", *test, "--source-language", "de", "--target-language", "en")
    languages = ("--source-tag", "de", "--target-tag", "en")
    run(monkeypatch, str(tmp_path / "m2m100"), *files, *languages, "--to", str(tmp_path / "run"), *QUICK)
    sources = Path(test[0]).read_text(encoding="utf-8").splitlines()
    tokenizer.src_lang = "de"
    target = tokenizer.get_lang_id("en")
    expected = from_transformers(theirs).translate(sources, tokenizer, num_beams=1, forced_bos_token_id=target)
    expected = [text.removeprefix("__en__").strip() for text in expected]  # which M2M-100's decoding keeps
    written = read_translations(SystemPaths(tmp_path / "run" / "before").translation("test"), len(sources))
    assert list(written.texts) == expected and len(set(expected)) > 1
    saved = AutoTokenizer.from_pretrained(tmp_path / "run" / "lengthened" / "model", src_lang="de")
    assert type(saved) is type(tokenizer) and saved(sources)["input_ids"] == tokenizer(sources)["input_ids"]


def test_a_language_that_the_tokenizer_lacks_is_refused_before_anything_is_written(tmp_path):
    tokenizer = nllb_tokenizer(tmp_path)
    tiny_family("m2m_100", vocab_size=len(tokenizer)).config.save_pretrained(tmp_path / "nllb")
    tokenizer.save_pretrained(tmp_path / "nllb")
    job = LengthenJob(str(tmp_path / "nllb"), ["a.de", "a.en"], ["b.tsv"], "de", "en", source_tag="deu_Ltn")
    with pytest.raises(ValueError, match="but it is 'deu_Ltn'; the nearest one is 'deu_Latn'"):
        lengthen(job, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_decoder_only_model_is_refused_before_anything_is_written(tmp_path):
    tiny_causal_config("rotary").save_pretrained(tmp_path / "causal")
    job = LengthenJob(str(tmp_path / "causal"), ["a.de", "a.en"], ["b.tsv"], "de", "en")
    with pytest.raises(ValueError, match=r"needs an encoder-decoder, but .*causal holds a `posenc_causal` model"):
        lengthen(job, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("systems.lengthend.model.window_size=16", "no key 'lengthend'; the nearest one is 'lengthened'"),
        ("systems.lengthened.model.window_size=wide", "window_size must be"),
        ("systems.lengthened.modle.window_size=16", "the nearest one is 'model'"),
    ],
)
def test_a_wrong_override_is_refused_before_anything_is_written(tmp_path, override, said):
    tiny_marian().config.save_pretrained(tmp_path / "marian")
    job = LengthenJob(str(tmp_path / "marian"), ["a.de", "a.en"], ["b.tsv"], "de", "en")
    with pytest.raises(ValueError, match=said):
        lengthen(job, tmp_path / "run", [override])
    assert not (tmp_path / "run").exists()


def test_the_config_has_absolute_names_and_a_wrong_number_of_files_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.de", "a.en", "b.tsv"):
        Path(name).touch()
    job = LengthenJob("owner/model", ["a.de", "a.en"], ["b.tsv"], "de", "en", target_tag="eng_Latn")
    config = job.config()
    assert config["init_from"] == config["data"]["tokenizer"] == "owner/model"
    assert config["data"]["train"] == {"files": [f"{tmp_path}/a.de", f"{tmp_path}/a.en"], "target_tag": "eng_Latn"}
    assert config["data"]["test"] == {"test": {"files": f"{tmp_path}/b.tsv", "target_tag": "eng_Latn"}}
    assert config["data"]["tags"] == ["eng_Latn"] and config["diagnose"] is False
    adapted = LengthenJob("owner/model", ["a.de", "a.en"], ["b.tsv"], "de", "en", lora_rank=8).config()
    assert adapted["systems"]["lengthened"]["train"]["lora_rank"] == 8
    assert "lora_rank" not in config["systems"]["lengthened"]["train"]
    with pytest.raises(ValueError, match=r"two aligned texts, .* but 3 files were given; concatenate"):
        LengthenJob("owner/model", ["a", "b", "c"], ["b.tsv"], "de", "en").config()
