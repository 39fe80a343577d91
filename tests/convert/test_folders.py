"""`convert`: model and tokenizer from folder to folder, with language tags; both directions, by the command line."""

import io
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.causal import tiny_causal_config
from support.family_models import tiny_family
from support.family_tokenizers import (
    M2M100,
    MBART50,
    NLLB,
    TEXTS,
    Multilingual,
    bart_tokenizer,
    m2m100_tokenizer,
    mbart50_tokenizer,
    nllb_tokenizer,
    pegasus_tokenizer,
)
from support.models import tiny_config, translator
from support.tokenizers import ANY_TEXT, SOURCES, TARGETS
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TokenizersBackend,
)

from hf_posenc import PosEncForConditionalGeneration, __main__
from hf_posenc.convert.folders import convert_folder, standalone_tokenizer
from hf_posenc.tokenizer.tokenization_posenc import PosEncTokenizer

SEARCH = {"num_beams": 4, "no_repeat_ngram_size": 1, "max_new_tokens": 12}
TAGGED = {
    "M2M-100": (M2M100, m2m100_tokenizer),
    "NLLB": (NLLB, nllb_tokenizer),
    "mBART-50": (MBART50, mbart50_tokenizer),
}
UNTAGGED = {"BART": ("bart", bart_tokenizer), "Pegasus": ("pegasus", pegasus_tokenizer)}
tagged = pytest.mark.parametrize(("languages", "make_tokenizer"), TAGGED.values(), ids=TAGGED)


def save_checkpoint(folder: Path, model_type: str, make_tokenizer) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A model with its tokenizer, as on the Hub: no language is chosen."""
    if make_tokenizer is m2m100_tokenizer:
        pytest.importorskip("sentencepiece", reason="M2M100Tokenizer needs it: pip install sentencepiece")
    tokenizer = make_tokenizer(folder / "words")
    num_tags = len(getattr(tokenizer, "lang_code_to_token", ()))  # which M2M-100's length does not count
    model = tiny_family(model_type, vocab_size=len(tokenizer) + num_tags, dtype=torch.float32)
    model.generation_config.update(bad_words_ids=[[tokenizer.pad_token_id]])
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, tokenizer


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["hf_posenc", *map(str, arguments)])
    __main__.main()


def translations(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, **options: object) -> list[str]:
    inputs = tokenizer(TEXTS, return_tensors="pt", padding=True)
    ids = model.generate(inputs["input_ids"], attention_mask=inputs["attention_mask"], **SEARCH, **options)
    return tokenizer.batch_decode(ids, skip_special_tokens=True)


@pytest.mark.full
@tagged
def test_the_command_converts_a_multilingual_model_with_its_languages(
    languages: Multilingual, make_tokenizer, tmp_path, monkeypatch, capsys
):
    theirs, tokenizer = save_checkpoint(tmp_path / "theirs", languages.model_type, make_tokenizer)
    tags = ("--source-tag", languages.source, "--target-tag", languages.target)
    run(monkeypatch, "convert", tmp_path / "theirs", "--output", tmp_path / "ours", *tags)
    assert capsys.readouterr().out == f"{tmp_path / 'ours'}\n"
    ours = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours")
    loaded = AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert isinstance(ours, PosEncForConditionalGeneration) and type(loaded) is type(tokenizer)
    tokenizer.src_lang = languages.source
    assert loaded(TEXTS)["input_ids"] == tokenizer(TEXTS)["input_ids"]
    target = tokenizer.convert_tokens_to_ids(languages.target_token)
    assert ours.generation_config.forced_bos_token_id == target != tokenizer.unk_token_id
    expected = translations(theirs, tokenizer, forced_bos_token_id=target)
    assert translations(ours, loaded) == ours.translate(TEXTS, loaded, **SEARCH) == expected
    assert len(set(expected)) > 1
    other = tokenizer.convert_tokens_to_ids(languages.target_token.replace("en", "fr").replace("frg", "fra"))
    assert ours.translate(TEXTS, loaded, forced_bos_token_id=other, **SEARCH) == translations(
        theirs, tokenizer, forced_bos_token_id=other
    )


@pytest.mark.full
@tagged
def test_the_command_converts_back_to_the_same_weights_and_tokenizer(
    languages: Multilingual, make_tokenizer, tmp_path, monkeypatch
):
    theirs, tokenizer = save_checkpoint(tmp_path / "theirs", languages.model_type, make_tokenizer)
    run(monkeypatch, "convert", tmp_path / "theirs", "--output", tmp_path / "ours")
    run(monkeypatch, "convert", tmp_path / "ours", "--output", tmp_path / "back", "--to", "transformers")
    back = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "back")
    assert type(back) is type(theirs)
    before, after = (load_file(tmp_path / folder / "model.safetensors") for folder in ("theirs", "back"))
    for name in [name for name in before if "embed_positions" in name]:
        before[name], after[name] = before[name][2:], after[name][2:]
    torch.testing.assert_close(after, before, rtol=0, atol=0)
    assert AutoTokenizer.from_pretrained(tmp_path / "back")(TEXTS)["input_ids"] == tokenizer(TEXTS)["input_ids"]


@pytest.mark.full
@pytest.mark.parametrize(("model_type", "make_tokenizer"), UNTAGGED.values(), ids=UNTAGGED)
def test_a_tokenizer_without_languages_goes_along(model_type, make_tokenizer, tmp_path):
    theirs, tokenizer = save_checkpoint(tmp_path / "theirs", model_type, make_tokenizer)
    convert_folder(tmp_path / "theirs", tmp_path / "ours")
    loaded = AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert type(loaded) is type(tokenizer)
    assert loaded(TEXTS)["input_ids"] == tokenizer(TEXTS)["input_ids"]
    ours = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours")
    assert ours.translate(TEXTS, loaded, **SEARCH) == translations(theirs, tokenizer)
    with pytest.raises(ValueError, match=r"a tokenizer with tags, but 'de' was given and \w+ has none; leave"):
        convert_folder(tmp_path / "theirs", tmp_path / "other", source_tag="de")


@pytest.mark.full
def test_the_command_takes_encodings_and_a_converted_folder_translates(tmp_path, monkeypatch, capsys):
    save_checkpoint(tmp_path / "theirs", "m2m_100", nllb_tokenizer)
    fields = ("position_encoding_type=relative+window", "window_size=3", "dropout=0.2")
    tags = ("--source-tag", "deu_Latn", "--target-tag", "eng_Latn")
    run(monkeypatch, "convert", tmp_path / "theirs", *fields, "--output", tmp_path / "ours", *tags)
    config = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours").config
    assert (config.position_encoding_type, config.window_size, config.dropout) == ("relative+window", 3, 0.2)
    capsys.readouterr()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO("\n".join(TEXTS).encode()))))
    run(monkeypatch, "translate", tmp_path / "ours", "--num-beams", "1")
    assert len(capsys.readouterr().out.splitlines()) == len(TEXTS)


# What is refused


def test_what_cannot_be_converted_is_refused_before_any_weight_is_read(tmp_path):
    _, tokenizer = save_checkpoint(tmp_path / "theirs", "m2m_100", nllb_tokenizer)
    (tmp_path / "theirs" / "model.safetensors").unlink()
    for options, said in (
        ({"target_tag": "eng_Ltn"}, "one of the tokenizer's, but it is 'eng_Ltn'; the nearest one is 'eng_Latn'"),
        ({"to": "marian"}, "`to` must be one of posenc, transformers, but it is 'marian'"),
        ({"windw_size": 3}, "'windw_size' is no field of PosEncConfig; the nearest one is 'window_size'"),
        ({"d_model": 32}, "`d_model` must be the trained model's, 16"),
    ):
        with pytest.raises(ValueError, match=said):
            convert_folder(tmp_path / "theirs", tmp_path / "new", **options)
    with pytest.raises(ValueError, match=r"must be new, but .*theirs exists; choose another"):
        convert_folder(tmp_path / "theirs", tmp_path / "theirs")
    tiny_family("m2m_100").config.save_pretrained(tmp_path / "theirs")
    with pytest.raises(ValueError, match=rf"this tokenizer has {len(tokenizer)} source tokens and the model 29; load"):
        convert_folder(tmp_path / "theirs", tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.full
def test_a_model_that_transformers_lacks_is_refused_before_anything_is_written(tmp_path, tokenizer: PosEncTokenizer):
    translator("relative", dtype=torch.float32).save_pretrained(tmp_path / "ours")
    tokenizer.save_pretrained(tmp_path / "ours")
    with pytest.raises(ValueError, match=r"has position_encoding_type=.*, but this model has .*'relative'; save it"):
        convert_folder(tmp_path / "ours", tmp_path / "new", to="transformers")
    tiny_causal_config("rotary", vocab_size=len(tokenizer)).save_pretrained(tmp_path / "causal")
    tokenizer.save_pretrained(tmp_path / "causal")
    with pytest.raises(ValueError, match=r"for encoder-decoders, but .*causal holds a `posenc_causal` model; convert"):
        convert_folder(tmp_path / "causal", tmp_path / "new", to="transformers")
    assert not (tmp_path / "new").exists()


SIDES = {
    "one vocabulary": {},
    "unigrams": {"subwords": "unigram"},
    "tags": {"tags": ["<2en>", "<2de>"]},
    "two vocabularies": {"target_texts": TARGETS},
}
STEPS = {
    "as written": {},
    "both sides": {"source": ["lowercase"], "target": ["lowercase"]},
    "source": {"source": ["lowercase"]},
}


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("kind", SIDES)
def test_transformers_alone_reads_the_tokenizer_as_this_package_does_or_it_is_refused(kind, steps, tmp_path):
    tokenizer = PosEncTokenizer.train(SOURCES, 380, **SIDES[kind]).with_normalization(**STEPS[steps])
    config = tiny_config("sinusoidal", vocab_size=len(tokenizer), decoder_vocab_size=tokenizer.target_vocab_size)
    config.save_pretrained(tmp_path / "ours")
    tokenizer.save_pretrained(tmp_path / "ours")
    if steps == "source" or kind == "two vocabularies":
        with pytest.raises(
            ValueError, match=r"transformers alone reads one tokenizer .*ours has a .* for each; convert"
        ):
            convert_folder(tmp_path / "ours", tmp_path / "new", to="transformers")
        assert not (tmp_path / "new").exists()
        return
    standalone_tokenizer(tokenizer).save_pretrained(tmp_path / "new")
    theirs = TokenizersBackend.from_pretrained(tmp_path / "new")
    assert type(theirs) is TokenizersBackend
    texts = [*ANY_TEXT, "<2en> Das Haus.", "das <2de> Haus </s>"]
    expected = tokenizer(texts, text_target=texts)
    assert theirs(texts)["input_ids"] == expected["input_ids"]
    assert theirs(text_target=texts)["input_ids"] == expected["labels"]
    decoded = [each.batch_decode(expected["labels"], skip_special_tokens=True) for each in (theirs, tokenizer)]
    assert decoded[0] == decoded[1]
