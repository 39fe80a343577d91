"""Validation across the values of a config file. `schema.py` validates each value by itself."""

from collections import Counter
from collections.abc import Iterable

from ...hub.errors import validate_names
from ...metrics.length_buckets.scorers import SCORERS, BertScore
from ...tokenizer.subwords import validate_tags
from ...utils.run_folder import validate_folder_name, validate_name, validate_test_set_names
from ..data.corpus import validate_corpus_spec, validate_corpus_tags
from .schema import Section, validate_fields
from .section_settings import DataSettings, ScoreSettings
from .settings import ReferenceTable, Segmentation, System
from .text_validation import validate_corpus_type, with_one_language


def validate_unique_names(names: Iterable[str], description: str) -> None:
    """Raise a ValueError for a duplicate name, such as one that seeds produce."""
    for name, number in Counter(names).items():
        if number > 1:
            raise ValueError(f"There are two {description} of the name {name!r}; name one of them otherwise.")


def validate_system_name(name: str) -> None:
    validate_folder_name(name, "A system's name")


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
