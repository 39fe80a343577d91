"""The tokenizer that all systems of a run share: trained on the training text, or an existing one."""

import json
from collections.abc import Iterator
from pathlib import Path

from transformers import AutoTokenizer, MarianConfig, PreTrainedTokenizerBase

from ...convert.encodings import load_config_dict
from ...convert.folders import auto_from_pretrained
from ...tokenizer.tokenization_posenc import PosEncTokenizer
from ...utils.atomic_io import atomic_write, first_difference
from ...utils.manifest import COPY_AGAIN, atomic_delete, explain_read_errors, save_folder, verified, verify_folder
from ...utils.run_folder import RunPaths
from ..config.init_from import INIT_FROM_RULE
from ..config.settings import VOCABULARY_KEYS, System
from ..config.yaml_io import Section
from ..data.readers import CorpusSpec, corpus_file_hashes, resolve_name_or_path
from ..data.tasks import generate_task_pairs
from ..data.tokenization import (
    ExperimentTokenizer,
    adopt_tokenizer,
    load_experiment_tokenizer,
    text_chunks,
    train_tokenizer,
)
from .corpora import languages, read_pairs


def task_pairs(corpus_spec: CorpusSpec) -> Iterator[tuple[list[str], list[str]]]:
    """The inputs and answers, as symbols, of all tasks in a corpus."""
    if (settings := corpus_spec.get("task")) is not None:
        for source, target in generate_task_pairs(**{"pairs": None} | settings):
            yield source.split(), target.split()
    for part in corpus_spec.get("corpora") or []:
        yield from task_pairs(part)


def validate_task_symbols(tokenizer: ExperimentTokenizer, system: System) -> None:
    """Refuse a tokenizer that cuts a symbol of a task into several tokens, so that lengths would not count symbols."""
    data = system.data
    remedy = "raise data.vocab_size (a number that is too large is refused with the one that fits)"
    if data.tokenizer is not None:
        remedy = "leave data.tokenizer out, so that one is trained on the task"
    corpora = {"train": data.train, **{f"test.{name}": corpus_spec for name, corpus_spec in data.test.items()}}
    for key, corpus_spec in corpora.items():
        sources, targets = set(), set()
        for source, target in task_pairs(corpus_spec):
            sources.update(source)
            targets.update(target)
        if not sources:  # no task
            continue
        symbols = [*sorted(sources), *sorted(targets)]
        encoded = [*tokenizer(sorted(sources))["input_ids"], *tokenizer(text_target=sorted(targets))["input_ids"]]
        for symbol, ids in zip(symbols, encoded, strict=True):
            if (length := len(ids) - tokenizer.num_special_tokens_to_add()) > 1:
                raise ValueError(
                    f"Each symbol of a task must be one token, but {symbol!r} of data.{key} is {length} tokens; "
                    f"{remedy}."
                )


# The settings that determine the vocabulary, apart from the training text.
REQUIRED_KEYS = (*VOCABULARY_KEYS, "source_language", "target_language")


def build_shared_tokenizer(paths: RunPaths, system: System) -> None:
    """Train or copy the tokenizer that the settings of `system` describe, unless it is saved already.

    A saved tokenizer of other settings is replaced if no system has used it yet.
    """
    provenance = tokenizer_provenance(system)
    if (saved := read_provenance(paths)) is not None:
        if not paths.has_outputs:
            if saved != provenance:
                atomic_delete(paths.tokenizer)
        else:
            validate_same_vocabulary(saved, provenance, paths.folder)
    if paths.tokenizer.exists():
        return
    tokenizer = build_tokenizer(system)

    def save(temp_path: Path) -> None:
        tokenizer.save_pretrained(temp_path)
        atomic_write(temp_path / paths.tokenizer_provenance.name, json.dumps(provenance, indent=1))

    save_folder(paths.tokenizer, save)


def load_shared_tokenizer(paths: RunPaths) -> ExperimentTokenizer:
    """The tokenizer of a run, saved by `build_shared_tokenizer`."""
    with verified(paths.tokenizer):
        return load_experiment_tokenizer(paths.tokenizer)


def tokenizer_provenance(system: System) -> Section:
    """Everything that the tokenizer is made from."""
    files = corpus_file_hashes(system.data.train, system.data.data_dir)
    vocabulary = {name: getattr(system.data, name) for name in REQUIRED_KEYS}
    return vocabulary | {"train": system.data.train, "files": files}


def read_provenance(paths: RunPaths) -> Section | None:
    """The settings and files that the saved tokenizer was made from, None without a record. A ValueError if one is
    missing."""
    verify_folder(paths.tokenizer)
    path = paths.tokenizer_provenance
    if not path.exists():
        return None
    with explain_read_errors(path):
        saved: Section = {"tags": [], "normalize": {}} | json.loads(path.read_text(encoding="utf-8"))
        if missing := [name for name in REQUIRED_KEYS if name not in saved]:
            raise ValueError(f"it lacks {', '.join(missing)}")
    return saved


def validate_same_vocabulary(saved: Section, provenance: Section, run_folder: Path) -> None:
    """Refuse a vocabulary that differs from the one that systems of the run were trained with. The training text may
    differ."""
    old = {name: saved[name] for name in REQUIRED_KEYS}
    new = {name: provenance[name] for name in REQUIRED_KEYS}
    if difference := first_difference(old, new):
        raise ValueError(
            f"All systems of a run directory have one vocabulary, but for that of {run_folder} {difference}; undo the "
            "change, give the run another name (name=...), or delete the directory."
        )


def build_tokenizer(system: System) -> ExperimentTokenizer:
    """The tokenizer that the settings name, or one trained on the unfiltered training text."""
    data = system.data
    if data.tokenizer is not None:
        name = resolve_name_or_path(data.tokenizer, data.data_dir)
        try:
            tokenizer = adopt_tokenizer(load_pretrained_tokenizer(name))
        except OSError as error:
            raise ValueError(
                f"data.tokenizer must be a folder or the name of a tokenizer on the Hub, but {name} is not, or cannot "
                f"be reached: {error}"
            ) from None
        tokenizer.add_special_tokens({"extra_special_tokens": data.tags})
    elif data.is_text:
        texts = text_chunks(data.train, data.data_dir)
        tokenizer = PosEncTokenizer.train(texts, data.vocab_size, subwords=data.subwords)
    else:
        tokenizer = train_tokenizer(
            read_pairs(data, data.train),
            data.vocab_size,
            **languages(data),
            joint=data.joint_vocabulary,
            subwords=data.subwords,
            tags=data.tags,
        )
    validate_task_symbols(tokenizer, system)
    steps = {side: names for side, names in data.normalize.items() if names}
    if tokenizer.normalization not in ({}, steps):
        raise ValueError(
            f"data.normalize must be the normalization of data.tokenizer, {tokenizer.normalization}, but it is "
            f"{steps}; write the same."
        )
    return tokenizer.with_normalization(**steps) if steps else tokenizer


def load_pretrained_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """A saved tokenizer. MarianMT has no <s>: its decoder starts with <pad>, and its embeddings have no row for another
    token. A ValueError if the tokenizer needs sentencepiece, which is missing."""
    verify_folder(Path(name), COPY_AGAIN)
    try:
        tokenizer = auto_from_pretrained(AutoTokenizer, name)
    except ImportError as error:
        raise ValueError(
            f"The package of a tokenizer must be installed, but that of {name} ({error.name or 'sentencepiece'}) is "
            "missing; run `pip install 'hf-posenc[sentencepiece]'`, in a clone `pip install '.[sentencepiece]'`."
        ) from error
    try:
        model_type = load_config_dict(name, INIT_FROM_RULE, "a model on the Hub")["model_type"]
    except ValueError:  # a tokenizer without a model
        return tokenizer
    if model_type == MarianConfig.model_type and tokenizer.is_fast and tokenizer.bos_token is None:
        tokenizer.bos_token = tokenizer.pad_token
    return tokenizer
