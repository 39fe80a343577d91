"""docs/reference/hosts.md against the checks: a few classes of each kind, and a row for every class."""

import re
import sys

import pytest
import transformers
from support.environments import ROOT

sys.path.insert(0, str(ROOT / "docs"))
from hosts_page import PAGE, objection, tables

ROW = re.compile(r"\| (?:(?P<reason>.*) \| )?`(?P<model_type>\S+)` (?P<class_name>\w+) \|")
ROWS = [match for line in PAGE.read_text(encoding="utf-8").splitlines() if (match := ROW.fullmatch(line))]
is_page_s_version = f"transformers {transformers.__version__.rpartition('.')[0]} " in PAGE.read_text(encoding="utf-8")
SUBSET = [
    "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "smollm3", "olmo", "olmo2", "phi", "phi3",
    "gpt_neox", "gpt2", "gpt-sw3", "opt", "granite", "cohere", "deepseek_v3", "bert", "modernbert", "roberta",
    "distilbert", "bloom", "falcon", "mamba", "marian", "stablelm", "falcon_mamba", "ctrl",
]  # fmt: skip


@pytest.mark.full  # it imports every class
@pytest.mark.skipif(not is_page_s_version, reason="the page is of another version of transformers")
def test_every_class_has_one_row():
    rows = sorted((row["model_type"], row["class_name"]) for row in ROWS)
    assert rows == sorted(row for classes in tables().values() for row in classes.items())


@pytest.mark.full
@pytest.mark.skipif(not is_page_s_version, reason="the page is of another version of transformers")
@pytest.mark.parametrize("model_type", SUBSET)
def test_a_row_is_what_the_checks_say(model_type):
    for row in ROWS:
        if row["model_type"] == model_type:
            assert objection(model_type, row["class_name"]) == row["reason"]
