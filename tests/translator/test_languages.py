"""Languages: codes in any standard, and how each family is given them."""

import sys
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from hf_posenc.convert.folders import language_tokens
from hf_posenc.translator.languages import choose_direction, find_code

FIXTURES = Path(__file__).parent / "fixtures"
pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
# As NLLB, mBART-50, M2M-100 and Marian name some of their languages.
CODES = {
    "NLLB": ["deu_Latn", "eng_Latn", "zho_Hans", "zho_Hant", "srp_Cyrl", "arb_Arab", "pes_Arab", "nob_Latn"],
    "mBART": ["de_DE", "en_XX", "zh_CN", "ar_AR", "sr_XX"],
    "M2M": ["de", "en", "zh", "sr", "no", "tl"],
    "Marian": ["deu", "eng", "fra", "cmn_Hans"],
}


@pytest.mark.parametrize("language", ["de", "deu", "ger", "de-DE", "deu_Latn", "de_DE", "DE", "deu-Latn-AT"])
@pytest.mark.parametrize("kind", CODES)
def test_a_code_of_any_standard_names_the_language(language: str, kind: str) -> None:
    assert find_code(language, CODES[kind], "source_language") == CODES[kind][0]


@pytest.mark.parametrize(
    ("language", "kind", "code"),
    [
        ("zh-TW", "NLLB", "zho_Hant"),
        ("zh", "NLLB", "zho_Hans"),
        ("fas", "NLLB", "pes_Arab"),
        ("sr", "NLLB", "srp_Cyrl"),
        ("zho_Hans", "mBART", "zh_CN"),
        ("zh", "Marian", "cmn_Hans"),
    ],
)
def test_the_script_chooses_between_codes_of_one_language(language: str, kind: str, code: str) -> None:
    assert find_code(language, CODES[kind], "target_language") == code


@pytest.mark.parametrize(
    ("language", "message"),
    [
        (
            "dee",
            "target_language must be a language of this model, but it has no 'dee'; the nearest code is 'deu_Latn'",
        ),
        ("", "it has no ''"),
        ("de la", "it has no 'de la'"),
        (None, "target_language must be given for this model; choose one of arb_Arab, deu_Latn"),
    ],
)
def test_a_language_that_the_model_lacks_is_named_with_the_nearest(language: str | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_code(language, CODES["NLLB"], "target_language")


def test_a_code_of_two_languages_of_the_model_is_refused_with_both() -> None:
    with pytest.raises(ValueError, match="may be any of zho_Hans, zho_Hant"):
        find_code("zh-Latn", CODES["NLLB"], "source_language")


def test_a_row_of_underscores_is_no_tag() -> None:
    tokenizer = AutoTokenizer.from_pretrained(FIXTURES / "marian")
    tokenizer.add_tokens(["_____"])
    assert language_tokens(tokenizer) == {}


@pytest.mark.parametrize("model_type", ["marian", "bart", "posenc"])
@pytest.mark.parametrize("code", ["xx", "German", "", "zz_Latn"])
def test_a_code_of_no_language_is_refused_by_a_model_of_one_pair(model_type: str, code: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(FIXTURES / "marian")
    for languages in (("de", code), (code, None)):
        with pytest.raises(ValueError, match=r"_language must be a code of ISO 639 or BCP 47, such as 'de', but it is"):
            choose_direction(model_type, tokenizer, *languages)


@pytest.mark.parametrize(
    ("name", "model_type", "prefix", "source_code", "first_token"),
    [
        ("marian", "marian", "", None, None),
        ("marian_many", "marian", ">>fra<< ", None, None),
        ("m2m_100", "m2m_100", "", "de", "__fr__"),
        ("nllb", "m2m_100", "", "deu_Latn", "fra_Latn"),
        ("mbart", "mbart", "", "de_DE", "fr_XX"),
        ("t5", "t5", "translate German to French: ", None, None),
        ("madlad", "t5", "<2fr> ", None, None),
        ("bart", "bart", "", None, None),
        ("pegasus", "pegasus", "", None, None),
    ],
)
def test_each_family_is_given_its_languages_by_its_own_rule(
    name: str, model_type: str, prefix: str, source_code: str | None, first_token: str | None
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(FIXTURES / name)
    direction = choose_direction(model_type, tokenizer, "deu", "fr-FR")
    assert (direction.source, direction.target) == ("de", "fr-FR")
    assert (direction.prefix, direction.source_code) == (prefix, source_code)
    forced = direction.generate.get("forced_bos_token_id")
    assert first_token is None if forced is None else tokenizer.convert_ids_to_tokens(forced) == first_token


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "langcodes", None)
    with pytest.raises(ValueError, match=r"langcodes must be installed .*hf-posenc\[translate\]"):
        find_code("deu", CODES["mBART"], "source_language")
