"""A changed saved file is refused by name, and an unchanged one is accepted, after a kill too."""

import os
import shutil
from pathlib import Path

import pytest
from support.models import translator

from hf_posenc import CTranslate2Translator
from hf_posenc.inference.ctranslate2_engine import to_ctranslate2
from hf_posenc.inference.loading import load_model
from hf_posenc.lab.analysis.probes import PlotExtent, trained_probes
from hf_posenc.lab.explorer.runs import ExplorerRun
from hf_posenc.translator.translation_job import TranslationJob
from hf_posenc.utils import manifest
from hf_posenc.utils.manifest import (
    CACHE_MIN_BYTES,
    MANIFEST,
    add_to_manifest,
    atomic_delete,
    explain_read_errors,
    remove_from_manifest,
    save_folder,
    verify_file,
    verify_files,
    verify_folder,
    write_file,
    write_folder_manifest,
)

DAMAGES = {
    "cut": lambda content: content[: len(content) // 2],
    "emptied": lambda content: b"",
    "one bit": lambda content: bytes([content[0] ^ 1]) + content[1:],
}


def save(folder: Path) -> None:
    (folder / "inside").mkdir(parents=True)
    (folder / "weights").write_text("the weights", encoding="utf-8")
    (folder / "inside" / "more").write_text("the rest", encoding="utf-8")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save_folder(tmp_path / "saved", save)
    return tmp_path / "saved"


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("name", ["weights", "inside/more"])
def test_a_file_of_a_folder_that_changed_is_refused_by_its_name(saved: Path, name: str, how: str) -> None:
    verify_folder(saved)
    path = saved / name
    path.write_bytes(DAMAGES[how](path.read_bytes()))
    with pytest.raises(ValueError, match=rf"^{path} must be .* has changed; .* delete {saved} and"):
        verify_folder(saved)
    with pytest.raises(ValueError, match=rf"copy it again\. .* delete {saved / MANIFEST}"):
        verify_folder(saved, "copy it again")
    (saved / MANIFEST).unlink()
    verify_folder(saved)


@pytest.mark.parametrize("name", ["weights", "inside/more"])
def test_a_file_of_a_folder_that_is_missing_is_refused_unless_it_may_be(saved: Path, name: str) -> None:
    (saved / name).unlink()
    verify_folder(saved, allow_missing=Path(name).name)
    with pytest.raises(ValueError, match=rf"{saved / name} must be .* but it is missing"):
        verify_folder(saved, allow_missing="others")


@pytest.mark.parametrize("how", DAMAGES)
def test_a_file_by_itself_that_changed_is_refused_by_its_name(tmp_path: Path, how: str) -> None:
    path, other = tmp_path / "scores", tmp_path / "other"
    write_file(path, "scores")
    write_file(other, "something else")
    path.write_bytes(DAMAGES[how](path.read_bytes()))
    verify_file(other)
    for check, place in ((verify_file, path), (verify_files, tmp_path)):
        with pytest.raises(ValueError, match=rf"^{path} .* delete {path} and .* train\.py"):
            check(place)
    write_file(path, "made anew")
    verify_files(tmp_path)
    path.unlink()
    verify_files(tmp_path)  # it is made anew


def test_a_file_is_whole_before_and_after_it_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed in between, it is the old one, beside a manifest that has the new one already."""
    path = tmp_path / "scores"
    for text in ("first", "second", "third"):
        write_file(path, text)
        verify_file(path)
    replace = os.replace

    def killed(source: Path, target: Path) -> None:
        if target == path:
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        write_file(path, "fourth")
    assert path.read_text(encoding="utf-8") == "third"
    verify_file(path)
    path.write_text("second", encoding="utf-8")
    with pytest.raises(ValueError, match="has changed"):
        verify_file(path)


def test_a_file_that_is_written_on_is_listed_when_it_is_done(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("one\n", encoding="utf-8")
    add_to_manifest(path)
    remove_from_manifest(path)
    path.write_text("one\ntwo\n", encoding="utf-8")
    verify_files(tmp_path)
    add_to_manifest(path)
    path.write_text("one\n", encoding="utf-8")
    with pytest.raises(ValueError, match="has changed"):
        verify_files(tmp_path)


def test_what_no_manifest_lists_is_not_checked(tmp_path: Path, saved: Path) -> None:
    (saved / "notes").write_text("mine", encoding="utf-8")
    verify_folder(saved)
    verify_folder(tmp_path / "none")
    verify_file(tmp_path / "none" / "file")


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"weights": 1}', '{"../../secret": [""]}', '{"/etc/passwd": [""]}']
)
def test_a_manifest_that_is_none_is_refused_by_its_name(saved: Path, content: str) -> None:
    (saved / MANIFEST).write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=rf"{saved / MANIFEST} is not .* delete .* same command"):
        verify_folder(saved)


def test_what_cannot_be_read_is_refused_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    with (
        pytest.raises(ValueError, match=rf"^{path} .*KeyError: 'name'; .* delete {path} and"),
        explain_read_errors(path),
    ):
        {}["name"]
    path.unlink()
    with (
        pytest.raises(ValueError, match=rf"^{path} .* missing; .* give the same"),
        explain_read_errors(path),
    ):
        path.read_text(encoding="utf-8")


def test_a_large_file_is_read_again_once_it_has_changed(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (saved / "weights").write_bytes(bytes(CACHE_MIN_BYTES))
    write_folder_manifest(saved)
    verify_folder(saved)
    reads: list[str] = []
    read = manifest.compute_digest
    monkeypatch.setattr(manifest, "compute_digest", lambda path: reads.append(path) or read(path))
    verify_folder(saved)
    large = str(saved / "weights")
    assert large not in reads
    os.utime(saved / "weights", ns=(0, 0))
    verify_folder(saved)
    assert large in reads


def test_a_folder_is_deleted_whole_or_not_at_all(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(path: Path) -> None:
        (path / "weights").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(shutil, "rmtree", killed)
        atomic_delete(saved)
    assert not saved.exists()
    save_folder(saved, save)
    atomic_delete(saved)
    assert list(saved.parent.iterdir()) == []


READERS = {
    "translate": TranslationJob,
    "export and attention": load_model,
    "explorer": lambda folder: ExplorerRun(folder).load_model(folder.name),
    "figures": lambda folder: trained_probes(folder, "encoder", PlotExtent()),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, tokenizer) -> Path:
    folder = tmp_path_factory.mktemp("model")
    translator("relative").save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    write_folder_manifest(folder)
    return folder


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
@pytest.mark.parametrize("reader", READERS)
def test_a_damaged_model_is_refused_by_whatever_reads_it(model: Path, tmp_path: Path, reader: str, name: str) -> None:
    folder = shutil.copytree(model, tmp_path / "copied")
    READERS[reader](folder)
    path = folder / name
    content = bytearray(path.read_bytes())
    place = content.rindex(b"1")  # one bit makes another digit of it
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"{path} must be .* delete {folder} and train, copy"):
        READERS[reader](folder)


def test_a_damaged_export_is_refused_by_its_name(tokenizer, tmp_path: Path) -> None:
    folder = to_ctranslate2(translator("relative").float(), tokenizer, tmp_path / "exported")
    CTranslate2Translator(folder)
    (folder / "model.bin").write_bytes((folder / "model.bin").read_bytes()[:-1])
    with pytest.raises(ValueError, match=rf"{folder / 'model.bin'} must be .* delete {folder} and export"):
        CTranslate2Translator(folder)
