"""YAML files that extend each other -> one mapping. Knows nothing of what the keys mean, but for corpora and models:
those of another kind replace what stands under them.

By hand, and not by OmegaConf, since it would be as much code around it: it reads `no` as False, merges corpora of two
kinds into one that has both, takes an override without a value, and reads `${` and `???` in a value as its own signs.
"""

from collections.abc import Mapping
from pathlib import Path

from ..data.corpus import CORPUS_TYPES
from ..data.readers import expand_home
from ..modeling.configuration_posenc import PosEncConfig
from .schema import Section, format_value
from .yaml_io import parse_value, read_yaml

SECTIONS = ("data", "model", "train", "score")
MAX_EXTENDS_DEPTH = 50  # of which each extends the one before it


def read_config_file(path: Path) -> Section:
    """A YAML file over the file that it `extends`, or over several, each over those before it."""
    return resolve_extends(path, {}, ())


def resolve_extends(path: Path, resolved_files: dict[Path, Section], extended_by: tuple[Path, ...]) -> Section:
    """As `read_config_file`; `resolved_files` are files that have been read, each once, and
    `extended_by` those that extend this."""
    if (resolved := path.resolve()) in resolved_files:
        return resolved_files[resolved]
    chain = (*extended_by, resolved)
    if resolved in extended_by or len(chain) > MAX_EXTENDS_DEPTH:
        names = " extends ".join(str(file) for file in chain[-3:])
        raise ValueError(
            f"A config file must not extend itself, nor over more than {MAX_EXTENDS_DEPTH} files, but {names}; "
            "take one of the `extends:` out."
        )
    try:
        content = read_yaml(path, "A config file")
    except FileNotFoundError:
        raise FileNotFoundError(f"A config file must exist, but there is none at {path}; correct the path.") from None
    extends = content.pop("extends", None) or []
    parents = [extends] if isinstance(extends, str) else extends
    are_names = isinstance(parents, list) and all(isinstance(parent, str) for parent in parents)
    if not are_names or len(set(parents)) < len(parents):
        raise ValueError(
            f"`extends` must be a file's name or a list of such, each once, but in {path} it is "
            f"{format_value(extends)}; write the name of each file."
        )
    base: Section = {}
    for parent in parents:
        base = merge(base, resolve_extends(path.parent / expand_home(parent), resolved_files, chain))
    resolved_files[resolved] = merge(base, content)
    return resolved_files[resolved]


def merge(base: Section, override: Section) -> Section:
    """Mappings merge key by key, unless the one over the other is of another kind; any other value replaces what was
    there. A section with nothing in it changes nothing: all that stood there may be commented out."""
    if is_different_type(base, override):
        return dict(override)
    merged = dict(base)
    for key, value in override.items():
        if value is None and key in SECTIONS and isinstance(merged.get(key), Mapping):
            continue
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge(merged[key], value) if both else value
    return merged


def is_different_type(base: Section, override: Section) -> bool:
    """Whether what stands under a mapping means nothing to it: pairs from elsewhere, or another type of model."""
    if corpus_types := CORPUS_TYPES.keys() & override.keys():
        return not corpus_types & base.keys()
    return "model_type" in override and override["model_type"] != base.get("model_type", PosEncConfig.model_type)


def parse_override(override: str) -> Section:
    """What `dotted.key=value` of the command line changes, as the mapping that a file would hold."""
    dotted, equals, value = override.partition("=")
    keys = dotted.split(".")
    if not equals or not all(keys):
        raise ValueError(
            f"An override is written dotted.key=value, but it is {override!r}; write for example num_parallel=2."
        )
    if keys[0] == "extends":
        raise ValueError(
            f"`extends` belongs in a config file, but it is given as {override!r}; write a file that holds `extends: "
            "[...]` and give that one's name."
        )
    try:
        nested: Section = {keys[-1]: parse_value(value)}
    except ValueError as error:
        raise ValueError(
            f"An override's value in brackets or quotes is YAML, but that of {override!r} is not: {error}."
        ) from None
    for key in reversed(keys[:-1]):
        nested = {key: nested}
    return nested
