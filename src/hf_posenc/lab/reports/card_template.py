"""The template of model cards: values to Markdown, escaped so that each shows as it is written."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jinja2

from ...encodings.base import Reference
from ...utils.text_io import JsonObject
from ..results.rendering import markdown_block, markdown_code, markdown_text, python_string

TEMPLATE = Path(__file__).with_name("model_card_template.md")
MAX_LINE_LENGTH = 130


def render_card(values: JsonObject) -> str:
    """The card's text, its long lines broken; every value is escaped as Markdown unless it is marked otherwise."""
    filters: dict[str, Callable[..., str]] = {"code": markdown_code, "block": markdown_block, "python": python_string}
    environment = jinja2.Environment(autoescape=True, finalize=escape_markdown)
    environment.filters |= {name: partial(apply_markup, markup) for name, markup in filters.items()}
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return wrap_prose(template.render(values))


class Markdown(str):
    """Text that is Markdown already, which jinja leaves as it is."""

    def __html__(self) -> str:
        return self


def escape_markdown(value: object) -> object:
    return value if hasattr(value, "__html__") else Markdown(markdown_text(value))


def apply_markup(markup_filter: Callable[..., str], value: object, *options: str) -> Markdown:
    """What a filter makes of a value, which is not escaped again."""
    return Markdown(markup_filter(value, *options))


def wrap_prose(text: str) -> str:
    """The text with long lines broken, except in front matter, code and tables; a new line never begins with a mark."""
    lines, in_code = [], False
    head, mark, body = text.partition("\n---\n")
    for line in body.split("\n"):
        in_code ^= line.startswith("```")
        while len(line) > MAX_LINE_LENGTH and not in_code and not line.startswith(("|", "#", "```")):
            breaks = [match.start() for match in re.finditer(r" (?=[A-Za-z`(\[])", line[: MAX_LINE_LENGTH + 1])]
            if not breaks or breaks[-1] < MAX_LINE_LENGTH // 2:
                break
            lines.append(line[: breaks[-1]])
            line = ("  " if lines[-1].startswith(("- ", "  ")) else "") + line[breaks[-1] + 1 :]
        lines.append(line)
    return f"{head}{mark}" + "\n".join(lines)


def bibtex(reference: Reference) -> str:
    """A reference as a BibTeX entry."""
    surnames = re.split(r", | & ", reference.authors.removesuffix(" et al."))
    author = " and ".join([*surnames, "others"] if reference.authors.endswith(" et al.") else surnames)
    key = re.sub(r"\W", "", f"{surnames[0]}{reference.year}{reference.title.split()[0]}").lower()
    fields = {"author": reference.full_authors or author, "title": f"{{{reference.title}}}"}
    fields |= {"howpublished": reference.venue, "year": str(reference.year), "url": reference.url}
    return "\n".join([f"@misc{{{key},", *(f"  {name} = {{{value}}}," for name, value in fields.items() if value), "}"])
