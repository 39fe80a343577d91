"""Train a language model with transformers' Trainer, and print its perplexity by position beyond the training length.

python examples/language_model.py text.txt folder rotary     # each line of the file is a document

Documents are not concatenated. Each is cut into blocks of LENGTH tokens, and each block is a row. Every tenth document
is held out. Held-out blocks have up to 4 x LENGTH tokens, so later positions have more context than any in training.
"""

import math
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, DataCollatorForLanguageModeling, Trainer, TrainingArguments

from hf_posenc import PosEncCausalConfig, PosEncTokenizer

LENGTH, STEPS = 64, 300
file, folder, encoding = sys.argv[1:]
documents = [line for line in Path(file).read_text(encoding="utf-8").split("\n") if line.strip()]
tokenizer = PosEncTokenizer.train(documents, vocab_size=500)


def blocks(texts: list[str], length: int) -> list[dict[str, list[int]]]:
    """The documents' tokens, `<s>` text `</s>`, in blocks of at most `length`."""
    rows = [[tokenizer.bos_token_id, *ids] for ids in tokenizer(texts)["input_ids"]]
    return [{"input_ids": row[start : start + length]} for row in rows for start in range(0, len(row), length)]


config = PosEncCausalConfig(
    position_encoding_type=encoding, vocab_size=len(tokenizer), hidden_size=64, num_hidden_layers=2,
    num_attention_heads=4, intermediate_size=256,
)  # fmt: skip
model = AutoModelForCausalLM.from_config(config)
training = blocks([text for number, text in enumerate(documents) if number % 10], LENGTH)
arguments = TrainingArguments(
    folder, max_steps=STEPS, per_device_train_batch_size=16, learning_rate=2e-3, warmup_steps=40, report_to="none"
)
collator = DataCollatorForLanguageModeling(tokenizer, mlm=False)
trainer = Trainer(model, arguments, collator, training, processing_class=tokenizer)
trainer.train()
trainer.save_model()

model = AutoModelForCausalLM.from_pretrained(folder).eval()
nll, tokens = torch.zeros(4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
for row in blocks(documents[::10], 4 * LENGTH):
    ids = torch.tensor([row["input_ids"]])
    with torch.no_grad():
        log_probs = model(input_ids=ids).logits[0, :-1].double().log_softmax(-1)
    bucket = torch.arange(1, ids.shape[1]) // LENGTH
    nll.index_add_(0, bucket, -log_probs.gather(1, ids[0, 1:, None])[:, 0])
    tokens.index_add_(0, bucket, torch.ones_like(bucket, dtype=torch.float64))
for number in range(4):
    perplexity = f"{math.exp(nll[number] / tokens[number]):.2f}" if tokens[number] else "-"
    positions = f"positions {number * LENGTH} to {(number + 1) * LENGTH - 1}"
    print(f"{positions}: perplexity {perplexity}, {int(tokens[number])} tokens")
