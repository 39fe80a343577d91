"""The parts of docs/reference that are generated from the code, from saved results and from encodings.yaml.

    python docs/reference_pages.py        writes the stored parts between the marks, and the pages of the encodings

A stored part stands between `<!-- generated: NAME -->` and `<!-- end -->`; a test compares it. What a command or `help`
prints as well is not stored: the mark `<!-- site: NAME -->` becomes that part when docs/site_pages.py gathers the site.
Each encoding has a page of its own, docs/reference/encodings/NAME.md, made by `encoding_page` and stored as a whole.
"""

import argparse
import inspect
import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import patch

import yaml
from formulas import formula_html

import hf_posenc
from hf_posenc import ALIGNMENTS, POSITION_ENCODINGS, PosEncCausalConfig, PosEncConfig, RnnNmtConfig
from hf_posenc.encodings.base import HOOKS
from hf_posenc.lab.cli import make_parsers
from hf_posenc.lab.commands import alignments_table, encodings_table, markdown_table
from hf_posenc.lab.config.errors import Keys, describe, format_value
from hf_posenc.lab.config.file_keys import FileKeys, SystemKeys, TrainKeys, model_keys
from hf_posenc.lab.config.settings import (
    CorpusKeys,
    DataSettings,
    GeneratorKeys,
    NormalizationKeys,
    ReferenceTable,
    ScoreSettings,
    TaskKeys,
)
from hf_posenc.transformer.configuration_encodings import EncodingsConfig

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs" / "reference"
VERDICTS = ("reproduced", "partly", "not reproduced at this scale", "not tested")
STORED = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
AT_BUILD_TIME = re.compile(r"<!-- site: (\w+) -->")

# Models of a config file, by the prefix of their keys. A system's own entry has some keys that the file has not.
SCHEMAS: dict[str, type[Keys]] = {
    "": FileKeys,
    "data.": DataSettings,
    "data.normalize.": NormalizationKeys,
    "CORPUS.": CorpusKeys,
    "CORPUS.generator.": GeneratorKeys,
    "CORPUS.task.": TaskKeys,
    "train.": TrainKeys,
    "score.": ScoreSettings,
    "reference_table.": ReferenceTable,
    "systems.NAME.": SystemKeys,
}
# Saved tables with a row for many encodings, each with what it is of.
RESULTS = {
    "which-generated/table-generated.md": "Synthetic sentences, trained to 24 subwords",
    "which-multi30k/table-overview.md": "Captions, trained on single ones of at most 30 subwords; -xK: K concatenated",
    "which-joined/table-overview.md": "Captions, trained on concatenated ones of at most 30 subwords as well",
    "news-encodings-small/table-newstest_all.md": "News, trained to 50 subwords",
    "news-table4-small/table-newstest_all.md": "News, variants of relative positions, trained to 100 subwords",
    "causal-news/table-talks-whole.md": "Language models, trained to 64 tokens",
}
COSTS = {
    "encodings-training-cpu": "training step",
    "encodings-decoding-cpu": "decoding step",
    "cope-decoding-cpu": "decoding step (AMD EPYC)",
}
ENTRY = re.compile(r"^ *((?:`[\w.]+`(?:,\s+)?)+)(?: \(.*?\))?: ", re.MULTILINE)


def documented(docstring: str | None) -> dict[str, str]:
    """What a docstring says of each name: of entries such as "`name`, `other`: text", which end at an empty line."""
    text, meanings = docstring or "", {}
    for entry in ENTRY.finditer(text):
        following = ENTRY.search(text, entry.end())
        said = text[entry.end() : following.start() if following else len(text)].split("\n\n")[0]
        for name in re.findall(r"`([\w.]+)`", entry[1]):
            meanings[name] = " ".join(said.split())
    return meanings


def config_key_rows() -> Iterator[list[str]]:
    """Key, what it must be, default, meaning: of every key of a config file but those of `model`."""
    extends = describe(str | list[str])
    yield ["`extends`", extends, "", "config files that this one changes; each replaces keys of those before it"]
    for prefix, schema in SCHEMAS.items():
        meanings = documented(schema.__doc__)
        for name, field in schema.model_fields.items():
            if schema is SystemKeys and name in FileKeys.model_fields:
                continue
            default = "" if field.default is None else shown(field.default)
            rule = describe(Annotated[field.annotation, field])
            yield [f"`{prefix}{name}`", rule, "needed" if field.is_required() else default, meanings[name]]


def shown(value: object) -> str:
    """A value as it is written in YAML."""
    return "`{}`".format(format_value(value).replace("'", ""))


def config_keys() -> str:
    return markdown_table(["key", "must be", "default", "meaning"], list(config_key_rows()))


def encodings() -> str:
    return encodings_table(POSITION_ENCODINGS, PosEncConfig())


def alignments() -> str:
    return alignments_table(ALIGNMENTS)


def verdicts() -> str:
    """The registry once more, by the papers' claims."""
    rows = [[f"[`{name}`]({name}.md)", said["claim"], said["verdict"]] for name, said in encoding_words().items()]
    return markdown_table(["encoding", "the paper's claim", "verdict"], rows)


def model_config() -> str:
    """Every field of the three config classes, with its default and its meaning."""
    parts = []
    for config_class in (PosEncConfig, PosEncCausalConfig, RnnNmtConfig):
        meanings = documented(config_class.__doc__)
        meanings |= {
            "attn_implementation": "transformers' attention back end: sdpa, eager, flex_attention.",
            "model_type": "posenc, posenc_causal or posenc_rnn_nmt; in config files it chooses the class.",
        }
        meanings |= {alias: f"`{name}`, by another name." for alias, name in config_class.attribute_map.items()}
        parameters = config_class.parameter_fields() if issubclass(config_class, EncodingsConfig) else {}
        meanings |= {name: parameter.meaning for name, parameter in parameters.items()}
        cross = [name for name, parameter in parameters.items() if name != parameter.name]
        rows = [
            [f"`{name}`", describe(kind), f"`{default}`", meanings[name]]
            for name, (kind, default) in model_keys(config_class).items()
            if name not in cross
        ]
        if cross:
            meaning = "The same of the cross-attention's encodings; None for the value of the other attentions."
            rows.append([registry(cross), "as without `cross_`", "`None`", meaning])
        parts += [f"## {config_class.__name__}", markdown_table(["field", "must be", "default", "meaning"], rows)]
    return "\n\n".join(parts)


def command_parsers() -> dict[str, argparse.ArgumentParser]:
    """The parser of `hf-posenc` and of each of its commands."""
    parser, commands = make_parsers()
    return {parser.prog: parser} | {command.prog: command for command in commands.values()}


def cli() -> str:
    """The help of each command, as `--help` prints it."""
    with patch.dict("os.environ", {"COLUMNS": "110"}):
        helps = {name: parser.format_help().rstrip() for name, parser in command_parsers().items()}
    return "\n\n".join(f"## {name}\n\n```text\n{text}\n```" for name, text in helps.items())


def api() -> str:
    """Each public name with its signature and docstring."""
    parts = []
    for name in hf_posenc.__all__:
        value = getattr(hf_posenc, name)
        if not callable(value):
            kind = type(value).__name__
            parts.append(
                f"## {name}\n\n" + (f"`{value}`" if isinstance(value, str) else f"A {kind}: {registry(value)}.")
            )
            continue
        module, line = inspect.getmodule(value), inspect.getsourcelines(value)[1]
        code = Path(str(inspect.getsourcefile(value))).relative_to(ROOT)
        parts += [f"## {name}", f"```python\n{signature(name, value)}\n```", f"`{code}`, line {line}"]
        parts += [f"```text\n{inspect.getdoc(value) or inspect.getdoc(module)}\n```"]
    return "\n\n".join(parts)


def registry(value: Any) -> str:
    return ", ".join(f"`{name}`" for name in value)


def signature(name: str, value: Any) -> str:
    text = str(inspect.signature(value)).replace("hf_posenc.", "")
    return f"{name}{text}" if len(text) < 300 else f"{name}(...)"


def encoding_words() -> dict[str, dict[str, Any]]:
    """The entries of encodings.yaml."""
    return yaml.safe_load((REFERENCE / "encodings.yaml").read_text(encoding="utf-8"))


def saved_rows(table: str, names: list[str]) -> tuple[list[list[str]], str]:
    """Header and rows of a saved table whose system is one of `names`, without seeds and limits; and its caption."""
    lines = (ROOT / "docs" / "results" / table).read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    caption = next((line for line in reversed(lines) if line and not line.startswith("|")), "")
    wanted = [row for row in cells[2:] if re.sub(r"(-\d+)?( \(\d+ seeds\))?$", "", row[0]) in names or row[0] in names]
    return ([cells[0], *wanted] if wanted else []), caption


def cost_rows(name: str) -> list[list[str]]:
    """What a step takes, as a multiple of that of `none`."""
    rows = []
    for saved, step in COSTS.items():
        records = json.loads((ROOT / "benchmarks" / "results" / f"{saved}.json").read_text(encoding="utf-8"))["records"]
        for record in records:
            if name in record["encoding"].split("+") and " by " not in record["encoding"]:
                size = f"{record['batch']} x {record['length']}"
                times = "{time_ratio:.2f} ({time_ratio_min:.2f}-{time_ratio_max:.2f})".format(**record)
                memory = f"{record['memory_ratio']:.2f}" if "memory_ratio" in record else ""
                rows.append([f"`{record['encoding']}`", step, size, times, memory])
    single = [row for row in rows if row[0] == f"`{name}`"]
    return single or rows


def acts_in_cross_attention(name: str) -> bool:
    """Whether a config takes the encoding there; modifiers are taken beside another."""
    sum_of = f"relative+{name}" if POSITION_ENCODINGS[name].is_modifier else name
    with suppress(ValueError):
        PosEncConfig(cross_position_encoding_type=sum_of)
        return True
    return False


def encoding_page(name: str) -> str:
    """The page of one encoding."""
    entry, words = POSITION_ENCODINGS[name], encoding_words()
    if name not in words:
        raise ValueError(
            f"Each encoding must have an entry in docs/reference/encodings.yaml, but {name} has none; add its title, "
            "claim, failures and verdict, which may be: not tested."
        )
    said = words[name]
    module = inspect.getmodule(entry.encoding)
    code = Path(str(inspect.getsourcefile(entry.encoding))).relative_to(ROOT).as_posix()
    encoding = entry(PosEncConfig(), PosEncConfig().side("encoder"))
    hooks = [hook for hook in (*HOOKS, "augment_positions") if getattr(encoding, hook) is not None]
    properties = {
        "acts in": ", ".join(f"`{hook}`" for hook in hooks) or "nothing",
        "shift-invariant": yes(entry.shift_invariant),
        "encoder equivariant to reversal": yes(entry.reversal_equivariant),
        "state in cached decoding": yes(entry.is_stateful),
        "only in sums": yes(entry.is_modifier),
        "in cross-attention": yes(entry.modifies_attention and acts_in_cross_attention(name)),
        "maximum length": f"`{entry.max_length_field}`" if entry.max_length_field else "any",
        "other names": registry(entry.aliases) or "none",
        "code": f"`{code}`",
    }
    parts = [
        "<!-- Made by docs/reference_pages.py from the code, encodings.yaml and saved results. -->",
        f"# {said['title']}: `{name}`",
        f"{entry.summary} [All encodings](index.md)",
        markdown_table(["property", "value"], [list(i) for i in properties.items()]).rstrip(),
    ]
    if "figure" in said:
        parts.append(
            f"![{said['title']}](../../gallery/{said['figure']})\n\n[How to read it](../../explain/gallery.md)"
        )
    if entry.formula:
        parts.append(f"## Formula\n\n{formula_html(entry.formula)}")
    if entry.encoding is not hf_posenc.PositionEncoding:
        notes = [inspect.cleandoc(str(text)) for text in (module and module.__doc__, entry.encoding.__doc__)]
        parts.append("## Notes\n\n" + "\n\n".join(notes))
    if entry.config_parameters:
        rows = [[f"`{p.name}`", f"`{p.default}`", p.constraint, p.meaning] for p in entry.config_parameters]
        parts.append("## Parameters\n\n" + markdown_table(["field", "default", "must be", "meaning"], rows).rstrip())
    verdict = f"**Claim.** {said['claim']}\n\n**Verdict: {said['verdict']}.** {said.get('evidence', '')}".rstrip()
    parts.append(f"## The claim, and our verdict\n\n{verdict}\n\n**Known failures.** {said['failures']}")
    parts.append("## Own results\n\n" + (own_results(said.get("rows", [name.replace("_", "-")])) or "None saved."))
    if costs := cost_rows(name):
        head = ["encoding", "step", "batch x length", "time over `none`", "memory over `none`"]
        machine = "Median (min-max) of rounds on one CPU core; differences of a tenth are noise."
        parts.append(f"## Cost\n\n{markdown_table(head, costs)}\n{machine} See [cost](../../results/cost.md).")
    if entry.references:
        parts.append("## References\n\n" + "\n".join(f"- {reference}" for reference in entry.references))
    return "\n\n".join(parts) + "\n"


def own_results(names: list[str]) -> str:
    """The rows of an encoding in saved tables, each with that of the first system, the baseline."""
    parts = []
    for table, title in RESULTS.items():
        rows, caption = saved_rows(table, names)
        baseline, _ = saved_rows(table, ["sinusoidal"])
        if rows:
            own = [row for row in rows[1:] if row not in baseline]
            link = f"[{title}](../../results/{table})"
            parts.append(f"### {link}\n\n{markdown_table(rows[0], [*baseline[1:], *own])}\n{caption}")
    return "\n\n".join(parts)


def yes(value: bool) -> str:
    return "yes" if value else "no"


PARTS: dict[str, Callable[[], str]] = {
    part.__name__: part for part in (alignments, api, cli, config_keys, encodings, model_config, verdicts)
}


def refreshed(text: str) -> str:
    """A page with its stored parts made again."""
    return STORED.sub(lambda mark: mark[1] + PARTS[mark[2]]().rstrip("\n") + "\n" + mark[3], text)


def completed(text: str) -> str:
    """A page with the parts that only the site has."""
    return AT_BUILD_TIME.sub(lambda mark: PARTS[mark[1]]() if mark[1] in PARTS else mark[0], text)


def main() -> None:
    pages = {page: page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs").rglob("*.md"))}
    current = {page: refreshed(text) for page, text in pages.items()}
    current |= {REFERENCE / "encodings" / f"{name}.md": encoding_page(name) for name in encoding_words()}
    for page, text in current.items():
        if pages.get(page) != text:
            page.write_text(text, encoding="utf-8")
            print(page.relative_to(ROOT))


if __name__ == "__main__":
    main()
