"""The command line: translate sentences, make tables, figures and cards again, or print the table of encodings.

    python -m hf_posenc translate FOLDER < sentences > translations
    python -m hf_posenc report RUN [--to OTHER]
    python -m hf_posenc card RUN SYSTEM > CARD.md
    python -m hf_posenc encodings

One sentence a line. FOLDER is a saved model: a system of a run (runs/quickstart/relative), its model folder, or any
checkpoint of the family. RUN is a run of train.py (runs/quickstart) or, for `report`, any folder with a results.json.
"""

import argparse
import sys
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_posenc import POSITION_ENCODINGS, PosEncConfig
from hf_posenc.card import model_card
from hf_posenc.checkpoints import check_weights
from hf_posenc.tables import encodings_table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m hf_posenc", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("translate", help="translate standard input, one sentence a line")
    command.add_argument("folder", type=Path, help="a system of a run, or a saved model")
    command.add_argument("--beams", type=int, default=5, help="width of the beam (default 5)")
    command = commands.add_parser("report", help="make the tables and figures of a results.json again")
    command.add_argument("run", type=Path, help="a folder with results.json")
    command.add_argument("--to", type=Path, help="the folder to write to (default: the same)")
    command = commands.add_parser("card", help="print the model card of a system of a run")
    command.add_argument("run", type=Path, help="the run's folder")
    command.add_argument("system", help="the system's name")
    command.add_argument("--repository", help="the repository that the card's examples load")
    commands.add_parser("encodings", help="print the registered encodings as a Markdown table")
    options = parser.parse_args()
    run = {"encodings": encodings, "report": report, "card": card, "translate": translate}[options.command]
    try:
        run(options)
    except (ValueError, OSError) as error:
        raise SystemExit(f"{type(error).__name__}: {error}") from None


def encodings(options: argparse.Namespace) -> None:
    print(encodings_table(POSITION_ENCODINGS, PosEncConfig()), end="")


def report(options: argparse.Namespace) -> None:
    from hf_posenc.report import publish, read_results  # needs the extra "plots"

    print(publish(read_results(options.run), options.to or options.run))


def card(options: argparse.Namespace) -> None:
    print(model_card(options.run, options.system, options.repository))


def translate(options: argparse.Namespace) -> None:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    folder = model_folder(options.folder)
    check_weights(folder)
    sentences = [line.rstrip("\r\n") for line in sys.stdin]
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
