"""Train, save and use a translation model with transformers' Seq2SeqTrainer, and this package's config and tokenizer.

python examples/seq2seq_trainer.py pairs.jsonl folder     # each line: {"translation": {"de": "...", "en": "..."}}
"""

import sys

from datasets import load_dataset
from transformers import AutoModelForSeq2SeqLM, DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments

from hf_posenc import PosEncConfig, PosEncTokenizer

file, folder = sys.argv[1:]
pairs = load_dataset("json", data_files=file, split="train")["translation"]
tokenizer = PosEncTokenizer.train((text for pair in pairs for text in pair.values()), vocab_size=1000)
config = PosEncConfig(
    position_encoding_type="relative", vocab_size=len(tokenizer), d_model=64, encoder_layers=2, decoder_layers=2,
    encoder_ffn_dim=256, decoder_ffn_dim=256, encoder_attention_heads=4, decoder_attention_heads=4,
)  # fmt: skip
model = AutoModelForSeq2SeqLM.from_config(config)
encoded = [tokenizer(pair["de"], text_target=pair["en"], truncation=True, max_length=100) for pair in pairs]
arguments = Seq2SeqTrainingArguments(
    folder, max_steps=500, per_device_train_batch_size=32, learning_rate=2e-3, warmup_steps=40, report_to="none",
    eval_strategy="steps", eval_steps=250, predict_with_generate=True, generation_max_length=60,
)  # fmt: skip
trainer = Seq2SeqTrainer(
    model, arguments, DataCollatorForSeq2Seq(tokenizer, model), encoded[100:], encoded[:100], processing_class=tokenizer
)
trainer.train()
trainer.save_model()
model = AutoModelForSeq2SeqLM.from_pretrained(folder)
tokens = model.generate(**tokenizer([pairs[0]["de"]], return_tensors="pt"), num_beams=4)
print(pairs[0]["de"], tokenizer.batch_decode(tokens, skip_special_tokens=True)[0], sep="\n")
