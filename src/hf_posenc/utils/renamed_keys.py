"""Names that changed after 0.2.0: config keys, their values, and flags.

An old name in a config file, an override or a command is refused with the new one. Files of 0.2.0 contain old names, so
that saved settings are translated as they are read (`upgrade_settings`, `upgrade_corpus`). Hashes that decide whether
saved files are reused are computed with the old names (`downgrade_settings`, `downgrade_corpus`). Otherwise every run
would be encoded and trained again.

No name is both old and new in the same table. Therefore translating twice changes nothing.
"""

from collections.abc import Mapping
from typing import TypeVar

from .text_io import JsonObject

T = TypeVar("T")

# Settings as YAML and JSON have them, before and after a translation.
Settings = Mapping[str, object]

# By the dataclass in `config/` whose fields are the keys, and PosEncConfig for `model:`: old name -> new name.
RENAMED_KEYS: Mapping[str, Mapping[str, str]] = {
    "FileKeys": {
        "encodings": "encoding_files",
        "jobs": "num_parallel",
        "output": "output_dir",
        "paper": "reference_table",
        "start_from": "init_from",
        "table": "report_name",
    },
    "SystemKeys": {"boundaries": "segmentation", "split": "segment", "start_from": "init_from"},
    "DataSettings": {
        "allow_shared_pairs": "allow_overlap",
        "flat_lengths": "balance_lengths",
        "folder": "data_dir",
        "licence": "license",
    },
    "CorpusKeys": {"documents": "document_ids", "first": "max_examples", "join": "concatenate"},
    "ScoreSettings": {
        "bertscore_layers": "bertscore_num_layers",
        "bootstrap": "bootstrap_samples",
        "edges": "bucket_edges",
        "per_group": "max_per_bucket",
    },
    "ReferenceTable": {"n": "num_pairs"},
    "PosEncConfig": {
        "length_ratio_least": "length_ratio_min_step"
    },  # as in transformer/, which imports nothing from here
}
# By the new name of the key: old value -> new value.
RENAMED_VALUES: Mapping[str, Mapping[str, str]] = {"segmentation": {"found": "automatic", "known": "gold"}}
# By command of `python -m hf_posenc`: old flag -> what to write.
RENAMED_FLAGS: Mapping[str, Mapping[str, str]] = {
    "attention": {"--to": "--output"},
    "card": {"--repository": "--repo-id"},
    "export": {"--to": "--engine ENGINE --output NEW_FOLDER"},
    "figures": {"--many": "--max-positions", "--to": "--output"},
    "report": {"--to": "--output"},
    "translate": {"--beams": "--num-beams", "--processes": "--num-processes", "--to": "--output"},
}


def validate_current_names(values: Settings, dataclass_name: str, key: str) -> None:
    """A ValueError for the first key or value with an old name; the mapping `values` stands under `key`."""
    prefix = f"{key}." if key else ""
    for old, new in RENAMED_KEYS.get(dataclass_name, {}).items():
        if old in values:
            value = values[old]
            new_value = _rename_value(new, value, RENAMED_VALUES)
            remedy = "rename the key" if new_value == value else f"write {new}: {new_value}"
            raise ValueError(
                f"{prefix}{old} must be given as {prefix}{new}, its new name, but the old name is given, with "
                f"{value!r:.80}; {remedy}."
            )
    for name, renamed in RENAMED_VALUES.items():
        value = values.get(name)
        if isinstance(value, str) and value in renamed:
            raise ValueError(
                f"{prefix}{name} must be one of {', '.join(sorted(renamed.values()))}, but it is {value!r}, an old "
                f"name; write {name}: {renamed[value]}."
            )


def upgrade_settings(saved: Settings) -> JsonObject:
    """The settings of a system (settings.yaml) under the names of today."""
    return _translate_settings(saved, RENAMED_KEYS, RENAMED_VALUES)


def downgrade_settings(settings: Settings) -> JsonObject:
    """The settings of a system under the names of 0.2.0, to hash them as 0.2.0 did."""
    return _translate_settings(settings, _inverse(RENAMED_KEYS), _inverse(RENAMED_VALUES))


def upgrade_corpus(spec: Settings) -> JsonObject:
    """The description of a corpus under the names of today."""
    return _translate_corpus(spec, RENAMED_KEYS)


def downgrade_corpus(spec: Settings) -> JsonObject:
    """The description of a corpus under the names of 0.2.0, to hash it as 0.2.0 did."""
    return _translate_corpus(spec, _inverse(RENAMED_KEYS))


def upgrade_model_fields(fields: Settings) -> JsonObject:
    """The fields of a saved model's config under the names of today."""
    return _rename(fields, RENAMED_KEYS["PosEncConfig"])


def upgrade_value(key: str, value: str) -> str:
    """The new name of a saved value, under the new name of its key."""
    return _rename_value(key, value, RENAMED_VALUES)


def downgrade_value(key: str, value: str) -> str:
    """The name in 0.2.0 of a value, under the new name of its key."""
    return _rename_value(key, value, _inverse(RENAMED_VALUES))


def _translate_settings(
    settings: Settings, keys: Mapping[str, Mapping[str, str]], values: Mapping[str, Mapping[str, str]]
) -> JsonObject:
    """Keys of the system itself, of its sections, and of its corpora; sections may be missing."""
    translated = _rename(settings, keys["SystemKeys"])
    sections = {"data": "DataSettings", "model": "PosEncConfig", "score": "ScoreSettings"}
    for section, dataclass_name in sections.items():
        if section in translated:
            translated[section] = _rename(translated[section], keys[dataclass_name])
    for name in {"split", "segment"} & translated.keys():
        translated[name] = _translate_segment(translated[name], keys, values)
    if "data" in translated:
        data = translated["data"]
        for name in ("train", "validation"):
            if data.get(name) is not None:
                data[name] = _translate_corpus(data[name], keys)
        if "test" in data:
            data["test"] = {name: _translate_corpus(spec, keys) for name, spec in data["test"].items()}
    return translated


def _translate_segment(
    segment: Settings, keys: Mapping[str, Mapping[str, str]], values: Mapping[str, Mapping[str, str]]
) -> JsonObject:
    """`system`, whose name is no value to translate, and the segmentation of its inputs."""
    translated = _rename(segment, keys["SystemKeys"])
    for name in {"boundaries", "segmentation"} & translated.keys():
        translated[name] = _rename_value("segmentation", translated[name], values)
    return translated


def _translate_corpus(spec: Settings, keys: Mapping[str, Mapping[str, str]]) -> JsonObject:
    translated = _rename(spec, keys["CorpusKeys"])
    if translated.get("corpora"):
        translated["corpora"] = [_translate_corpus(corpus, keys) for corpus in translated["corpora"]]
    return translated


def _rename(values: Settings, names: Mapping[str, str]) -> JsonObject:
    return {names.get(name, name): value for name, value in values.items()}


def _rename_value(key: str, value: T, values: Mapping[str, Mapping[str, str]]) -> T | str:
    return values.get(key, {}).get(value, value) if isinstance(value, str) else value


def _inverse(tables: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    inverse = {}
    for table, names in tables.items():
        inverse[table] = {new: old for old, new in names.items()}
    return inverse
