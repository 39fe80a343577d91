"""Languages of a translation model: which codes its tokenizer has, and how one is chosen for the source and the target.

A family names a language in its own way: NLLB by `deu_Latn`, mBART by `de_DE`, M2M-100 by `de`, Marian by a token
`>>deu<<` before the source, MADLAD by `<2de>` there. A user may write any of these, and codes of ISO 639 or BCP 47:
codes with the same language, and the same script where the model has several, are the same. The package langcodes has
these tables.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from types import ModuleType
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedTokenizerBase

from ..convert.folders import language_tokens, missing_extra_error

if TYPE_CHECKING:
    from langcodes import Language

T5_LANGUAGES = {"en": "English", "de": "German", "fr": "French", "ro": "Romanian"}  # of its translation prefixes


@dataclass(frozen=True)
class TranslationDirection:
    """How a model is told the languages: text before each source, and options of `generate`.

    `source`, `target`: the codes by BCP 47, None if unknown. `source_code`, `target_code`: the values of the
    tokenizer's `src_lang` and `tgt_lang`.
    """

    source: str | None = None
    target: str | None = None
    prefix: str = ""
    source_code: str | None = None
    target_code: str | None = None
    generate: Mapping[str, Any] = field(default_factory=dict)


def choose_direction(
    model_type: str | None, tokenizer: PreTrainedTokenizerBase, source: str | None, target: str | None
) -> TranslationDirection:
    """The direction for languages that a user names.

    A ValueError, with the nearest code, for a language that the tokenizer lacks, for one that the model needs and that
    was not given, and for a code of no language where the tokenizer has none.
    """
    tags: dict[str, Any] = {"source": standard_tag(source), "target": standard_tag(target)}
    rule = FAMILIES.get(model_type or "", untold)
    return rule(tokenizer, source, target, tags)


def untold(
    tokenizer: PreTrainedTokenizerBase, source: str | None, target: str | None, tags: Mapping[str, Any]
) -> TranslationDirection:
    """Models of one pair of languages, which only segmentation and checks need to know."""
    for language, argument in ((source, "source_language"), (target, "target_language")):
        tag = parse_tag(language) if language is not None else None
        if language is not None and (tag is None or not tag.is_valid()):
            raise ValueError(f"{argument} must be a code of ISO 639 or BCP 47, such as 'de', but it is {language!r}.")
    return TranslationDirection(**tags)


def forced_first_token(
    tokenizer: PreTrainedTokenizerBase, source: str | None, target: str | None, tags: Mapping[str, Any]
) -> TranslationDirection:
    """M2M-100, NLLB and mBART: both languages are tokens, and the translation begins with the target's."""
    token_by_code = language_tokens(tokenizer)
    source_code = find_code(source, token_by_code, "source_language")
    target_code = find_code(target, token_by_code, "target_language")
    first_token = tokenizer.convert_tokens_to_ids(token_by_code[target_code])
    generate = {"forced_bos_token_id": first_token}
    return TranslationDirection(**tags, source_code=source_code, target_code=target_code, generate=generate)


def prefix_token(
    tokenizer: PreTrainedTokenizerBase, source: str | None, target: str | None, tags: Mapping[str, Any]
) -> TranslationDirection:
    """Marian with several targets, and MADLAD: the target's token stands before the source. Others need none."""
    token_by_code = language_tokens(tokenizer)
    if not token_by_code:
        return untold(tokenizer, source, target, tags)
    return TranslationDirection(**tags, prefix=token_by_code[find_code(target, token_by_code, "target_language")] + " ")


def prefix_words(
    tokenizer: PreTrainedTokenizerBase, source: str | None, target: str | None, tags: Mapping[str, Any]
) -> TranslationDirection:
    """T5, whose prefix has the names of its languages; MADLAD is a T5 with tokens."""
    if language_tokens(tokenizer):
        return prefix_token(tokenizer, source, target, tags)
    names = [
        T5_LANGUAGES[find_code(language, T5_LANGUAGES, argument)]
        for language, argument in ((source, "source_language"), (target, "target_language"))
    ]
    return TranslationDirection(**tags, prefix="translate {} to {}: ".format(*names))


FamilyRule = Callable[[PreTrainedTokenizerBase, str | None, str | None, Mapping[str, Any]], TranslationDirection]
FAMILIES: dict[str, FamilyRule] = {
    "m2m_100": forced_first_token,  # NLLB, too
    "nllb-moe": forced_first_token,
    "mbart": forced_first_token,
    "marian": prefix_token,
    "t5": prefix_words,
}


def find_code(language: str | None, codes: Iterable[str], argument: str) -> str:
    """The code among `codes` of a language that may be written in another standard."""
    codes = sorted(codes)
    shown_codes = ", ".join(codes[:12]) + (f" and {len(codes) - 12} more" if len(codes) > 12 else "")
    if language is None:
        raise ValueError(f"{argument} must be given for this model; choose one of {shown_codes}.")
    if language in codes:
        return language
    wanted = parse_tag(language)
    same_language = [code for code in codes if wanted and is_same_language(wanted, parse_tag(code))]
    same_script = [code for code in same_language if wanted and is_same_script(wanted, parse_tag(code))]
    for matches in (same_script, same_language):
        if len(matches) == 1:
            return matches[0]
    if same_language:
        raise ValueError(
            f"{argument} must be one code of this model, but {language!r} may be any of {', '.join(same_language)}; "
            "choose one of them."
        )
    near = get_close_matches(language, codes, n=1, cutoff=0.0)
    raise ValueError(
        f"{argument} must be a language of this model, but it has no {language!r}; the nearest code is "
        f"{near[0] if near else 'missing'!r}, and it has {shown_codes}."
    )


def parse_tag(code: str) -> "Language | None":
    langcodes = import_langcodes()
    try:
        return langcodes.Language.get(code.replace("_", "-"))
    except langcodes.LanguageTagError:
        return None


def import_langcodes() -> ModuleType:
    try:
        import langcodes
    except ImportError:
        raise missing_extra_error("translate", "langcodes") from None
    return langcodes


def script_of(tag: str | None) -> str | None:
    """The script of a language by ISO 15924, such as Latn; None if unknown."""
    language = parse_tag(tag) if tag else None
    return language.maximize().script if language else None


def standard_tag(code: str | None) -> str | None:
    """The code by BCP 47, such as `de` for `deu_Latn`; None for no code, or an unknown one."""
    tag = parse_tag(code) if code else None
    return tag.simplify_script().to_tag() if tag else None


def is_same_language(tag: "Language", other: "Language | None") -> bool:
    """Whether the languages are the same, or one is the main member of the other, such as cmn of zh."""
    return other is not None and main_language(tag) == main_language(other)


def main_language(tag: "Language") -> str | None:
    language: str | None = tag.prefer_macrolanguage().maximize().language
    return language


def is_same_script(tag: "Language", other: "Language | None") -> bool:
    return other is not None and tag.maximize().script == other.maximize().script
