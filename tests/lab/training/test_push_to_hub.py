"""What a push uploads: the files of the model, and no names of local folders."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import HfApi
from support.family_tokenizers import m2m100_tokenizer, marian_tokenizer
from support.hub_files import MODEL_FILES, TOKENIZER_FILES, code_of
from support.hub_server import Hub
from support.models import tiny_model
from support.run_folders import SETTINGS, run_folder
from transformers import AutoTokenizer, BartConfig

from hf_posenc import PosEncConfig, PosEncTokenizer
from hf_posenc.lab.reports.card import model_card
from hf_posenc.lab.training.push_to_hub import push_files, pushed_files
from hf_posenc.utils.manifest import write_folder_manifest


@pytest.fixture
def saved(tokenizer: PosEncTokenizer, tmp_path: Path) -> Path:
    """What the Trainer saves of a step, and what else may lie there."""
    tiny_model("relative").save_pretrained(tmp_path / "saved")
    tokenizer.save_pretrained(tmp_path / "saved")
    write_folder_manifest(tmp_path / "saved")
    (tmp_path / "saved" / "README.md").write_text("# A model")
    for name in (
        "training_args.bin",
        "optimizer.pt",
        "trainer_state.json",
        ".env",
        "id_rsa",
        "mine.py",
        "config.json.bak",
    ):
        (tmp_path / "saved" / name).write_text("SECRET")
    (tmp_path / "saved" / "checkpoint-1").mkdir()
    return tmp_path / "saved"


def test_what_is_pushed_of_a_saved_model_is_what_loads_it(saved: Path):
    code = code_of(PosEncConfig.from_pretrained(saved), with_tokenizer=True)
    assert set(pushed_files(saved)) == code | MODEL_FILES | TOKENIZER_FILES | {"README.md"}


@pytest.mark.full
@pytest.mark.parametrize("kind", ["marian", "marian with two vocabularies", "m2m100", "a chat template"])
@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_a_kept_tokenizer_is_pushed_whole(hub: Hub, tokenizer: PosEncTokenizer, tmp_path: Path, kind: str) -> None:
    pytest.importorskip("sentencepiece", reason="these tokenizers need it: pip install sentencepiece")
    (folder := tmp_path / "saved").mkdir()
    kept: Any = deepcopy(tokenizer)  # the fixture is shared
    if kind.startswith("marian"):
        kept = marian_tokenizer(folder, separate="two" in kind)
    elif kind == "m2m100":
        kept = m2m100_tokenizer(tmp_path / "words")
    else:
        kept.chat_template = "{{ messages[0]['content'] }}"
    kept.save_pretrained(folder)
    BartConfig().save_pretrained(folder)  # the class of a tokenizer is looked up with it
    write_folder_manifest(folder)
    (folder / "README.md").write_text("# A model")
    (folder / "secret.spm").write_text("SECRET")
    HfApi().create_repo("someone/kept")
    push_files(folder, "someone/kept", message="pushed")
    assert "secret.spm" not in hub.repositories["someone/kept"].files()
    loaded = AutoTokenizer.from_pretrained("someone/kept")
    assert type(loaded) is type(kept) and loaded.chat_template == kept.chat_template
    texts = ["a dog sees a cat", "the bird"]
    for tokenizer_of_side in (loaded, kept):
        if kind == "m2m100":
            tokenizer_of_side.tgt_lang = "en"
    for side in ({"text": texts}, {"text_target": texts}):
        assert loaded(**side)["input_ids"] == kept(**side)["input_ids"]


@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors", "README.md", "registered_mine.py", "encodings.py"]
)
@pytest.mark.parametrize("target", ["file", "folder", "nothing"])
def test_a_link_is_never_followed(hub: Hub, tmp_path: Path, name: str, target: str):
    (tmp_path / "file").write_text("PRIVATE KEY")
    (tmp_path / "folder").mkdir()
    (saved := tmp_path / "saved").mkdir()
    for file in ("tokenizer.json", name):
        (saved / file).write_text("{}")
    write_folder_manifest(saved)
    (saved / "README.md").touch()
    (saved / name).unlink()
    (saved / name).symlink_to(tmp_path / target)
    with pytest.raises(OSError, match=rf"plain files, but .*{name} is a link"):
        push_files(saved, "someone/linked", message="pushed")
    assert not hub.repositories


def test_a_push_without_a_list_of_files_is_refused(hub: Hub, saved: Path) -> None:
    (saved / "manifest.json").unlink()
    with pytest.raises(ValueError, match=r"manifest\.json lists, but there is none; restore it"):
        push_files(saved, "someone/unlisted", message="pushed")
    assert not hub.repositories


HOME = "/home/alice"
NAMED: dict[str, dict[str, Any]] = {
    "files": {"data": {"train": {"files": [f"{HOME}/train.de", "~alice/train.en"]}}},
    "a data set": {"data": {"train": {"dataset": f"{HOME}/corpus"}}},
    "a tokenizer": {"data": {"tokenizer": f"{HOME}/tokenizer"}},
    "a start": {"init_from": f"{HOME}/model"},
    "a Trainer's file": {"train": {"deepspeed": f"{HOME}/ds.json", "accelerator_config": {"file": f"{HOME}/acc.json"}}},
    "a list": {"train": {"report_to": [f"{HOME}/log", "none"]}},
    "an address": {"train": {"logging_dir": f"file://{HOME}/log"}},
    "another system's": {"train": {"logging_dir": "C:\\Users\\alice\\log"}},
    "the user's": {"train": {"logging_dir": "~alice/log"}},
}


@pytest.mark.parametrize("what", NAMED)
def test_a_card_names_no_folder_of_this_machine(tmp_path: Path, what: str) -> None:
    folder = run_folder(tmp_path)
    changed = NAMED[what]
    settings = {key: value | changed.get(key, {}) for key, value in SETTINGS.items()}
    settings |= {key: value for key, value in changed.items() if key not in settings}
    (folder / "tiny" / "settings.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    text = str(model_card(folder, "tiny"))
    assert "alice" not in text
    for last in ("ds.json", "acc.json", "train.de", "corpus"):
        assert (last in text) == (last in str(changed)), "the last name tells a reader which file it is"


@pytest.mark.full
def test_a_card_leaves_what_is_no_path_as_it_is(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    values = ["a/b", "1/2", "someone/model", "https://example.org/x", ""]
    settings = SETTINGS | {"train": SETTINGS["train"] | {"hub_id": values}}
    (folder / "tiny" / "settings.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    listed = yaml.safe_dump(values).splitlines()
    assert all(f"  {line}" in str(model_card(folder, "tiny")) for line in listed)
