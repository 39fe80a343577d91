"""Calls of the translation pipeline of transformers 4.57, token for token; old_pipeline.py made them."""

import json
from pathlib import Path

import pytest

from hf_posenc.translator.translator import Translator

FIXTURES = Path(__file__).parent / "fixtures"
CALLS = json.loads((FIXTURES / "calls.json").read_text(encoding="utf-8"))["calls"]
FAMILIES = sorted({call["family"] for call in CALLS})


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
@pytest.mark.parametrize("name", FAMILIES)
def test_the_tokens_are_those_of_the_old_pipeline(name: str) -> None:
    pytest.importorskip("sentencepiece")
    calls = [call for call in CALLS if call["family"] == name]
    languages = calls[0]["source_language"], calls[0]["target_language"]
    translator = Translator.from_pretrained(FIXTURES / name, *languages)
    for call in calls:
        options = {name: call[name] for name in ("num_beams", "max_new_tokens")}
        source = translator.encode(call["text"])
        assert translator.generate_tokens([source], {**translator.generate_options, **options}) == [call["tokens"]]
    assert len({tuple(call["tokens"]) for call in calls}) >= 6, "outputs depend on the source"
