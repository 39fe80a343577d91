"""Validation of systems that train on plain text. What only pairs have is refused."""

from collections.abc import Iterable, Mapping
from itertools import pairwise

from ...transformer.configuration_posenc_causal import PosEncCausalConfig
from ..data.readers import CorpusSpec
from .schema import Section
from .section_settings import DataSettings, ScoreSettings
from .settings import System

# Keys of pairs, which have no effect on plain text.
DATA_KEYS = ("joint_vocabulary", "tags", "normalize", "min_length", "concatenate", "balance_lengths")
SCORE_KEYS = ("concatenate", "max_per_bucket")
# Keys of plain text, which have no effect on pairs.
TEXT_SCORE_KEYS = ("max_context", "stride")
EXAMPLE = "{text: [train.txt]}"


def with_one_language(section: Section, key: str) -> Section:
    """The section `data` with the language of plain text as that of both sides. A ValueError without it."""
    train = section.get("train")
    if not isinstance(train, Mapping) or train.get("text") is None:
        if section.get("language") is not None:
            raise ValueError(
                f"{key}.language is that of plain text, but data.train has pairs; write source_language and "
                f"target_language, or train on {EXAMPLE}."
            )
        return section
    if both := [name for name in ("source_language", "target_language") if section.get(name) is not None]:
        raise ValueError(f"{key}: plain text has one language, but {' and '.join(both)} is given; write language.")
    if section.get("language") is None:
        raise ValueError(f"{key} needs language; add it, such as language: en, under `data:`.")
    return section | dict.fromkeys(("source_language", "target_language"), section["language"])


def validate_corpus_type(corpus_spec: CorpusSpec, key: str, *, is_text: bool) -> None:
    """Raise a ValueError for pairs where the training corpus is plain text, or plain text where it has pairs."""
    specs = [corpus_spec, *(corpus_spec.get("corpora") or [])]
    if is_text and corpus_spec.get("text") is None:
        raise ValueError(
            f"{key} must be plain text as data.train is, but it holds {', '.join(corpus_spec)}; write {EXAMPLE}, or "
            "train on pairs."
        )
    if not is_text and any(spec.get("text") is not None for spec in specs):
        raise ValueError(
            f"{key} must have pairs as data.train has, but it is plain text; write for example "
            "{files: [test.de, test.en]}, or train on plain text alone."
        )


def validate_text_system(system: System) -> None:
    """Raise a ValueError unless a system on plain text is a decoder-only model with a block length, without keys of
    pairs, and with windows that its encoding can represent."""
    name, data, model_type = system.name, system.data, system.config_class.model_type
    if system.is_encoder_decoder:
        raise ValueError(
            f"systems.{name}: plain text is for decoder-only models, but model_type is {model_type}, an "
            f"encoder-decoder; set model.model_type={PosEncCausalConfig.model_type}, or train on pairs."
        )
    if data.max_length is None:
        raise ValueError(
            f"systems.{name}: plain text is cut into blocks of data.max_length tokens, but it is left out; set it to "
            "the training length, such as 256."
        )
    kinds = "pairs", "is plain text"
    refuse_changed(name, "data", DATA_KEYS, data, DataSettings("", "", {}, {}), kinds)
    refuse_changed(name, "score", SCORE_KEYS, system.score, ScoreSettings(), kinds)
    if system.train.get("predict_with_generate"):
        raise ValueError(
            f"systems.{name}: train.predict_with_generate translates pairs, but data.train is plain text; leave it out."
        )
    validate_windows(system, data.max_length)


def validate_pairs_system(system: System) -> None:
    """Raise a ValueError for keys of plain text in a system on pairs."""
    refuse_changed(system.name, "score", TEXT_SCORE_KEYS, system.score, ScoreSettings(), ("plain text", "has pairs"))


def refuse_changed(
    name: str, section: str, keys: Iterable[str], values: object, defaults: object, kinds: tuple[str, str]
) -> None:
    """Raise a ValueError for a key that does not have its default; `kinds` say what it is for, and what is there."""
    of, train = kinds
    for key in keys:
        if (value := getattr(values, key)) != getattr(defaults, key):
            raise ValueError(
                f"systems.{name}: {section}.{key} is of {of}, but data.train {train} and {section}.{key} is {value!r}; "
                "leave it out."
            )


def validate_windows(system: System, block_length: int) -> None:
    """Raise a ValueError for context lengths that do not fill each other, or that an encoding has no table for."""
    name, score, contexts = system.name, system.score, system.score.context_lengths
    for shorter, longer in pairwise(contexts):
        if longer <= shorter or longer % shorter:
            raise ValueError(
                f"systems.{name}: each context length must be a multiple of the one before, so that all windows hold "
                f"the same tokens, but score.bucket_edges and score.max_context give {contexts}; write for example "
                f"bucket_edges={[block_length * factor for factor in (1, 2, 4, 8)]}."
            )
    if score.stride is not None and score.stride > block_length:
        raise ValueError(
            f"systems.{name}: score.stride must be at most data.max_length, {block_length}, so that windows leave no "
            f"token out, but it is {score.stride}; lower it."
        )
    config = system.model_config(vocab_size=system.data.vocab_size)
    assert isinstance(config, PosEncCausalConfig)
    longest = max(block_length, contexts[-1])
    if (max_length := config.max_sequence_length) is not None and longest > max_length:
        raise ValueError(
            f"systems.{name}: its encoding tells {max_length} positions apart, but the longest context has {longest} "
            "tokens; raise its table (such as model.learned_max_positions), or lower score.bucket_edges and "
            "score.max_context."
        )
