"""Config files: the type and bounds of every key, and values from the command line."""

import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import pytest
import yaml
from support.experiments import ROOT, TINY

from hf_posenc import PosEncCausalConfig, PosEncConfig, RnnNmtConfig
from hf_posenc.lab import cli, commands
from hf_posenc.lab.config.errors import Keys, KeysOf, Text, describe, flat_metadata, format_value, members
from hf_posenc.lab.config.file_keys import INFERRED_FIELDS, FileKeys, SystemKeys, TrainKeys, model_keys
from hf_posenc.lab.config.loading import (
    SEGMENTED_SYSTEM_KEYS,
    TRAINED_SYSTEM_KEYS,
    load_experiment,
    parse_experiment,
    parse_model,
)
from hf_posenc.lab.config.settings import (
    CorpusKeys,
    DataSettings,
    GeneratorKeys,
    NormalizationKeys,
    ReferenceTable,
    ScoreSettings,
    TaskKeys,
)
from hf_posenc.lab.config.yaml_io import dump_yaml, merge, parse_value, read_yaml
from hf_posenc.lab.data.corpus import CORPUS_TYPES, LANGUAGE_KEYS, TAG_KEYS
from hf_posenc.lab.data.readers import absolute_path, expand_home

WRONG = {
    "null": None,
    "a list": [],
    "a list of lists": [[1], [[2]]],
    "a mapping": {"x": 1},
    "an empty mapping": {},
    "text": "some text",
    "empty text": "",
    "a negative number": -3,
    "zero": 0,
    "one": 1,
    "half": 0.5,
    "true": True,
    "not a number": math.nan,
    "infinity": math.inf,
    "a huge number": 10**30,
    "a large number": 2**32 - 1,
    "the character NUL": "a\0b",
    "half a character": "\ud800",
    "a list of infinities": [math.inf],
}


SECTIONS = {"data": DataSettings, "score": ScoreSettings, "train": TrainKeys}


def keys_of(model: type[Keys], where: str) -> Iterator[str]:
    """Every key below a model, dotted; of names that a file may choose, one."""
    for name, field in model.model_fields.items():
        key = f"{where}.{name}" if where else name
        yield key
        if key in SECTIONS:
            yield from keys_of(SECTIONS[key], key)
        yield from keys_inside(Annotated[field.annotation, field], key)


def keys_inside(annotation: Any, where: str) -> Iterator[str]:
    inner = [item.model for item in flat_metadata(annotation) if isinstance(item, KeysOf)]
    for member in members(annotation):
        base = get_args(member)[0] if get_origin(member) is Annotated else member
        inner += [base] if isinstance(base, type) and issubclass(base, Keys) else []
        if get_origin(base) is dict:
            name = {"systems": "relative", "test": "generated"}.get(where.rpartition(".")[2], "x")
            yield from keys_inside(get_args(base)[1], f"{where}.{name}")
    for model in inner:
        yield from keys_of(model, where)


KEYS = list(keys_of(FileKeys, ""))
# What no key takes.
NOWHERE = {"a list of lists", "infinity", "not a number", "a huge number", "the character NUL", "half a character"}
NOWHERE |= {"a list of infinities"}


def documented() -> dict[str, tuple[str, str]]:
    """What docs/reference/config_file.md says of each key: what it must be, and what it is if it is left out."""
    places: dict[str, type[Keys]] = {"": FileKeys, "data.": DataSettings, "CORPUS.": CorpusKeys}
    places |= {"CORPUS.generator.": GeneratorKeys, "CORPUS.task.": TaskKeys, "data.normalize.": NormalizationKeys}
    places |= {"score.": ScoreSettings, "reference_table.": ReferenceTable, "train.": TrainKeys}
    found = {"extends": (describe(Text | list[Text]), "")}
    for where, model in places.items():
        for name in model.model_fields:
            found[where + name] = rule_and_default(model, name)
    return found | {name: rule_and_default(SystemKeys, name) for name in SEGMENTED_SYSTEM_KEYS}


def rule_and_default(model: type[Keys], name: str) -> tuple[str, str]:
    field = model.model_fields[name]
    rule = describe(Annotated[field.annotation, field])
    if field.is_required():
        return rule, "needed"
    return rule, "" if field.default is None else "`{}`".format(format_value(field.default).replace("'", ""))


def nested(key: str, value: Any) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


def refusal(call: Callable[[], Any]) -> str | None:
    try:
        call()
    except ValueError as error:
        return str(error)
    return None


def is_clear(said: str, key: str) -> bool:
    """One line that names the key; or its section, where that lacks another key or contradicts itself."""
    mapping, _, name = key.rpartition(".")
    names_key = mapping in said and name in said
    names_section = f"{mapping}: " in said or (" must be " not in said and key.partition(".")[0] in said)
    return "\n" not in said and len(said) < 800 and (names_key or names_section)


@pytest.mark.parametrize("what", WRONG)
def test_no_key_takes_a_value_of_another_kind(what: str) -> None:
    """Each is taken or refused in one line that names the key, whatever is wrong: never another exception."""
    for key in KEYS:
        content = merge(TINY | {"systems": {"relative": {}}}, nested(key, WRONG[what]))
        said = refusal(lambda content=content: parse_experiment(content, Path("tiny.yaml")))
        assert said is None or is_clear(said, key), (key, said)
        assert said is not None or what not in NOWHERE, key


@pytest.mark.full
@pytest.mark.parametrize("config_class", [PosEncConfig, PosEncCausalConfig, RnnNmtConfig])
def test_no_field_of_a_model_takes_a_value_of_another_kind(config_class: type) -> None:
    for name in (*model_keys(config_class), *INFERRED_FIELDS):
        for value in WRONG.values():
            model = {"model_type": config_class.model_type, name: value}
            said = refusal(lambda model=model: parse_model(model, "relative", {}))
            assert said is None or is_clear(said, f"model.{name}"), (name, value, said)
            assert said is not None or not isinstance(value, list), (name, value)


def test_a_number_where_text_belongs_is_to_be_written_in_quotes(config: Path) -> None:
    """A table named after a year, a licence that YAML reads as a number, a revision of digits."""
    for key, value in (("report_name", 2019), ("data.license", 4.0), ("data.train.revision", 123456), ("name", True)):
        said = refusal(lambda key=key, value=value: load_experiment(config, [f"{key}={str(value).lower()}"]))
        assert said is not None and f"{key} must be text" in said and "write it in quotes" in said


def test_a_package_that_is_not_installed_is_told_where_the_file_is_read(config: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("hf_posenc.lab.config.settings.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"data\.\S+\.generator must be .*`pip install 'hf-posenc\[generator\]'`"):
        load_experiment(config)
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "sentence_splitter", None)
    with pytest.raises(ValueError, match=r'segmentation: automatic .*"segmentation"'):
        load_experiment(config, ["systems.pieces={segment: relative, segmentation: automatic}"])


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(TINY | {"systems": {"relative": {}}}), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("score.num_beams=0", "score.num_beams must be a whole number from 1 to 1000, but it is 0; correct it, or"),
        ("score.concatenate=[]", "score.concatenate must be different whole numbers from 1 on, such as [1, 2], but"),
        ("score.concatenate=[2, 2]", "score.concatenate must be different whole numbers from 1 on"),
        ("data.test=[]", "data.test must be test sets by their names, such as {news: {files: [news.de, news.en]}}"),
        ("systems=[]", "systems must be one system or more, by their names, but it is []; correct it"),
        ("data.train={files: [a.de, b.tsv]}", "data.train.files must be two aligned texts, a .tsv, a .jsonl"),
        ("data.train={files: a.txt}", "data.train.files must be two aligned texts"),
        ("data.train={files: [a.de, a.en], document_ids: d}", "data.train: `document_ids` and `min_words` belong"),
        ("data.train.generator.min_words=13", "data.train.generator: min_words must not exceed max_words"),
        ("data.train={corpora: [{files: [a, b], max_examples: 0}]}", "data.train.corpora[0].max_examples must be a"),
        ("data.train.generator.seeds=1", "data.train.generator has no key 'seeds'; the nearest one is 'seed'"),
        ("data.allow_overlap=[news]", "data.allow_overlap has no key 'news'; the nearest one is"),
        ("train.report_to=wandb", "train.report_to must be one of"),
        ("train.report_to=wandbb", "the nearest is 'wandb'"),
        ("train.optim=adamw_troch", "the nearest is 'adamw_torch'"),
        ("model.vocab_size=5", "model: vocab_size is that of the tokenizer or the weights, but it is given as 5"),
        ("model.encoder_layers=1000000000", ": model.encoder_layers must be a whole number from 1 to 1000"),
        ("model.encoder_layers=two", ": model.encoder_layers must be a whole number from 1 to"),
        ("model.num_hidden_layers=2", "is another name of encoder_layers, but both are given, 2 and 1"),
        ("model.id2label={a: b}", ": model has no key 'id2label'"),
        ("model.activation_function=rleu", "the nearest is 'relu'"),
        ("report_name=tokenizer", "report_name is a folder beside the systems', but 'tokenizer' is one of them"),
        ("name=../elsewhere", "name must be text, the name of a folder and no path, but it is '../elsewhere'"),
        ("data.license=", ""),
        ("seeds=[1, 2]", ""),
        ("train.report_to=[]", ""),
        ("train.report_to=all", ""),
    ],
)  # fmt: skip
def test_a_value_that_could_fail_later_is_refused_where_the_file_is_read(
    config: Path, override: str, said: str
) -> None:
    refused = refusal(lambda: load_experiment(config, [override]))
    assert (refused is None) if not said else (said in str(refused) and str(refused).startswith(f"{config}: ")), refused


def test_a_section_with_nothing_in_it_changes_nothing(config: Path) -> None:
    empty = config.with_name("empty.yaml")
    empty.write_text(f"extends: {config.name}\ntrain:\nmodel:\nsystems: {{relative: {{model: , data: }}}}\n")
    assert load_experiment(empty).systems == load_experiment(config).systems
    assert load_experiment(empty, ["data.validation="]).systems["relative"].data.validation is None


def test_a_model_that_starts_from_another_is_checked_before_that_is_read(config: Path) -> None:
    start = "systems.more={init_from: relative, model: {dropout: [1]}}"
    with pytest.raises(ValueError, match=r"systems\.more\.model\.dropout .* is \[1\]"):
        load_experiment(config, [start])


def test_a_setting_is_called_by_the_name_that_was_typed(config: Path) -> None:
    for key in ("train.max_steps", "systems.relative.train.max_steps"):
        assert f"{config}: {key} must be" in str(refusal(lambda key=key: load_experiment(config, [f"{key}=x"])))
    corpora = "systems.relative.data.train={corpora: [{files: [a, b], max_examples: 0}]}"
    said = str(refusal(lambda: load_experiment(config, [corpora])))
    assert f"{config}: systems.relative.data.train.corpora[0].max_examples must be" in said


def test_a_corpus_has_the_keys_that_are_read() -> None:
    known = {key for kind, others in CORPUS_TYPES.items() for key in (kind, *others)} | {
        "max_examples",
        "concatenate",
        "normalize",
        *LANGUAGE_KEYS,
        *TAG_KEYS,
    }
    assert set(CorpusKeys.model_fields) == known


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("/data/run #2", "/data/run #2"),
        ("# no comment", "# no comment"),
        ("a: b", "a: b"),
        ("010", 10),
        ("08", 8),
        ("+3", 3),
        ("1:30", "1:30"),
        ("1_000", "1_000"),
        ("2020-01-01", "2020-01-01"),
        ("2020-13-45", "2020-13-45"),
        ("no", "no"),
        ("on", "on"),
        ("True", True),
        ("3e-4", 3e-4),
        ("1e5", 1e5),
        (".5", 0.5),
        ("", None),
        ("null", None),
        ("~", None),
        ("'010'", "010"),
        ('"a #b"', "a #b"),
        ("[1, '#2']", [1, "#2"]),
        ("{a: {b: no}}", {"a": {"b": "no"}}),
        ("a\tb", "a\tb"),
        (" 2 ", 2),
        ("<<", "<<"),
        ("*x", "*x"),
        ("!!int 5", "!!int 5"),
        ("- a", "- a"),
        ("a\nb # c", "a\nb # c"),
    ],
)
def test_a_value_of_the_command_line_is_what_was_typed(typed: str, meant: Any) -> None:
    assert parse_value(typed) == meant and type(parse_value(typed)) is type(meant)


@pytest.mark.parametrize("typed", ["[a #b]", "[1", "'", "{a: b: c}", "[*a]"])
def test_a_value_in_brackets_or_quotes_is_yaml(config: Path, typed: str) -> None:
    with pytest.raises(ValueError, match=r"An override's value .* is not: line"):
        load_experiment(config, [f"output_dir={typed}"])


def test_extends_on_the_command_line_is_refused_with_the_remedy(config: Path) -> None:
    with pytest.raises(ValueError, match=r"config file, but .*'extends=other\.yaml';"):
        load_experiment(config, ["extends=other.yaml"])


BROKEN = {
    "a list that holds itself": "a: &a [*a]",
    "nested too deep": "a: " + "[" * 3000 + "]" * 3000,
    "nested too deep in blocks": "- " * 3000 + "a",
    "a number of many digits": f"a: {'9' * 5000}",
    "a version of many digits": f"%YAML {'9' * 5000}.1\n--- {{a: 1}}",
    "a character that is none": 'a: "\\U00110000"',
    "an object": "a: !!python/object/apply:os.system [echo]",
    "a date that is none": "a: !!timestamp 2020-13-45",
    "a number that is none": "a: !!int x",
    "a key that is a list": "[a]: b",
    "a key twice": "a: 1\n'a': 2",
    "two documents": "a: 1\n---\nb: 2",
    "a byte that is no text": b"a: \xe9",
    "a character NUL": "a: \0",
    "UTF-16": "a: 1".encode("utf-16"),
    "a list": "[a, b]",
    "not closed": "a: [1",
}  # fmt: skip


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_refused_by_its_name_in_one_line(content: str | bytes, tmp_path: Path) -> None:
    path = tmp_path / "odd.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=r"^A config file .* but \S*odd\.yaml .*\.$") as refused:
        load_experiment(path)
    assert len(str(refused.value)) < 400


def test_aliases_and_merges_are_read(tmp_path: Path) -> None:
    path = tmp_path / "fine.yaml"
    path.write_text("a: &a {x: 1}\nb: {<<: *a, y: 2}\nc: [*a, *a]\n2014: &k text\n? *k\n: 010\n", encoding="utf-8")
    assert read_yaml(path, "It") == {
        "a": {"x": 1}, "b": {"x": 1, "y": 2}, "c": [{"x": 1}, {"x": 1}], "2014": "text", "text": 10,
    }  # fmt: skip


@pytest.mark.parametrize(
    "text", ["010", "1e5", "0o17", "5.", "1:30", "no", "2020-01-01", "a #b", ".nan", "<<", "~", "é", ""]
)
def test_what_is_written_is_read_alike_by_everyone(text: str, tmp_path: Path) -> None:
    path, content = (
        tmp_path / "written.yaml",
        {"key": text, "list": [text, 1, 1e-5, None, True], "keys": {text or "x": 1}},
    )
    path.write_text(dump_yaml(content), encoding="utf-8")
    assert read_yaml(path, "It") == yaml.safe_load(path.read_text(encoding="utf-8")) == content


@pytest.mark.parametrize("chain", [["a"], ["a", "b"], ["a", "b", "c"]])
def test_a_config_that_extends_itself_is_refused_by_the_files_names(chain: list[str], tmp_path: Path) -> None:
    for name, parent in zip(chain, [*chain[1:], chain[0]], strict=True):
        (tmp_path / f"{name}.yaml").write_text(f"extends: {parent}.yaml\n")
    with pytest.raises(ValueError, match=r"but \S*a?\.yaml extends \S*\.yaml.*;"):
        load_experiment(tmp_path / "a.yaml")


def test_a_file_that_extends_another_twice_is_refused(config: Path) -> None:
    config.with_name("twice.yaml").write_text(f"extends: [{config.name}, {config.name}]\n")
    with pytest.raises(ValueError, match=r"once, but in \S*twice\.yaml it is .*;"):
        load_experiment(config.with_name("twice.yaml"))


def test_a_file_is_read_once_however_often_it_is_extended(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []
    monkeypatch.setattr(
        "hf_posenc.lab.config.yaml_io.read_yaml", lambda path, what: reads.append(path) or read_yaml(path, what)
    )
    for i in range(26):
        parent = f"e{i + 1}.yaml" if i < 25 else config.name
        config.with_name(f"e{i}.yaml").write_text(f"extends: [{parent}, ./{parent}]\n")
    assert load_experiment(config.with_name("e0.yaml")).systems == load_experiment(config).systems
    assert len(reads) == 27 + 1


def test_the_home_folder_is_meant_in_every_path_of_a_config(config: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    config.rename(tmp_path / "home" / "base.yaml")
    config.write_text("extends: ~/base.yaml\noutput_dir: ~/runs\ndata: {data_dir: ~/corpora}\n")
    experiment = load_experiment(config)
    assert experiment.output_dir == tmp_path / "home" / "runs"
    assert absolute_path("a.de", experiment.systems["relative"].data.data_dir) == str(
        tmp_path / "home" / "corpora" / "a.de"
    )
    assert load_experiment("~/base.yaml").systems == load_experiment(tmp_path / "home" / "base.yaml").systems
    with pytest.raises(FileNotFoundError, match=f"there is none at {tmp_path}/home/absent.py"):
        load_experiment(config, ["encoding_files=[~/absent.py]"])


def test_a_home_that_there_is_not_is_refused_and_no_folder_of_that_name_is_made(config: Path) -> None:
    with pytest.raises(ValueError, match=r"'~nobody-here/runs' .*; write \./~nobody-here/runs"):
        load_experiment(config, ["output_dir=~nobody-here/runs"])
    assert expand_home("a~b/~") == "a~b/~"


@pytest.mark.parametrize(
    "words",
    [
        ["translate", "~/run/system", "--input=~/in.de", "--output=~/out.en", "--register=~/own.py"],
        ["export", "~/run/system", "--engine=onnx", "--output=~/onnx"],
        ["report", "~/run", "--output=~/report"],
        ["samples", "~/run", "--output=~/samples"],
        ["card", "~/run", "relative"],
        ["figures", "relative", "--output=~/figures", "--checkpoint=~/run/system"],
        ["attention", "~/run/system", "text", "--output=~/maps"],
        ["explorer", "~/run"],
    ],
    ids=lambda words: words[0],
)
def test_the_home_folder_is_meant_in_every_path_of_the_command_line(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    seen: list[Any] = []
    monkeypatch.setattr(commands, words[0], lambda options: seen.extend(vars(options).values()))
    monkeypatch.setattr(commands, "register_encodings", lambda path: seen.append(path))
    monkeypatch.setattr("sys.argv", ["hf_posenc", *words])
    cli.main()
    paths = [value for value in seen if isinstance(value, Path)]
    typed = [part for word in words for part in word.split("=") if part.startswith("~/")]
    assert {str(path) for path in paths} == {str(tmp_path / part[2:]) for part in typed}
    monkeypatch.setattr(
        "sys.argv", ["hf_posenc", words[0], *(word.replace("~/", "~nobody-here/") for word in words[1:])]
    )
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2


def test_an_export_to_the_home_folder_is_written_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(commands, "load_model", lambda folder: (None, None))
    written = []
    monkeypatch.setitem(commands.EXPORTERS, "onnx", lambda model, tokenizer, folder: written.append(str(folder)))
    monkeypatch.setattr("sys.argv", ["hf_posenc", "export", "~/run", "--engine=onnx", "--output=~/onnx"])
    cli.main()
    assert written == [str(tmp_path / "onnx")]


def test_the_docs_have_every_key_its_kind_and_its_default() -> None:
    text = (ROOT / "docs" / "reference" / "config_file.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line[:3] == "| `"]
    keys = [row for row in rows if len(row) == 4]
    assert {
        key.strip("`").removeprefix("systems.NAME."): (kind, default) for key, kind, default, _ in keys
    } == documented()
    assert set(TRAINED_SYSTEM_KEYS) <= set(FileKeys.model_fields), "what a system may change, the file says"
