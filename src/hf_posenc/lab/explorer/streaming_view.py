"""Data and HTML of the explorer's tab *Stream*: which source tokens each step of a streamed translation can attend to.

A text is streamed once, a word at a time. The record has every step, hence what the page shows after any word: a word
that comes later changes no earlier step.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from html import escape

import regex
from transformers import AutoConfig

from ...convert.auto_loading import auto_from_pretrained
from ...inference.source_reach import SourceReach
from ...inference.streaming import StreamingTranslator
from ...tokenizer.text import is_blank, validate_utf8
from .html import note_html
from .runs import ExplorerRun, count_source_tokens
from .state import validate_text

MAX_STREAM_CHARACTERS = 2000
LEGEND = (
    ("read", "read, and outside the window"),
    ("reach", "the window's encoder states depend on it"),
    ("window", "in the window: the step attends to it"),
    ("unread", "not read yet"),
)


@dataclass(frozen=True)
class StreamStep:
    """A written target token: its text, the words and source tokens that had been read, and its source position."""

    text: str
    num_words: int
    source_position: float


@dataclass(frozen=True)
class StreamRecord:
    """A streamed translation. `num_read[w]` is the number of source tokens that were read with w words.

    The text has `num_words` words; one more stands for its end.
    """

    source_tokens: tuple[str, ...]
    num_read: tuple[int, ...]
    steps: tuple[StreamStep, ...]
    reach: SourceReach

    @property
    def num_words(self) -> int:
        return len(self.num_read) - 2

    def num_steps(self, num_words: int) -> int:
        """How many target tokens are written when so many words have been read."""
        return sum(step.num_words <= num_words for step in self.steps)


@lru_cache(maxsize=16)
def stream_record(run: ExplorerRun, system: str, text: str) -> StreamRecord:
    """The record of a text; a ValueError for a model that cannot stream, or a text that is empty or too long."""
    if is_blank(validate_text("The text", text, MAX_STREAM_CHARACTERS)):
        raise ValueError("There must be a text to translate, but the box is empty; write or paste one.")
    validate_utf8(text, "the text")
    model, tokenizer = run.load_model(system)
    count_source_tokens(tokenizer, text)
    with run.lock:
        translator = StreamingTranslator(model, tokenizer)
        steps: list[StreamStep] = []
        num_read, words = [0], regex.findall(r"\p{White_Space}*\P{White_Space}+\p{White_Space}*", text)
        for number, word in enumerate(words, 1):
            steps += steps_of(translator, translator.feed_tokens(word), number)
            num_read.append(translator.num_source_tokens)
        steps += steps_of(translator, translator.finish_tokens(), len(words) + 1)
        num_read.append(translator.num_source_tokens)
    tokens = tokenizer.convert_ids_to_tokens(tokenizer([text], truncation=False)["input_ids"][0])
    return StreamRecord(tuple(tokens), tuple(num_read), tuple(steps), translator.reach)


def steps_of(translator: StreamingTranslator, texts: Iterator[str], num_words: int) -> Iterator[StreamStep]:
    """The steps that are taken while the texts of tokens are read. The last text may be of characters held back."""
    while True:
        position, num_before = translator.source_position, translator.num_target_tokens
        if (text := next(texts, None)) is None:
            return
        if text or translator.num_target_tokens > num_before:
            yield StreamStep(text, num_words, position)


def stream_html(record: StreamRecord, num_words: int, step_number: int) -> str:
    """The source and the translation after so many words, with the window of one step; steps count from 1."""
    steps = record.steps[: record.num_steps(num_words)]
    step = steps[step_number - 1] if steps else None
    num_read = record.num_read[num_words]
    source = "".join(
        token_html(token, source_kind(record.reach, index, num_read, step))
        for index, token in enumerate(record.source_tokens)
    )
    target = "".join(token_html(one.text, "window" if one is step else "read") for one in steps if one.text)
    legend = "".join(f"<li>{token_html(kind, kind)} {escape(meaning)}</li>" for kind, meaning in LEGEND)
    parts = [f'<div class="stream" data-words="{num_words}"><h4>Source</h4><p>{source}</p>']
    parts += [f'<h4>Translation so far</h4><p class="written">{target or "(nothing yet)"}</p>']
    parts += [f"<ul>{legend}</ul></div>", note_html(describe_step(record, steps, step, num_read))]
    return "".join(parts)


def source_kind(reach: SourceReach, index: int, num_read: int, step: StreamStep | None) -> str:
    """How a source token is drawn: what it is to the step."""
    if index >= num_read:
        return "unread"
    if step is None:
        return "read"
    first, last = reach.first_key(step.source_position), reach.last_key(step.source_position)
    if first <= index <= last:
        return "window"
    return "reach" if first - reach.encoder_left <= index <= last + reach.encoder_right else "read"


def token_html(token: str, kind: str) -> str:
    return f'<span class="token {kind}">{escape(token)}</span>'


def describe_step(record: StreamRecord, steps: tuple[StreamStep, ...], step: StreamStep | None, num_read: int) -> str:
    """A sentence on the step, and one on the model."""
    model = (
        f"This model reads {record.reach.lookahead} source tokens beyond the source position of a token before it "
        f"writes it; until then the translation waits. Read: {num_read} tokens. Written: {len(steps)}."
    )
    if step is None:
        return model
    when = f"after word {step.num_words}" if step.num_words <= record.num_words else "at the end of the text"
    return f"The marked token was written {when}, at source position {step.source_position:.1f}. {model}"


def default_system(run: ExplorerRun) -> str | None:
    """The first system with an alignment, which alone can stream; else the first one."""
    if not run.trained:
        return next(iter(run.systems), None)
    configs = {system: auto_from_pretrained(AutoConfig, folder) for system, folder in run.model_folders().items()}
    aligned = (name for name, config in configs.items() if getattr(config, "alignment_type", "none") != "none")
    return next(aligned, next(iter(run.systems), None))
