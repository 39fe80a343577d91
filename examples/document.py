"""Translate a document with a trained model, each paragraph as one input, however long it is.

    python examples/document.py MODEL document.txt > translation.txt

Empty lines separate paragraphs. MODEL is a system of a run, a saved model, or a name on the Hub. Aligned models
translate paragraphs beyond their training length. The number of words and tokens of each paragraph, and whether its
translation was truncated, are printed to standard error.
"""

import argparse
import re
import sys
from pathlib import Path

from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import hf_posenc  # noqa: F401  registers the family with the Auto classes

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("model")
parser.add_argument("document", type=Path)
options = parser.parse_args()
text = options.document.read_text(encoding="utf-8-sig").strip()
paragraphs = [" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text) if paragraph.strip()]
saved = Path(options.model, "model")  # of a system of a run
name = str(saved) if saved.is_dir() else options.model
model = AutoModelForSeq2SeqLM.from_pretrained(name)
tokenizer = AutoTokenizer.from_pretrained(name)
for number, paragraph in enumerate(paragraphs, 1):
    made = model.translations([paragraph], tokenizer)
    [translation], [cut] = made.texts, made.truncated
    print(translation, end="\n\n", flush=True)
    tokens, words = len(tokenizer(paragraph).input_ids) - 1, len(paragraph.split())
    cut_off = ", cut off: it did not come to an end" if cut else ""
    print(f"{number}: {words} words, {tokens} tokens -> {len(translation.split())} words{cut_off}", file=sys.stderr)
