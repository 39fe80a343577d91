"""The examples run as they stand, on generated sentences in place of a user's."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_posenc.data.generator import LANGUAGES, generate_pairs

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.slow
def test_a_plain_trainer_script_learns_to_translate(tmp_path):
    pairs = [
        dict(zip(LANGUAGES, pair, strict=True))
        for pair in generate_pairs(seed=3, pairs=4000, min_words=6, max_words=14)
    ]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps({"translation": pair}) + "\n" for pair in pairs))
    command = [sys.executable, str(EXAMPLES / "seq2seq_trainer.py"), "pairs.jsonl", "model"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    source, translation = done.stdout.splitlines()[-2:]
    assert source == pairs[0]["de"]
    words = pairs[0]["en"].split()
    assert len(set(translation.split()) & set(words)) > len(words) / 2, translation
    model, tokenizer = (auto.from_pretrained(tmp_path / "model") for auto in (AutoModelForSeq2SeqLM, AutoTokenizer))
    assert model.translate([source], tokenizer)
