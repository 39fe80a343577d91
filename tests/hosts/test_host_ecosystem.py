"""Hosts with other positions in transformers' pipeline and Trainer, and in PEFT."""

import pytest
import torch
from hosts import host, replaced, tokens
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerFast, Trainer, TrainingArguments, pipeline

import hf_posenc
from hf_posenc.hosts.modeling_posenc_host import stack_of

pytestmark = [
    pytest.mark.decoding,
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning"),  # PEFT reads it
]


def rows(number: int) -> list[dict[str, Tensor]]:
    ids = tokens(number, 12)
    return [{"input_ids": row, "labels": row} for row in ids]


@pytest.mark.full
def test_trainer_trains_saves_and_resumes(tmp_path):
    model = replaced("llama", "t5")
    before = stack_of(model).posenc.sums["t5"][0].table.detach().clone()
    arguments = TrainingArguments(
        tmp_path, max_steps=4, save_steps=2, per_device_train_batch_size=2, use_cpu=True, report_to=[],
        learning_rate=1e-2, label_smoothing_factor=0.1, disable_tqdm=True,
    )  # fmt: skip
    Trainer(model, arguments, train_dataset=rows(8)).train()
    assert not torch.equal(stack_of(model).posenc.sums["t5"][0].table, before)
    again = type(model).from_pretrained(tmp_path / "checkpoint-2")
    Trainer(again, arguments, train_dataset=rows(8)).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    for ours, expected in zip(again.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours, expected)


@pytest.mark.full
def test_lora_trains_a_replaced_host(tmp_path):
    peft = pytest.importorskip("peft")
    model, ids = replaced("llama", "rotary+window", window_size=4, window_sinks=2), tokens(2, 12)
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj", "v_proj"], init_lora_weights=False))
    adapted(input_ids=ids, labels=ids).loss.backward()
    assert all(p.grad is not None and p.grad.any() for p in adapted.parameters() if p.requires_grad)
    with torch.no_grad():
        logits = adapted.eval()(input_ids=ids).logits
        adapted.save_pretrained(tmp_path)
        base = replaced("llama", "rotary+window", window_size=4, window_sinks=2)
        loaded = peft.PeftModel.from_pretrained(base, tmp_path).eval()
        torch.testing.assert_close(loaded(input_ids=ids).logits, logits)
        merged = adapted.merge_and_unload()
        torch.testing.assert_close(merged(ids).logits, logits, atol=1e-4, rtol=1e-4)


@pytest.mark.full
def test_pipeline_generates(tmp_path, caplog):
    words = Tokenizer(models.WordLevel({f"w{number}": number for number in range(60)} | {"<pad>": 60}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="w1").save_pretrained(tmp_path)
    model = replaced("llama", "alibi")
    model.save_pretrained(tmp_path)
    generate = pipeline("text-generation", model=str(tmp_path), device="cpu")
    assert type(generate.model) is type(model) and isinstance(generate.tokenizer, PreTrainedTokenizerFast)
    [[continued], [short]] = generate(["w5 w6 w7 w8", "w9"], max_new_tokens=4, batch_size=2, do_sample=False)
    batch = AutoTokenizer.from_pretrained(tmp_path)(["w5 w6 w7 w8"], return_tensors="pt")
    alone = model.generate(batch["input_ids"], max_new_tokens=4, do_sample=False)
    expected = generate.tokenizer.decode(alone[0])
    assert continued["generated_text"].replace(" ", "") == expected.replace(" ", "")
    assert short["generated_text"].startswith("w9") and "not supported" not in caplog.text


def test_a_wrapped_model_is_refused():
    peft = pytest.importorskip("peft")
    adapted = peft.get_peft_model(host("llama"), peft.LoraConfig(target_modules=["q_proj"]))
    with pytest.raises(TypeError, match="before it is wrapped"):
        hf_posenc.replace_positions(adapted, "none")
