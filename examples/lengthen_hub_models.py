"""Fine-tune pretrained translators of the Hub for longer input, and score and audit them before and after.

    python examples/lengthen_hub_models.py --pairs train.de train.en --test test.de test.en --to runs/hub \
        [MODEL ...] [--lora] [dotted.key=value ...]

Each MODEL is a name on the Hub or a local folder: opus-mt, M2M-100, NLLB-200 or mBART-50, German to English. The
default is MODELS. Each has a run folder under `--to`, and the same command resumes. The defaults of `lengthen` are
those of small models; SETTINGS are a first guess for large ones, and are not measured. opus-mt and M2M-100 need
sentencepiece, and `--lora` needs peft.
"""

import argparse
from pathlib import Path

from transformers import AutoTokenizer

from hf_posenc.lab.run.lengthen import LengthenJob, lengthen
from hf_posenc.utils.atomic_io import explain_full_disk
from hf_posenc.utils.command_line import command_errors

MODELS = ("Helsinki-NLP/opus-mt-de-en", "facebook/m2m100_418M", "facebook/nllb-200-distilled-600M")
# The tags of German and English, by the class of the tokenizer.
TAGS = {
    "M2M100Tokenizer": ("de", "en"),
    "NllbTokenizer": ("deu_Latn", "eng_Latn"),
    "MBart50Tokenizer": ("de_DE", "en_XX"),
}
SETTINGS = ("systems.lengthened.model.cross_window_size=24",)
LEARNING_RATE = "systems.lengthened.train.learning_rate=1e-4"
RANK = 16  # of LoRA, which keeps its own learning rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arguments", nargs="*", metavar="MODEL or dotted.key=value")
    parser.add_argument("--pairs", nargs="+", required=True, metavar="FILE", help="German and English to train with")
    parser.add_argument("--test", nargs="+", required=True, metavar="FILE", help="other pairs to score with")
    parser.add_argument("--to", required=True, type=Path, metavar="FOLDER", help="the folder of the runs")
    parser.add_argument("--lora", action="store_true", help="train adapters in place of all weights")
    with command_errors(), explain_full_disk(Path()):
        lengthen_models(parser.parse_intermixed_args())


def lengthen_models(options: argparse.Namespace) -> None:
    models = [argument for argument in options.arguments if "=" not in argument] or MODELS
    settings = [argument for argument in options.arguments if "=" in argument]
    settings = [*SETTINGS, *([] if options.lora else [LEARNING_RATE]), *settings]
    for model in models:
        tags = TAGS.get(type(AutoTokenizer.from_pretrained(model)).__name__, (None, None))
        rank = RANK if options.lora else None
        job = LengthenJob(model, options.pairs, options.test, "de", "en", *tags, lora_rank=rank)
        print(f"# {model}\n\n{lengthen(job, options.to / Path(model).name, settings)}\n", flush=True)


if __name__ == "__main__":
    main()
