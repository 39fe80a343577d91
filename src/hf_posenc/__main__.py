"""`python -m hf_posenc translate FOLDER < sentences > translations`, one sentence a line.

FOLDER is a saved model: a system of a run (runs/quickstart/relative), its model folder, or any checkpoint of the family.
"""

import argparse
import sys
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import hf_posenc  # noqa: F401 - registers the family with the Auto classes
from hf_posenc.training import check_weights


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m hf_posenc", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    translate = commands.add_parser("translate", help="translate standard input, one sentence a line")
    translate.add_argument("folder", type=Path, help="a system of a run, or a saved model")
    translate.add_argument("--beams", type=int, default=5, help="width of the beam (default 5)")
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    try:
        folder = model_folder(options.folder)
        check_weights(folder)
        sentences = [line.rstrip("\r\n") for line in sys.stdin]
    except (ValueError, OSError) as error:
        raise SystemExit(f"{type(error).__name__}: {error}") from None
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder).to("cuda" if torch.cuda.is_available() else "cpu")
    for translation in model.translate(sentences, tokenizer, num_beams=options.beams, progress=sys.stderr.isatty()):
        print(translation.replace("\n", " "))


def model_folder(folder: Path) -> Path:
    """The folder with config.json: `folder` or its `model`."""
    for candidate in (folder, folder / "model"):
        if (candidate / "config.json").is_file():
            return candidate
    systems = sorted(path.parent.parent.name for path in folder.glob("*/model/config.json"))
    hint = (
        f"it holds the systems {', '.join(systems)}, so name one" if systems else "name a run's system or a saved model"
    )
    raise ValueError(f"There must be a saved model in FOLDER, but {folder} has no config.json; {hint}.")


if __name__ == "__main__":
    main()
