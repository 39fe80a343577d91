"""Validation of the symbols of algorithmic tasks, before training."""

from collections.abc import Iterator

from ..config.settings import System
from ..data.readers import CorpusSpec
from ..data.tasks import generate_task_pairs
from ..data.tokenization import ExperimentTokenizer


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
