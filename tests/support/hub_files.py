"""The files of a pushed checkpoint, and a process that loads it without the package."""

import ast
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedConfig

from hf_posenc import (
    PosEncTokenizer,
)
from hf_posenc.hub.checkpoint_code import write_checkpoint_code
from hf_posenc.transformer.encoder_decoder import ConditionalGeneration
from support.models import TEXTS, sentences

# Weights read from a file lie elsewhere in memory, and the last bit of a product may depend on that.
EXACT = {"rtol": 1e-12, "atol": 1e-12}


# For a process that must not see the package although it is there.
HIDDEN = """
import sys
sys.modules["hf_posenc"] = None
"""


# Run where the package cannot be imported: loads every checkpoint, computes, translates, saves and loads again.
STRANGER = """
import json
import sys
import torch
from pathlib import Path
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer

torch.set_num_threads(1)
folder = Path(sys.argv[1])
asked = torch.load(folder / "asked.pt")
found = {}
for name, place in asked["places"].items():
    trust = {"trust_remote_code": True}
    config = AutoConfig.from_pretrained(place, **trust)
    model = AutoModelForSeq2SeqLM.from_pretrained(place, dtype=torch.float64, **trust).eval()
    base = AutoModel.from_pretrained(place, dtype=torch.float64, **trust).eval()
    tokenizer = AutoTokenizer.from_pretrained(place, **trust)
    second = folder / "again" / name
    model.save_pretrained(second)
    tokenizer.save_pretrained(second)
    again = AutoModelForSeq2SeqLM.from_pretrained(second, dtype=torch.float64, **trust).eval()
    tokenizer_again = AutoTokenizer.from_pretrained(second, **trust)
    with torch.no_grad():
        found[name] = {
            "config": {key: value for key, value in config.to_dict().items() if key != "_name_or_path"},
            "logits": model(**asked["inputs"]).logits,
            "hidden": base(**asked["inputs"]).last_hidden_state,
            "again": again(**asked["inputs"]).logits,
            "tokens": model.generate(asked["inputs"]["input_ids"], num_beams=2, do_sample=False, max_new_tokens=6),
            "source": [one(asked["texts"])["input_ids"] for one in (tokenizer, tokenizer_again)],
            "translations": model.translate(asked["texts"][:asked["translate"]], tokenizer, num_beams=2),
        }
    for one in (config, model, base, tokenizer, again):
        assert type(one).__module__.startswith("transformers_modules"), type(one).__module__
torch.save(found, folder / "found.pt")
"""


def stranger(
    folder: Path,
    places: dict[str, str | Path],
    *,
    translate: int = 0,
    python: Path | str = sys.executable,
    hide: str = HIDDEN,
    **hub: str,
) -> dict[str, dict]:
    """What a fresh process without the package finds in the checkpoints in those `places`; what it saves again is under
    `folder / "again"`. It translates the first `translate` texts, and asks no server unless `hub` says so."""
    asked = {"inputs": inputs(), "texts": TEXTS, "translate": translate}
    torch.save(asked | {"places": {name: str(place) for name, place in places.items()}}, folder / "asked.pt")
    without_package(hide + STRANGER, str(folder), python=python, home=folder / "home", **hub)
    return torch.load(folder / "found.pt")


def without_package(script: str, *arguments: str, home: Path, python: Path | str = sys.executable, **hub: str) -> str:
    """What a script prints in a fresh process with a cache of its own."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"} | hub
    child = subprocess.run(
        [str(python), "-P", "-c", script, *arguments],
        cwd=home.parent,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert child.returncode == 0, child.stderr[-4000:]
    return child.stdout


def inputs() -> dict[str, torch.Tensor]:
    return {"input_ids": sentences(2, 6, seed=1), "decoder_input_ids": sentences(2, 5, seed=2)}


def assert_found(found: dict, model: ConditionalGeneration, tokenizer: PosEncTokenizer) -> None:
    with torch.no_grad():
        logits = model(**inputs()).logits
        torch.testing.assert_close(found["logits"], logits, **EXACT)
        torch.testing.assert_close(found["again"], logits, **EXACT)
        torch.testing.assert_close(found["hidden"], model.model(**inputs()).last_hidden_state, **EXACT)
    tokens = model.generate(inputs()["input_ids"], num_beams=2, do_sample=False, max_new_tokens=6)
    assert torch.equal(found["tokens"], tokens)
    assert found["source"] == [tokenizer(TEXTS)["input_ids"]] * 2
    translated = len(found["translations"])
    assert found["translations"] == model.translate(TEXTS[:translated], tokenizer, num_beams=2)


def assert_loads_again(folder: Path, found: dict, model: ConditionalGeneration) -> None:
    """What a stranger saved, loaded with the package."""
    again = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float64)
    assert type(again) is type(model)
    assert found["config"]["model_type"] == model.config.model_type
    assert_found(found, again, AutoTokenizer.from_pretrained(folder))


def code_of(config: PreTrainedConfig, *, with_tokenizer: bool = False) -> set[str]:
    """The files of code that are saved with a config, each of which the classes of its `auto_map` need."""
    with TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        saved = {path.name: path.read_text(encoding="utf-8") for path in Path(folder).glob("*.py")}
        needed: set[str] = set()
        pending = [target.partition(".")[0] for target in config.auto_map.values()]
        while pending:
            file = f"{pending.pop()}.py"
            if file not in needed:
                needed.add(file)
                tree = ast.walk(ast.parse(saved[file]))
                pending += [node.module for node in tree if isinstance(node, ast.ImportFrom) and node.level]
        assert needed == saved.keys()
        if with_tokenizer:
            write_checkpoint_code(Path(folder), ["tokenization_posenc"], {})
        return {path.name for path in Path(folder).glob("*.py")}


TOKENIZER_FILES = {"tokenizer.json", "tokenizer_config.json", "tokenization_posenc.py"}


MODEL_FILES = {"config.json", "generation_config.json", "model.safetensors"}
