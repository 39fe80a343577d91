"""Names and texts from foreign files: no path leaves its folder, and no markup is interpreted."""

from __future__ import annotations

import ast
import copy
import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard
from matplotlib.figure import Figure
from support.run_folders import RESULT, SETTINGS, TRAINING, change, run_folder

from hf_posenc.__main__ import main as command_line
from hf_posenc.lab.config.loading import load_experiment
from hf_posenc.lab.explorer.html import render_png
from hf_posenc.lab.figures.style import save_figure
from hf_posenc.lab.reports.card import model_card
from hf_posenc.lab.results.records import BucketScore, LengthScores, Score
from hf_posenc.lab.results.rendering import (
    csv_cell,
    latex_text,
    markdown_block,
    markdown_code,
    markdown_text,
    python_string,
    render_csv,
    render_latex,
    render_markdown,
    render_text,
)
from hf_posenc.lab.results.saved_files import read_results
from hf_posenc.lab.results.tables import Table, TableRows
from hf_posenc.utils.run_folder import is_valid_name

HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "a|b",
    "a\\|b",
    "`code`",
    "``` x",
    "[name](https://example.org)",
    "![name][other]",
    "line\n\n# heading\n```\n---",
    "\x1b[31mred\u202e",
    '"]); import os #',
    "$\\frac{1}{$ & % # _ ~ ^ \\input{x}",
    '=HYPERLINK("x")',
    "{{ 7 * 7 }}{% raw %}",
]


@pytest.mark.parametrize("name", ["relative", "2014", "r-1.5_b+c", "Öl", "x" * 100])
def test_names_of_files_are_names(name: str) -> None:
    assert is_valid_name(name)


@pytest.mark.parametrize(
    "name", ["", "..", ".hidden", "-o", "_a", "a/b", "a\\b", "a b", "a\n", "a\0", "~", "$HOME", "x" * 101, "ö" * 51, 7]
)
def test_what_could_be_a_path_is_no_name(name: object) -> None:
    assert not is_valid_name(name)


@pytest.mark.parametrize(
    ("key", "name"),
    [
        *(("systems", name) for name in ("tokenizer", "Tokenizer", "data", "results.json", "table-x.md", "loss.png")),
        *(("data.test", name) for name in ("fall", "paper", "of-test-sets", "../x", "news-by-prediction")),
        ("data.source_language", 'de."], tokenizer)) #'),
    ],
)
def test_a_config_gives_no_name_that_the_run_needs_or_no_file_can_have(tmp_path: Path, key: str, name: str) -> None:
    files = {"files": ["a.de", "a.en"]}
    data = {"source_language": "de", "target_language": "en", "train": files, "test": {"news": files}}
    config: dict[str, Any] = {"name": "x", "data": data, "systems": {"plain": {}}}
    load_experiment(written(tmp_path, config))
    if key == "data.source_language":
        data["source_language"] = name
    else:
        (config["systems"] if key == "systems" else data["test"])[name] = {} if key == "systems" else files
    with pytest.raises(ValueError, match=re.escape(repr(name))):
        load_experiment(written(tmp_path, config))


def written(folder: Path, config: dict[str, Any]) -> Path:
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    return folder / "config.yaml"


RUN = {
    "row": "plain",
    "tokenizer": "3a15",
    "max_length": 40,
    "tests": {
        "news": RESULT | {"beyond": RESULT["buckets"][1] | {"label": "beyond"}, "by_prediction": RESULT["buckets"]},
    },
    "training": TRAINING,
    "loss": {"loss": [[10, 5.0, 3.0]], "eval_loss": [], "eval_bleu": []},
}
RESULTS = {"baseline": "plain", "systems": {"plain": RUN}, "comparisons": {"news": {}}, "reference_table": None}
PAPER = {"source": "Someone (2019)", "test": "news", "num_pairs": None, "rows": {"plain": {"bleu": 30.0}}}


def saved(folder: Path, results: dict[str, Any]) -> Path:
    (folder / "results.json").write_text(json.dumps(results), encoding="utf-8")
    return folder


def renamed(value: Any, old: str, new: str) -> Any:
    if isinstance(value, dict):
        return {new if key == old else key: renamed(one, old, new) for key, one in value.items()}
    if isinstance(value, list):
        return [renamed(one, old, new) for one in value]
    return new if value == old else value


@pytest.mark.parametrize("old", ["news", "plain"])
@pytest.mark.parametrize("new", ["x/../../../README", "../README", "/tmp/README", "a b", "<script>", "fall.md", "data"])
def test_names_in_a_strangers_results_write_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str
) -> None:
    run = tmp_path / "project" / "run"
    run.mkdir(parents=True)
    (tmp_path / "README.md").write_text("mine")
    saved(run, renamed(RESULTS, old, new))
    allowed = old == "news" and new in ("fall.md", "data")
    monkeypatch.setattr("sys.argv", ["hf_posenc", "report", str(run), "--output", str(tmp_path / "to")])
    monkeypatch.setattr("hf_posenc.lab.reports.report_figures.report_figures", lambda *_: [])
    if allowed:
        command_line()
    else:
        with pytest.raises(SystemExit, match=r"run/results\.json .*" + re.escape(repr(new))):
            command_line()
    assert (tmp_path / "README.md").read_text() == "mine"
    assert (tmp_path / "to").exists() == allowed
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "to") == ["README.md", "project"]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("systems", []),
        ("systems", {}),
        ("baseline", "other"),
        ("systems.plain.tests", {}),
        ("systems.plain.tests.news.overall.scores.bleu.value", "31"),
        ("systems.plain.tests.news.overall.scores.bleu.value", float("nan")),
        ("systems.plain.tests.news.overall.n", 10**400),
        ("systems.plain.tests.news.overall.label", "<script>"),
        ("systems.plain.tests.news.buckets", 5),
        ("systems.plain.tests.news.buckets", [7]),
        ("systems.plain.tests.news.signatures", {"bleu": "\x1b[31m"}),
        ("systems.plain.tests.news.truncated", True),
        ("systems.plain.tests.news.beyond", {"other": RESULT["overall"]}),
        ("systems.plain.loss", {"loss": [5], "eval_loss": []}),
        ("systems.plain.diagnostics", {"news": {"decoding": {"groups": [{"label": "<b>"}]}}}),
        ("systems.plain.segment", {"system": "../x", "segmentation": "gold"}),
        ("comparisons", {}),
        ("comparisons.news", {"plain": {"all": {"bleu": {"randomisation": "<b>"}}}}),
        ("reference_table", []),
        ("reference_table", PAPER | {"test": "other"}),
        ("reference_table", PAPER | {"rows": {"other": {"bleu": 1}}}),
        ("reference_table", PAPER | {"source": 7}),
    ],
)
def test_saved_results_of_another_form_are_refused_by_file_and_place(tmp_path: Path, path: str, value: Any) -> None:
    read_results(saved(tmp_path, RESULTS | {"reference_table": PAPER}))
    changed = copy.deepcopy(RESULTS)
    *parents, key = path.split(".")
    inner: Any = changed
    for parent in parents:
        inner = inner[parent]
    inner[key] = value
    with pytest.raises(ValueError, match=r"results\.json .*" + re.escape(parents[-1] if parents else key)):
        read_results(saved(tmp_path, changed))


@pytest.mark.parametrize("whole", ["5", "[1]", "[" * 100_000, '{"systems": ' * 100_000, "{}", "\ud83d"])
def test_what_is_no_json_of_results_is_refused_by_its_file(tmp_path: Path, whole: str) -> None:
    (tmp_path / "results.json").write_bytes(whole.encode(errors="surrogatepass"))
    with pytest.raises(ValueError, match=r"results\.json"):
        read_results(tmp_path)


@pytest.mark.parametrize("hostile", HOSTILE)
def test_markdown_shows_text_and_nothing_else(hostile: str) -> None:
    reader = pytest.importorskip("markdown_it").MarkdownIt("commonmark", {"linkify": False}).enable("table")
    table = Table(["system", hostile], [[hostile, "1"], ["b", hostile]], f"legend {hostile}")
    source = render_markdown(table)
    tokens = reader.parse(source)
    kinds = {token.type for token in tokens}
    assert kinds == {"inline", *(f"{kind}_{end}" for kind in ("table", "thead", "tbody", "tr", "th", "td", "paragraph")
                                 for end in ("open", "close"))}  # fmt: skip
    assert sum(token.type == "td_open" for token in tokens) == 4
    pieces = [piece for token in tokens for piece in token.children or []]
    assert {piece.type for piece in pieces} <= {"text", "text_special", "softbreak"}
    shown = "".join(piece.content for token in tokens[:5] for piece in token.children or [])
    assert " ".join(shown.split()) == "system"
    code = reader.parse(f"x {markdown_code(hostile)} y")
    assert [piece.type for piece in code[1].children or []] == ["text", "code_inline", "text"]
    block = reader.parse(markdown_block(hostile, "yaml") + "\n")
    assert [(token.type, token.content) for token in block] == [("fence", f"{hostile}\n")]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_other_markups_show_text_and_nothing_else(hostile: str) -> None:
    assert ast.literal_eval(python_string(hostile)) == hostile and "\n" not in python_string(hostile)
    assert not re.search(r"(?<!\\)[&%#_]|(?<!\\)\\(input|frac)|\n", latex_text(hostile))
    table = Table(["system", "n"], [[hostile, "1"]], hostile)
    assert len(render_latex(table).splitlines()) == 9 and render_latex(table).count(r" \\") == 2
    assert render_text(table).splitlines()[-1].isprintable()
    group = BucketScore(label="all", low=0, high=None, n=3, scores={"bleu": Score(value=-1.5)})
    tests = {hostile: LengthScores(overall=group, buckets=())}
    (line,) = list(csv.reader(io.StringIO(render_csv(TableRows(scores={hostile: tests})))))[1:]
    assert not any(cell.startswith(("=", "+", "@", "\t", "\r")) for cell in line) and line[8] == "-1.5"
    assert csv_cell("-1+cmd") == "'-1+cmd" and csv_cell(-1.5) == -1.5


def test_scores_look_in_markdown_as_they_did() -> None:
    """No sign of a table is taken for markup."""
    for cell in ("31.7 ±0.5* / 57.9 ±0.6 / 1.02", "news [0,25] n=3 → >100 n=4", "* p < 0.05 against a_b", "x-y.z+1"):
        assert markdown_text(cell) == cell


@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_card_shows_what_files_hold_and_does_nothing(tmp_path: Path, hostile: str) -> None:
    """In its prose, its code for Python, its settings and its metadata."""
    run_folder(tmp_path, license=hostile, tokenizer=hostile, train={"files": [hostile, "b"], "revision": hostile})
    path = tmp_path / "tiny" / "settings.yaml"
    settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    secret = {"deepspeed": "/home/alice/secret/ds.json", "run_name": hostile, "logging_dir": "~/alice/secret"}
    settings |= {"train": settings["train"] | secret, "init_from": hostile}
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    signed = {"news": RESULT | {"signatures": {"bleu": "".join(filter(str.isprintable, hostile)), "ter": None}}}
    change(tmp_path / "tiny" / "scores.json", tests=signed)
    change(tmp_path / "tiny" / "model" / "config.json", transformers_version=hostile)
    made = model_card(tmp_path, "tiny", repository=hostile)
    assert ModelCard(str(made)).data.model_name == hostile
    assert not re.search(r"alice|/home", str(made))
    reader = pytest.importorskip("markdown_it").MarkdownIt("commonmark").enable("table")
    tokens = reader.parse(made.text)
    pieces = [piece for token in tokens for piece in token.children or []]
    assert not {"html_block", "hr"} & {token.type for token in tokens}
    assert not {"html_inline", "image"} & {piece.type for piece in pieces}
    assert [piece for piece in pieces if piece.type == "link_open"] == []
    blocks = [(token.info, token.content) for token in tokens if token.type == "fence"]
    assert [language for language, _ in blocks] == ["python", "python", "yaml", "bibtex"]
    for _, code in blocks[:2]:
        calls = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
        assert len(calls) == 4
        assert [one.args[0].value for one in calls if isinstance(one.args[0], ast.Constant)] == [hostile] * 2
    assert yaml.safe_load(blocks[2][1])["train"]["run_name"] == hostile
    assert yaml.safe_load(blocks[2][1])["train"]["deepspeed"] == "ds.json"


@pytest.mark.parametrize(
    ("section", "changes"),
    [
        ("data", {"source_language": 'de."], tokenizer)) #'}),
        ("data", {"target_language": "<b>"}),
        ("data", {"test": {"../x": {"files": "a.tsv"}}}),
        ("data", {"test": 7}),
        ("data", {"train": {"generator": 7}}),
        ("data", {"max_length": "<b>", "balance_lengths": {}}),
        ("train", {"learning_rate": "<b>"}),
    ],
)
def test_settings_of_another_form_make_no_card(tmp_path: Path, section: str, changes: dict[str, Any]) -> None:
    path = run_folder(tmp_path) / "tiny" / "settings.yaml"
    path.write_text(yaml.safe_dump(SETTINGS | {section: SETTINGS[section] | changes}), encoding="utf-8")
    try:
        made = str(model_card(tmp_path, "tiny"))
    except ValueError as error:
        assert "tiny" in str(error) and "Traceback" not in str(error)
    else:
        assert "<b>" not in made.replace("`<b>`", "")


@pytest.mark.full
@pytest.mark.parametrize(
    "draw", [lambda figure, to: save_figure(figure, to / "a.png"), lambda figure, _: render_png(figure)]
)
def test_no_text_of_a_figure_is_mathematics(tmp_path: Path, draw: Callable[[Figure, Path], object]) -> None:
    """But the powers of ten that matplotlib writes at an axis, when it is drawn again, too."""
    figure = Figure(layout="constrained")
    axes = figure.subplots()
    axes.plot([1, 10, 1000], [1, 2, 3], label=r"a$\nothing$b")
    axes.set_xscale("log")
    axes.set_yticks([1, 2, 3], [r"$\x$", "$", "$y$"])
    figure.suptitle(r"$\frac$")
    figure.legend(handles=axes.get_lines())
    draw(figure, tmp_path)
    draw(figure, tmp_path)
    assert not any(label.get_parse_math() for label in axes.get_yticklabels())
    assert all(label.get_parse_math() for label in axes.get_xticklabels())
