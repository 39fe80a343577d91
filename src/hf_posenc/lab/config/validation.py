"""Validation across the values of a config file. `schema.py` validates each value by itself.

Systems train on pairs or on plain text. What only the other has is refused.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import pairwise

from ...hub.errors import validate_names
from ...metrics.length_buckets.scorers import SCORERS, BertScore
from ...tokenizer.tokenization_posenc import validate_tags
from ...transformer.configuration_posenc_causal import PosEncCausalConfig
from ...utils.run_folder import validate_name, validate_test_set_names
from ..data.corpus import validate_corpus_spec, validate_corpus_tags
from ..data.readers import CorpusSpec
from .schema import Section, validate_fields
from .settings import DataSettings, ReferenceTable, ScoreSettings, Segmentation, System

# Keys of pairs, which have no effect on plain text.
PAIRS_DATA_KEYS = ("joint_vocabulary", "tags", "normalize", "min_length", "concatenate", "balance_lengths")
PAIRS_SCORE_KEYS = ("concatenate", "max_per_bucket")
# Keys of plain text, which have no effect on pairs.
TEXT_SCORE_KEYS = ("max_context", "stride")
EXAMPLE = "{text: [train.txt]}"  # of a corpus of plain text


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
    refuse_changed(name, "data", PAIRS_DATA_KEYS, data, DataSettings("", "", {}, {}), kinds)
    refuse_changed(name, "score", PAIRS_SCORE_KEYS, system.score, ScoreSettings(), kinds)
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


def validate_unique_names(names: Iterable[str], description: str) -> None:
    """Raise a ValueError for a duplicate name, such as one that seeds produce."""
    for name, number in Counter(names).items():
        if number > 1:
            raise ValueError(f"There are two {description} of the name {name!r}; name one of them otherwise.")


def validate_test_sets(name: str, test_sets: list[str]) -> None:
    """Refuse duplicate names of test sets, and names that are no file names or are reserved."""
    validate_unique_names(test_sets, "test sets")
    validate_test_set_names(test_sets, f"systems.{name}")


def validate_data(name: str, section: Section, shared_embeddings: bool) -> DataSettings:
    """Build the `data` section of a system, with required keys and consistency validated."""
    section_key = f"systems.{name}: data"
    section = with_one_language(section, section_key)
    validate_fields(section, DataSettings, section_key)
    for key in ("source_language", "target_language"):
        validate_name(section[key], f"{section_key}.{key}")
    data = DataSettings(**section)
    try:
        validate_tags(data.tags)
    except ValueError as error:
        raise ValueError(f"{section_key}.tags: {error}") from None
    corpora = {"train": data.train, **{f"test.{test}": corpus for test, corpus in data.test.items()}}
    corpora |= {"validation": data.validation} if data.validation else {}
    for key, corpus in corpora.items():
        validate_corpus_spec(corpus, f"{section_key}.{key}")
        validate_corpus_type(corpus, f"{section_key}.{key}", is_text=data.is_text)
        validate_corpus_tags(corpus, f"{section_key}.{key}", data.tags, is_test=key.startswith("test."))
    if data.min_length and data.max_length and data.min_length > data.max_length:
        raise ValueError(
            f"systems.{name}: no pair can be at least min_length={data.min_length} and at most max_length="
            f"{data.max_length} subwords long; make min_length the smaller one."
        )
    if data.concatenate != [1] and "concatenate" in data.train:
        raise ValueError(
            f"systems.{name}: data.concatenate={data.concatenate} and data.train.concatenate="
            f"{data.train['concatenate']} must not both be set, for both concatenate training pairs; leave one out."
        )
    validate_names(data.allow_overlap, (*data.test, "validation"), f"{section_key}.allow_overlap")
    if not (data.joint_vocabulary or data.tokenizer) and shared_embeddings:
        raise ValueError(
            f"systems.{name}: two vocabularies have no embeddings in common; set data.joint_vocabulary=true or "
            "model.share_encoder_decoder_embeddings=false."
        )
    return data


def validate_segmentation(name: str, segment: Segmentation) -> None:
    """A ValueError unless `segmentation: fixed`, and it alone, has the number of words of a segment."""
    is_fixed = segment.segmentation == "fixed"
    if is_fixed and segment.segment_words is None:
        raise ValueError(
            f"systems.{name}: segmentation: fixed needs the number of words of a segment, but segment_words is "
            "missing; add it, such as segment_words: 20."
        )
    if not is_fixed and (segment.segment_words is not None or segment.overlap_words):
        raise ValueError(
            f"systems.{name}: segment_words and overlap_words belong to segmentation: fixed, but it is "
            f"{segment.segmentation}; leave them out, or set segmentation: fixed."
        )
    if segment.segment_words is not None and segment.overlap_words >= segment.segment_words:
        raise ValueError(
            f"systems.{name}: overlap_words must be less than segment_words, {segment.segment_words}, or segments "
            f"would not move on, but it is {segment.overlap_words}; lower it."
        )


def validate_score(name: str, score: ScoreSettings) -> None:
    """Refuse, before training, a metric whose package or model is missing."""
    if "bertscore" in score.metrics:
        try:
            BertScore(score.bertscore_name_or_path, score.bertscore_num_layers)
        except ValueError as error:
            raise ValueError(f"systems.{name}: score: {error}") from None


def validate_reference_table(section: Section, system: System, rows: list[str]) -> ReferenceTable:
    """Build the published reference table. Its test set, rows and buckets must be those of the run."""
    key = "reference_table"
    validate_fields(section, ReferenceTable, key)
    table = ReferenceTable(**section)
    validate_names([table.test], system.test_sets, f"{key}.test")
    validate_names(table.rows, rows, f"{key}.rows")
    (first_row, metrics), *others = table.rows.items()
    for row, scores in others:
        if scores.keys() != metrics.keys():
            raise ValueError(
                f"All rows of a published table have the same metrics, but {key}.rows.{row} has {', '.join(scores)} "
                f"and {key}.rows.{first_row} has {', '.join(metrics)}; add what is missing, or leave it out of all."
            )
    groups = len(system.score.bucket_edges) + 1
    by_group = isinstance(next(iter(metrics.values())), list)
    columns, coverage = (groups, f"each of the {groups} groups of score.bucket_edges") if by_group else (1, "all pairs")
    for row, scores in table.rows.items():
        validate_names(scores, SCORERS, f"{key}.rows.{row}")
        for metric, value in scores.items():
            numbers = value if isinstance(value, list) else [value]
            if len(numbers) != columns:
                raise ValueError(
                    f"{key}.rows.{row}.{metric} must have a number, or null, for {coverage}, as the first metric of "
                    f"the first row has, but it is {numbers}; write one for each."
                )
    if table.num_pairs is not None and len(table.num_pairs) != columns:
        raise ValueError(
            f"{key}.num_pairs must be a list with the number of pairs of {coverage}, but it is {table.num_pairs}; "
            "write one for each."
        )
    return table
