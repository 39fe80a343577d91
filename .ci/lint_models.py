"""transformers' own linter for models over what checkpoints carry; each rule that is off has its reason here."""

import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import mlinter

from hf_posenc import ALIGNMENTS, POSITION_ENCODINGS
from hf_posenc.auto_classes import FAMILIES
from hf_posenc.hub.checkpoint_code import write_checkpoint_code

OFF = {
    "TRF023": "d_model is BART's and Marian's name, as the parameters' are; hidden_size leads to it by attribute_map",
    "TRF027": "an assert tells the type checker what the line above ensures; bad input raises a ValueError before it",
    "TRF028": "the files have the licence's SPDX line, of which a test sees to it that it is there",
    "TRF029": "attention has the number of heads of its stack, and encoder and decoder may differ in it",
    "TRF041": "a branch on a config field is an option that users have, and both sides are tested, not a checkpoint's",
    "TRF051": "a bias on scores needs another form, or weights, on some back ends; transformers has no such bias",
    "TRF057": "docstrings are written by hand: those that auto_docstring makes say nothing of encodings and positions",
}


def main() -> int:
    rules = (Path(mlinter.__file__).parent / "rules.toml").read_text(encoding="utf-8")
    for rule in OFF:
        rules, found = re.subn(rf"(?ms)^(\[rules\.{rule}\]\n.*?^default_enabled = )true$", r"\1false", rules, count=1)
        if not found:
            raise ValueError(f"Each rule in OFF is one that is on by itself, but {rule} is not; take it out.")
    with TemporaryDirectory() as folder:
        (Path(folder) / "rules.toml").write_text(rules, encoding="utf-8")
        code = Path(folder) / "code"
        encodings = {name: entry.encoding for name, entry in POSITION_ENCODINGS.items()}
        for config, *_ in FAMILIES:
            (code / config.model_type).mkdir(parents=True)
            files = {target.partition(".")[0] for target in config.auto_classes.values()}
            registered = {"encodings.registry": encodings, "alignments.registry": ALIGNMENTS}
            write_checkpoint_code(code / config.model_type, sorted(files), registered)
        options = ["--rules-toml", f"{folder}/rules.toml", "--no-progress", "--no-cache"]
        return subprocess.run([sys.executable, "-m", "mlinter", *options, str(code)]).returncode


if __name__ == "__main__":
    sys.exit(main())
