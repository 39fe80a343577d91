"""What limits of the output's length change for long inputs: early ends, translations that run on, and scores.

    python benchmarks/length_controls.py MODEL [MODEL ...] --texts SOURCE TARGET [--ids FILE] [--lines 5] [--save NAME]

The models differ in their seed alone. SOURCE and TARGET have a sentence a line, plain or gzip. `--lines` consecutive
sentences of one document (`--ids`) are one input. The controls are

- greedy and beam search, and beam search with the length penalty 2, which prefers longer translations
- greedy search that cannot end before 0.9 times the expected length; the same with a maximum of 1.1 times that length;
  the expected length is the source's in tokens, times the ratio of all references to all sources
- greedy search that cannot end before the cross-attention was once strongest in the last tenth of the source

Dropped and repeated are shares of the source sentences by the audit, with the references. A loop is counted for an
input by the check of Translator. At most 2 x source + 50 tokens are written.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import common
import torch
from torch import Tensor
from tqdm.auto import tqdm
from transformers import LogitsProcessor, LogitsProcessorList
from translate_documents import Paragraph, argument_parser, read_paragraphs, score, score_cells, text_of, with_range

from hf_posenc.generation.limits import PerSentenceLength, forbid_tokens
from hf_posenc.translator.translator import Translator

SHORTEST, LONGEST, LAST_PART = 0.9, 1.1, 0.9
Record = dict[str, dict[str, float]]


class EndAfterSource(LogitsProcessor):
    """Forbids the end tokens in rows whose cross-attention was never strongest in the source's last tenth."""

    def __init__(self, mask_BS: Tensor, end_token_ids: Sequence[int]) -> None:
        self.ends_B = mask_BS.sum(1) - 1  # of the source's end token, which draws attention at any step
        self.starts_B = (LAST_PART * self.ends_B).long()
        self.is_covered_B = torch.zeros_like(self.starts_B, dtype=torch.bool)
        self.end_token_ids = end_token_ids

    def read(self, module: torch.nn.Module, inputs: Any, outputs: Any) -> None:
        """A forward hook of the model: the mean of all heads and layers at the newest token."""
        if outputs.cross_attentions:
            weights_BS = torch.stack([layer[:, :, -1].mean(1) for layer in outputs.cross_attentions]).mean(0)
            weights_BS[torch.arange(len(weights_BS)), self.ends_B] = 0
            self.is_covered_B |= weights_BS.argmax(1) >= self.starts_B

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return forbid_tokens(scores, ~self.is_covered_B[:, None], self.end_token_ids)


def translate(
    translator: Translator, texts: Sequence[str], ratio: float, control: Mapping[str, Any], batch_size: int
) -> list[str]:
    """The texts, longest first, by one control: options of `generate`, or `shortest`, `longest`, `covered`."""
    model, tokenizer = translator.model, translator.tokenizer
    options = {**translator.generate_options, "num_beams": 1, "max_length": None, **control}
    shortest, longest, covered = (options.pop(name, None) for name in ("shortest", "longest", "covered"))
    ends = model.generation_config.eos_token_id
    ends = [ends] if isinstance(ends, int) else ends
    order = sorted(range(len(texts)), key=lambda row: -translator.count(texts[row]))
    outputs = [""] * len(texts)
    for start in range(0, len(texts), batch_size):
        rows = order[start : start + batch_size]
        inputs = tokenizer([texts[row] for row in rows], padding=True, return_tensors="pt")
        mask_BS = inputs["attention_mask"]
        lengths = [ratio * length for length in mask_BS.sum(1).tolist()]
        limits = PerSentenceLength(
            [int(longest * length) - 1 for length in lengths] if longest else None,
            ends[0],
            min_lengths=[int(shortest * length) for length in lengths] if shortest else None,
            end_token_ids=ends,
        )
        processors, hooks = LogitsProcessorList([limits]), []
        if covered:
            processors.append(EndAfterSource(mask_BS, ends))
            hooks.append(model.register_forward_hook(processors[-1].read))
        output = model.generate(
            input_ids=inputs["input_ids"],
            attention_mask=mask_BS,
            max_new_tokens=2 * mask_BS.shape[1] + 50,
            logits_processor=processors,
            **options | {"output_attentions": bool(covered), "return_dict_in_generate": True},
        )
        for hook in hooks:
            hook.remove()
        for row, text in zip(rows, tokenizer.batch_decode(output.sequences, skip_special_tokens=True), strict=True):
            outputs[row] = text
    return outputs


def measure(folder: Path, paragraphs: Sequence[Paragraph], options: argparse.Namespace) -> Record:
    """A model's row for each control."""
    translator = Translator.from_pretrained(folder, *options.languages)
    translator.model.set_attn_implementation("eager")
    sources, references = ([" ".join(pair[side] for pair in paragraph) for paragraph in paragraphs] for side in (0, 1))
    target_ids = translator.tokenizer(text_target=references)["input_ids"]
    ratio = sum(map(len, target_ids)) / sum(map(len, translator.tokenizer(sources)["input_ids"]))
    controls: dict[str, dict[str, Any]] = {
        "greedy": {},
        f"beam {options.num_beams}": {"num_beams": options.num_beams},
        f"beam {options.num_beams}, length penalty 2": {"num_beams": options.num_beams, "length_penalty": 2.0},
        f"at least {SHORTEST:g} of the expected length": {"shortest": SHORTEST},
        f"{SHORTEST:g} to {LONGEST:g} of the expected length": {"shortest": SHORTEST, "longest": LONGEST},
        "no end before the source's end": {"covered": True},
    }
    everything = {"all": list(range(len(paragraphs)))}
    record = {}
    for name, control in tqdm(controls.items(), leave=False, unit="control"):
        texts = translate(
            translator, [text_of(paragraph) for paragraph in paragraphs], ratio, control, options.batch_size
        )
        words = [sum(len(text.split()) for text in side) for side in (texts, references)]
        record[name] = {"length": words[0] / words[1]} | score(paragraphs, texts, everything)["all"]
    return record


def render(records: Sequence[Record], num_inputs: int, num_lines: int) -> str:
    """Mean and range over the models, a row a control."""
    lines = ["| decoding | length ratio | dropped | repeated | loops | BLEU | chrF |", "| --- |" + " ---: |" * 6]
    for name in records[0]:
        rows = [record[name] for record in records]
        cells = [with_range([row["length"] for row in rows], ".2f"), *score_cells(rows)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    note = f"{num_inputs} inputs of {num_lines} sentences. Mean (range) over models: {len(records)}."
    return "\n".join([*lines, "", note])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argument_parser(__doc__, 5)
    parser.add_argument("--num-beams", type=int, default=5, help="of the rows with a beam (default 5)")
    parser.add_argument("--batch-size", type=int, default=16)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    paragraphs = read_paragraphs(options)
    records = [measure(folder, paragraphs, options) for folder in options.models]
    table = render(records, len(paragraphs), options.lines)
    if options.save:
        common.save({"machine": common.machine_info("cpu"), "models": records}, table, options.save)
    print(table)


if __name__ == "__main__":
    main()
