"""The tables of what works: those of the saved outcomes; a run of some tests keeps the other outcomes."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import capabilities
from capabilities import Cell, Outcomes

BEFORE = {"LoRA": {"alibi": "yes", "lstm": "yes"}, "packed": {"alibi": "yes", "lstm": "no: it reads on"}}


def outcomes(**cells: set[str]) -> Outcomes:
    """A run of these cells, `COLUMN__ENCODING`, of which every column has a test."""
    run = Outcomes()
    for number, column in enumerate(("packed", "LoRA")):
        run.tests[str(number)] = Cell("encoder-decoder", "alibi", column), "yes"
    for name, meanings in cells.items():
        column, encoding = name.split("__")
        run.cells[Cell("encoder-decoder", encoding.replace("EVERY", "*"), column)] = meanings
    return run


def test_the_page_has_the_saved_outcomes() -> None:
    saved = json.loads(capabilities.SAVED.read_text(encoding="utf-8"))
    page = capabilities.PAGE.read_text(encoding="utf-8")
    made = page.partition(capabilities.BEGIN)[2].partition(capabilities.END)[0]
    assert made == capabilities.section(saved["tables"], saved["versions"]), "Run `python tests/capabilities.py`."
    assert set(saved["tables"]) == set(capabilities.ARCHITECTURES)
    assert "**FAILED**" not in made


def test_outcomes_of_a_run_replace_those_before_and_others_stay() -> None:
    table = outcomes(LoRA__lstm={"yes", "no: slow"}).table("encoder-decoder", ["alibi", "lstm", "rotary"], BEFORE)
    assert table == {
        "packed": {"alibi": "yes", "lstm": "no: it reads on", "rotary": "-"},
        "LoRA": {"alibi": "yes", "lstm": "no: slow / yes", "rotary": "-"},
    }


def test_a_test_of_every_encoding_counts_for_each_that_has_no_test_of_its_own() -> None:
    run = outcomes(LoRA__EVERY={"yes"}, LoRA__alibi={"**FAILED**"})
    assert run.table("encoder-decoder", ["alibi", "rotary"], {})["LoRA"] == {"alibi": "**FAILED**", "rotary": "yes"}


def test_reasons_become_numbered_notes_shared_by_all_tables() -> None:
    tables = {"encoder-decoder": BEFORE, "decoder-only": {"packed": {"alibi": "yes", "gru": "no: it reads on"}}}
    text = capabilities.section(tables, {"torch": "2"})
    assert "| packed | yes | no (1): `lstm` |" in text and "| packed | yes | no (1): `gru` |" in text
    assert text.endswith("\n\n1. it reads on.\n") and "Outcomes with torch 2." in text
