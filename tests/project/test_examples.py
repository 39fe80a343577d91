"""The examples run unchanged, on synthetic sentences."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_posenc.data.synthetic.generator import LANGUAGES, generate_pairs

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.slow
def test_a_plain_trainer_script_learns_to_translate(tmp_path):
    pairs = [
        dict(zip(LANGUAGES, pair, strict=True))
        for pair in generate_pairs(seed=3, pairs=4000, min_words=6, max_words=14)
    ]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps({"translation": pair}) + "\n" for pair in pairs))
    done = example("seq2seq_trainer.py", "pairs.jsonl", "model", folder=tmp_path)
    source, translation = done.stdout.splitlines()[-2:]
    assert source == pairs[0]["de"]
    words = pairs[0]["en"].split()
    assert len(set(translation.split()) & set(words)) > len(words) / 2, translation
    model, tokenizer = (auto.from_pretrained(tmp_path / "model") for auto in (AutoModelForSeq2SeqLM, AutoTokenizer))
    first, second = (" ".join(pair["de"] for pair in pairs[i : i + 2]) for i in (0, 2))
    (tmp_path / "document.txt").write_text(f"\n{first.replace(' ', chr(10), 3)}\n \n\n{second}\n", encoding="utf-8")
    done = example("document.py", "model", "document.txt", folder=tmp_path)
    translations = [model.translate([paragraph], tokenizer)[0] for paragraph in (first, second)]
    assert done.stdout == "".join(f"{translation}\n\n" for translation in translations)
    lines = [line for line in done.stderr.splitlines() if " words, " in line]
    assert [line.split(" words")[0] for line in lines] == [f"1: {len(first.split())}", f"2: {len(second.split())}"]


def example(name: str, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """What it prints, run in that folder."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done
