"""What a reader of the start and how-to pages runs: it exists, it loads, and the tutorial works from top to bottom."""

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from hf_posenc.lab import cli
from hf_posenc.lab.config.loading import load_experiment

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
HOW_TO = sorted((DOCS / "howto").glob("*.md"))
NOTEBOOK = runpy.run_path(str(DOCS / "tutorial_notebook.py"))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^(?: {4}|> )?(?:pip install \S+ && |cat \S+ \| )?((?:python|hf-posenc) .*)$", re.MULTILINE)


def commands(page: Path) -> list[str]:
    """The `python` and `hf-posenc` commands of a page, without their comments."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    return [command.partition("  #")[0].strip() for command in COMMAND.findall(text)]


@pytest.mark.full
def test_the_readme_states_the_largest_difference_between_whole_and_segmented_documents(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(DOCS)  # for the other scripts that it imports
    script = runpy.run_path(str(DOCS / "documents_figure.py"))
    records = script["read_scores"]()
    whole, segmented = (script["bleu_by_length"](records[name]) for name in ("aligned-100", "aligned-100-split"))
    pairs = [pair for seeds in zip(whole, segmented, strict=True) for pair in zip(*seeds, strict=True)]
    assert len(pairs) == 4 * 3, "lengths and seeds"
    largest = max(abs(one - other) for one, other in pairs)
    longest = max(abs(one - other) for one, other in pairs[-3:])
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"(?:within|at most)\s+([\d.]+)\s+BLEU", text) == [f"{longest:.2f}", f"{largest:.2f}"]


def test_the_notebook_has_the_cells_of_the_page() -> None:
    page = (DOCS / "start" / "tutorial.md").read_text(encoding="utf-8")
    stored = json.loads(NOTEBOOK["NOTEBOOK"].read_text(encoding="utf-8"))
    for cell in NOTEBOOK["code_cells"](stored):
        cell |= {"outputs": [], "execution_count": None}
    assert stored == NOTEBOOK["notebook"](page), "Run `python docs/tutorial_notebook.py`."


def test_the_outputs_of_the_notebook_are_those_that_the_page_quotes() -> None:
    cells = NOTEBOOK["code_cells"](json.loads(NOTEBOOK["NOTEBOOK"].read_text(encoding="utf-8")))
    outputs = [output for cell in cells for output in cell["outputs"]]
    missing = "Run `python docs/tutorial_notebook.py --run`."
    assert [bool(cell["outputs"]) for cell in cells] == [False, *[True] * (len(cells) - 1)], missing
    assert {output["output_type"] for output in outputs} == {"stream", "execute_result"}
    printed = " ".join(" ".join(line for output in outputs for line in output.get("text", [])).split())
    page = (DOCS / "start" / "tutorial.md").read_text(encoding="utf-8")
    table = (DOCS / "results" / "quickstart" / "table-generated.md").read_text(encoding="utf-8")
    for quoted in (table, *(block for language, block in BLOCK.findall(page) if language == "text")):
        assert " ".join(quoted.split()) in printed


def test_a_cell_shows_what_it_prints_and_its_last_value() -> None:
    namespace: dict[str, object] = {}
    assert NOTEBOOK["run_python"]("number = 2\nprint(number)\nnumber + 1", namespace) == ("2\n", 3)
    assert NOTEBOOK["run_python"]("number += 1", namespace) == ("", None)
    assert NOTEBOOK["shown"](3) == {"text/plain": "3"}


def test_the_config_files_of_the_how_to_pages_load(subtests: pytest.Subtests, tmp_path: Path) -> None:
    for page in HOW_TO:
        for number, (language, block) in enumerate(BLOCK.findall(page.read_text(encoding="utf-8"))):
            if language == "yaml":
                path = tmp_path / f"{page.stem}-{number}.yaml"
                path.write_text(block.replace("extends: configs", f"extends: {ROOT}/configs"), encoding="utf-8")
                with subtests.test(page.stem):
                    assert load_experiment(path).systems


def test_a_how_to_page_is_short_and_links_to_others() -> None:
    texts = {page.stem: page.read_text(encoding="utf-8") for page in HOW_TO}
    lines = {name: len(text.splitlines()) for name, text in texts.items()}
    assert [name for name, text in texts.items() if not 30 <= lines[name] <= 90 or "](../" not in text] == []


def test_the_commands_of_the_pages_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts, subcommands and flags."""
    pages = [ROOT / "README.md", *sorted((DOCS / "start").glob("*.md")), *HOW_TO]
    monkeypatch.setenv("COLUMNS", "200")
    _, parsers = cli.make_parsers()
    found = set()
    for command in sorted({command for page in pages for command in commands(page)}):
        program, name, *arguments = command.replace("python train.py", "hf-posenc train").split()
        if program == "python":
            assert name == "-m" or (ROOT / name).is_file(), command
            continue
        found.add(name)
        flags = [argument for argument in arguments if argument.startswith("--")]
        assert [flag for flag in flags if flag not in parsers[name].format_help()] == [], command
    assert len(found) >= 9, "too few commands were found; mend COMMAND"


@pytest.mark.slow
def test_the_tutorial_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block as it stands, but for smaller and fewer data and steps."""
    smaller = (
        "configs/quickstart.yaml train.max_steps=4 train.save_steps=4 "
        "'data.train.corpora=[{generator: {seed: 1, pairs: 400, min_words: 6, max_words: 24}}]' "
        "data.test.generated.generator.pairs=6 data.test.generated.generator.max_words=30 score.bootstrap_samples=100 "
        "score.max_new_tokens=12 model.d_model=16 model.encoder_layers=1 model.decoder_layers=1 num_parallel=1"
    )
    for name in ("train.py", "configs"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    blocks = BLOCK.findall((DOCS / "start" / "tutorial.md").read_text(encoding="utf-8"))
    assert {language for language, _ in blocks} == {"bash", "python", "text"}, "text is output"
    for language, block in blocks:
        if language == "text":
            continue
        if language == "python":
            exec(block, namespace)
            continue
        command = block.strip().replace("configs/quickstart.yaml", smaller)
        assert command.startswith("python ") and smaller in command
        done = subprocess.run(
            f"{sys.executable} {command.removeprefix('python ')}", shell=True, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[-4000:]
    systems = {"sinusoidal", "relative", "aligned", "rotary"}
    assert systems <= {path.name for path in (tmp_path / "runs" / "quickstart").iterdir()}
