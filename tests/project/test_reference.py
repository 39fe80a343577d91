"""The reference pages: what is generated is current, and covers every key, flag, field, name, encoding and message."""

import argparse
import ast
import re
import runpy
import sys
from pathlib import Path

import pytest

import hf_posenc
from hf_posenc import ALIGNMENTS, POSITION_ENCODINGS, PosEncCausalConfig, PosEncConfig, RnnNmtConfig
from hf_posenc.lab.config import file_keys, settings
from hf_posenc.lab.config.errors import Keys
from hf_posenc.lab.config.file_keys import model_keys
from hf_posenc.lab.results.tables import SCORE_FORMATS
from hf_posenc.metrics.length_buckets import length_buckets
from hf_posenc.metrics.length_buckets.scorers import SCORERS

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs"))
from formulas import formula_html, line_html  # noqa: E402

REFERENCE = ROOT / "docs" / "reference"
ENCODINGS = REFERENCE / "encodings"
PAGES = runpy.run_path(str(ROOT / "docs" / "reference_pages.py"))
MESSAGES = re.findall(r"```text\n(.*?)\n```", (REFERENCE / "faq.md").read_text(encoding="utf-8"), re.DOTALL)


def is_model(value: object) -> bool:
    """Whether it is a model of the keys of a config file; the fields of `model` have a page of their own."""
    return isinstance(value, type) and issubclass(value, Keys) and value not in (Keys, file_keys.ModelKeys)


def keys_of(table: str) -> set[str]:
    """The last part of each name in code that stands in the first cells of a Markdown table."""
    first_cells = re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE)
    return {name.rpartition(".")[2] for cell in first_cells for name in re.findall(r"`([\w.]+)`", cell)}


def test_stored_parts_are_current() -> None:
    texts = {page: page.read_text(encoding="utf-8") for page in REFERENCE.rglob("*.md")}
    stale = [page for page, text in texts.items() if text != PAGES["refreshed"](text)]
    assert stale == [], "Run `python docs/reference_pages.py`."
    stored = {page.stem: text for page, text in texts.items() if page.parent == ENCODINGS and page.stem != "index"}
    made = {name: PAGES["encoding_page"](name) for name in PAGES["encoding_words"]()}
    assert stored.keys() == made.keys()
    assert [name for name in made if stored[name] != made[name]] == [], "Run `python docs/reference_pages.py`."


def test_the_page_of_every_encoding_is_in_the_navigation() -> None:
    pages = re.findall(r"reference/encodings/(\w+)\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert pages == ["index", *POSITION_ENCODINGS]


def test_a_formula_becomes_html() -> None:
    html = line_html("score(i, j) = q_i . (k_j + aK[d]) / sqrt(K) - 2^(-8h/H) where j <= `window_size`, a number")
    i, j, heads, minus = "<i>i</i>", "<i>j</i>", "8<i>h</i>/<i>H</i>", "\N{MINUS SIGN}"
    assert html == (
        f"score({i}, {j}) = <i>q</i><sub>{i}</sub> · (<i>k</i><sub>{j}</sub> + <i>a</i><sup><i>K</i></sup>[<i>d</i>])"
        f" / √(<i>K</i>) {minus} 2<sup>{minus}{heads}</sup> where {j} ≤ <code>window_size</code>, a number"
    )


def test_no_formula_keeps_marks_of_plain_text_or_loses_a_word() -> None:
    for name, entry in POSITION_ENCODINGS.items():
        formula = entry.formula or ""
        html = formula_html(formula)
        text = re.sub(r"<code>\w+</code>", "", html)
        assert not re.search(r"[_^`]|sqrt|&lt;-|&lt;=|\b(?:theta|delta|tau|psi|pi|sum)\b", text), name
        opened, closed = (sorted(re.findall(pattern, html)) for pattern in (r"<(\w+)>", r"</(\w+)>"))
        assert [tag for tag in opened if tag != "br"] == closed, name
        shown, written = (set(re.findall(r"[A-Za-z]{5,}", words)) for words in (re.sub("<.*?>", "", html), formula))
        assert shown == written - {"theta", "delta"}, name


def test_every_part_stands_in_one_page() -> None:
    pages = [page.read_text(encoding="utf-8") for page in REFERENCE.rglob("*.md")]
    marks = re.findall(r"<!-- (?:generated|site): (\w+) -->", "\n".join(pages))
    assert sorted(marks) == sorted(PAGES["PARTS"])
    assert "<!-- site:" not in PAGES["completed"]("<!-- site: cli -->")


def test_every_key_of_a_config_file_is_listed_with_its_meaning() -> None:
    rows = list(PAGES["config_key_rows"]())
    schemas = {model for module in (file_keys, settings) for model in vars(module).values() if is_model(model)}
    assert set(PAGES["SCHEMAS"].values()) == schemas
    expected = {name for schema in schemas for name in schema.model_fields} | {"extends"}
    assert keys_of(PAGES["config_keys"]()) == expected
    assert all(kind and meaning for _, kind, _, meaning in rows)
    assert len({key for key, *_ in rows}) == len(rows)


def test_every_field_of_the_models_is_listed() -> None:
    expected = {key for cls in (PosEncConfig, PosEncCausalConfig, RnnNmtConfig) for key in model_keys(cls)}
    assert keys_of(PAGES["model_config"]()) == expected


def test_every_command_and_flag_is_listed() -> None:
    parsers, text = PAGES["command_parsers"](), PAGES["cli"]()
    assert len(parsers) > 9
    for name, parser in parsers.items():
        section = text.partition(f"## {name}\n")[2].partition("\n## ")[0]
        shown = [action for action in parser._actions if action.help != argparse.SUPPRESS]
        assert shown and [flag for action in shown for flag in action.option_strings if flag not in section] == []


def test_every_public_name_is_listed() -> None:
    assert re.findall(r"^## (.+)$", PAGES["api"](), re.MULTILINE) == hf_posenc.__all__


def test_every_encoding_has_its_words() -> None:
    """Of an encoding that a saved table has, the page shows the row; each figure is one of the gallery."""
    words = PAGES["encoding_words"]()
    assert list(words) == list(POSITION_ENCODINGS)
    for said in words.values():
        needed = {"title", "claim", "verdict", "failures"} | (
            {"evidence"} if said["verdict"] != "not tested" else set()
        )
        assert needed <= said.keys()
        assert said.keys() <= {"title", "claim", "verdict", "evidence", "failures", "rows", "figure"}
        assert said["verdict"] in PAGES["VERDICTS"]
        assert "figure" not in said or (ROOT / "docs" / "gallery" / said["figure"]).exists()


def test_the_page_of_an_encoding_is_complete(subtests: pytest.Subtests) -> None:
    """One without a verdict need not have results."""
    words = PAGES["encoding_words"]()
    for name, entry in POSITION_ENCODINGS.items():
        with subtests.test(name):
            page = PAGES["encoding_page"](name)
            assert entry.summary in page
            assert all(f"| `{parameter.name}` |" in page for parameter in entry.config_parameters)
            assert all(str(reference) in page for reference in entry.references)
            if words[name]["verdict"] != "not tested":
                assert "None saved." not in page and "time over `none`" in page
            assert ("## Formula" in page) == bool(entry.formula)


def test_every_metric_is_described(subtests: pytest.Subtests) -> None:
    titles = {name: title for name, title, _ in SCORE_FORMATS}
    page = (REFERENCE / "metrics.md").read_text(encoding="utf-8").lower()
    card = Path(length_buckets.__file__).with_name("README.md").read_text(encoding="utf-8")
    for metric in SCORERS:
        with subtests.test(metric):
            assert titles[metric].lower() in page
            assert f'`"{metric}"`' in card and f"`{metric}`" in card
            assert f'"{metric}"' in length_buckets.INPUTS_DESCRIPTION


def test_every_alignment_is_in_the_table() -> None:
    assert keys_of(PAGES["alignments"]()) == set(ALIGNMENTS)


@pytest.mark.full
def test_every_message_of_the_faq_is_one_of_ours() -> None:
    """What stands between the dots of a quoted message stands, in this order, in a string of the package."""
    strings, others = strings_of_the_package(), []
    for message in MESSAGES:
        pieces = [re.escape(piece) for piece in re.split(r"\s*\.\.\.\s*", message) if piece]
        pattern = re.compile(".*".join(pieces), re.DOTALL)
        if not any(pattern.search(text) for text in strings):
            others.append(message)
    assert MESSAGES and others == []


def strings_of_the_package() -> list[str]:
    """Each text in the source; of a formatted one the constant parts, with dots between them."""
    found = []
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                found.append(
                    "".join(str(part.value) if isinstance(part, ast.Constant) else "..." for part in node.values)
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


def test_each_term_of_the_glossary_stands_once_and_in_order() -> None:
    rows = re.findall(
        r"^\| (?!term|---)(.+?) \|", (REFERENCE / "glossary.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert len(rows) > 30 and rows == sorted(set(rows), key=str.lower)
