"""Uses of a model in the ecosystem: compilation, export, offloading, quantisation, adapters, half precision."""

import copy
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator

import accelerate
import pytest
import torch
from peft import LoraConfig, PeftModel, PrefixTuningConfig, PromptTuningConfig, TaskType, get_peft_model
from support.models import (
    ALIGNED,
    EVERY_ENCODING,
    KINDS,
    REGISTERED,
    SUMS,
    entries,
    sentences,
    tiny_model,
)
from torch import Tensor, nn
from torch._dynamo.exc import Unsupported
from torch._dynamo.testing import CompileCounterWithBackend
from transformers import AutoModelForSeq2SeqLM, BitsAndBytesConfig, CompileConfig

from hf_posenc import Alignment, PositionEncoding
from hf_posenc.encodings.rnn import supports_lstm

SYSTEMS = [*KINDS, *ALIGNED, "rnn_nmt"]
RECURRENT = [name for name in SYSTEMS if name == "rnn_nmt" or any(entry.is_sequential for entry in entries(name))]
# Their alignment reads a target token by token, so that each length is a graph of its own.
SCANNED = [name for name, alignment in ALIGNED.items() if alignment.update is None]
A_GRAPH_EACH = "every length is a graph of its own, since its alignment reads token by token"
PARALLEL = [name for name in SYSTEMS if name not in RECURRENT]
# A compilation takes long.
COMPILED = [name for name in PARALLEL if EVERY_ENCODING or name == "relative+window by fertility"]
IN_PARTS = [name for name in RECURRENT if EVERY_ENCODING or name in ("gru", "rnn_nmt")]
# One encoding of each attention plan, a stateful one, an alignment, a recurrent model.
STATIC = ("window", "relative", "deberta", "forgetting", "relative+window by fertility", "rnn_nmt")
GENERATED = [name for name in SYSTEMS if EVERY_ENCODING or name in STATIC]
EXACT = {"rtol": 1e-9, "atol": 1e-9}
GENERATE = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False, "no_repeat_ngram_size": 1}
# Of source and target; the first is compiled as it is, the second with lengths left open, the others not at all.
LENGTHS = [(5, 6), (9, 7), (12, 13), (21, 17)]

pytestmark = pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning",
    "ignore::DeprecationWarning:torch",  # of torch about itself, while it compiles
    "ignore::FutureWarning:torch",
    "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning",  # peft asks by the old name
    "ignore:.*:UserWarning:torch._inductor",
)


def batch(source: int = 6, target: int = 5) -> dict[str, Tensor]:
    """Three sentences, the first of which ends in padding."""
    ids = sentences(3, source, seed=1)
    mask = torch.ones_like(ids)
    mask[0, -2:] = 0
    return {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": sentences(3, target, seed=2)}


@pytest.fixture
def forgetful() -> Iterator[None]:
    """torch forgets what it has compiled, before and after."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def trained(run: nn.Module, model: nn.Module, source: int, target: int) -> dict[str, Tensor]:
    """The loss and all gradients of a training step."""
    model.zero_grad()
    given = batch(source, target)
    loss = run(**given, labels=given["decoder_input_ids"]).loss
    loss.backward()
    return {"loss": loss.detach()} | {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.capability("compile", "whole")
@pytest.mark.slow
@pytest.mark.parametrize("system", COMPILED)
def test_a_training_step_compiles_whole_and_twice_for_all_lengths(system, forgetful):
    if system in SCANNED:
        pytest.skip(A_GRAPH_EACH)
    model = tiny_model(system, dropout=0.0, encoder_layers=1, decoder_layers=1).train()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    for lengths in LENGTHS:
        torch.testing.assert_close(trained(compiled, model, *lengths), trained(model, model, *lengths), **EXACT)
    assert counter.frame_count == 2


@pytest.mark.slow
@pytest.mark.capability("compile", "in parts")
@pytest.mark.parametrize("system", IN_PARTS)
def test_models_with_graph_breaks_compile_in_parts(system, forgetful):
    model = tiny_model(system, dropout=0.0, encoder_layers=1, decoder_layers=1).train()
    with pytest.raises(Unsupported, match="RNN, GRU, or LSTM"):
        torch.compile(model, backend="eager", fullgraph=True)(**batch())
    parts = torch.compile(model, backend="eager")
    torch.testing.assert_close(trained(parts, model, 6, 5), trained(model, model, 6, 5), **EXACT)


@pytest.mark.capability("compiled decoding")
@pytest.mark.slow
@pytest.mark.parametrize("system", GENERATED)
def test_a_static_cache_is_decoded_from_one_graph(system, forgetful):
    model, given = tiny_model(system), batch()
    del given["decoder_input_ids"]
    plain = model.generate(**given, **GENERATE)
    counter = CompileCounterWithBackend("eager")
    whole = system in PARALLEL
    how = CompileConfig(backend=lambda graph, inputs, **_: counter(graph, inputs), mode=None, fullgraph=whole)
    how._compile_all_devices = True  # transformers compiles on accelerators only, unless it is told
    compiled = model.generate(**given, **GENERATE, cache_implementation="static", compile_config=how)
    assert torch.equal(compiled, plain)
    assert counter.frame_count == 1 if whole else counter.frame_count > 1


@pytest.mark.capability("export")
@pytest.mark.slow
@pytest.mark.parametrize("system", COMPILED)
@torch.no_grad()
def test_an_exported_model_is_right_at_other_sizes(system):
    if system in SCANNED:
        pytest.skip(A_GRAPH_EACH)
    model = tiny_model(system)
    open_ = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    exported = torch.export.export(
        model,
        (),
        batch() | {"use_cache": False},
        dynamic_shapes=dict.fromkeys(batch(), open_) | {"use_cache": None},
    ).module()
    for lengths in LENGTHS:
        given = {name: torch.cat((ids, ids)) for name, ids in batch(*lengths).items()}
        torch.testing.assert_close(
            exported(**given, use_cache=False).logits, model(**given, use_cache=False).logits, **EXACT
        )


@pytest.mark.full
@pytest.mark.capability("{dtype}")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("system", SYSTEMS)
def test_half_precision_is_near_float32(system, dtype):
    """The model itself, and autocast, which keeps the weights and their gradients in float32."""
    exact = tiny_model(system, dtype=torch.float32, dropout=0.0)
    near = 0.06 if dtype == torch.bfloat16 else 0.01
    expected = trained(exact.train(), exact, 6, 5)  # with the loss of an alignment, which only training has
    half = copy.deepcopy(exact.eval()).to(dtype)
    with torch.no_grad():
        logits, expected_logits = half(**batch()).logits, exact(**batch()).logits
        with torch.autocast("cpu", dtype):
            cast_logits, start = exact(**batch()).logits, batch()["decoder_input_ids"]
            generated = exact.generate(batch()["input_ids"], decoder_input_ids=start, num_beams=2, **GENERATE)
    assert logits.dtype == dtype
    for found in (logits, cast_logits):
        assert (found.float() - expected_logits).square().mean().sqrt() < near * expected_logits.std()
    assert generated.shape[1] == 1 + start.shape[1] + GENERATE["max_new_tokens"]
    with torch.autocast("cpu", dtype):
        under_autocast = trained(exact.train(), exact, 6, 5)
    assert {gradient.dtype for name, gradient in under_autocast.items() if name != "loss"} == {torch.float32}
    # Sums over tokens, heads and layers lose digits too where the gradients themselves are in half precision.
    for found, most in ((under_autocast, near), (trained(half.train(), half, 6, 5), 2 * near)):
        torch.testing.assert_close(found.pop("loss").float(), expected["loss"], rtol=near, atol=near)
        off, whole = (torch.cat([one[name].float().flatten() for name in found]) for one in (found, expected))
        assert nn.functional.cosine_similarity(off, whole, dim=0) > 1 - most


@pytest.mark.slow
def test_half_precision_needs_no_lstm_of_the_processor(tmp_path):
    """As oneDNN's on one without AVX-512, which lacks it for bf16 and fp16; told so before torch is loaded."""
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX2"}
    half = ["-k", "half_precision_is and (lstm or rnn_nmt)", "-W", "error"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, *half]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:]
    assert "4 passed" in done.stdout and "skipped" not in done.stdout
    found = subprocess.run([sys.executable, "-c", HAS_LSTM], env=environment, capture_output=True, text=True)
    assert found.stdout.split() == ["False", "True"], found.stderr[-2000:]


# Whether there is one for bf16, and whether the question was answered without a random number.
HAS_LSTM = """
import torch
from hf_posenc import Alignment, PositionEncoding
from hf_posenc.encodings.rnn import supports_lstm
before = torch.get_rng_state()
print(supports_lstm(torch.bfloat16, trained=True), torch.equal(torch.get_rng_state(), before))
"""


@pytest.mark.slow
@pytest.mark.parametrize("system", ["lstm", "rnn_nmt"])
def test_autocast_compiles_in_parts(system, forgetful):
    """Also where the processor is asked first whether it has such an LSTM."""
    model = tiny_model(system, dtype=torch.float32, dropout=0.0, encoder_layers=1, decoder_layers=1).train()
    supports_lstm.__wrapped__.cache_clear()
    with torch.autocast("cpu", torch.bfloat16):
        parts = trained(torch.compile(model, backend="eager"), model, 6, 5)
        whole = trained(model, model, 6, 5)
    torch.testing.assert_close(parts, whole, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
@pytest.mark.capability("offloaded")
@pytest.mark.filterwarnings("ignore:You are calling .generate.. with the `input_ids` being on a device type")  # 5.17
@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("to", ["cpu", "disk"])
@torch.no_grad()
def test_an_offloaded_model_computes_and_generates_the_same(system, to, tmp_path):
    """An encoding is asked in the middle of another module's forward; its parameters must be there by then."""
    model = tiny_model(system)
    logits, tokens = model(**batch()).logits, model.generate(batch()["input_ids"], num_beams=2, **GENERATE)
    if to == "cpu":
        offloaded = accelerate.cpu_offload(model, execution_device="cpu")
        assert all(parameter.is_meta for parameter in offloaded.parameters())
    else:
        model.save_pretrained(tmp_path / "model")
        sides = {"model.encoder": "disk", "model.decoder": "disk", "lm_head": "cpu"}
        offloaded = AutoModelForSeq2SeqLM.from_pretrained(
            tmp_path / "model", dtype=torch.float64, device_map=sides, offload_folder=tmp_path / "offloaded"
        )
        assert all(parameter.is_meta for parameter in offloaded.model.decoder.parameters())
    torch.testing.assert_close(offloaded(**batch()).logits, logits, **EXACT)
    assert torch.equal(offloaded.generate(batch()["input_ids"], num_beams=2, **GENERATE), tokens)


@pytest.mark.capability("{bits} bit")
@pytest.mark.skipif(importlib.util.find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")
@pytest.mark.filterwarnings("ignore:.*quantization:UserWarning")  # it tells of its casts
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("system", SYSTEMS)
@torch.no_grad()
def test_a_quantised_model_computes_with_its_rounded_weights(system, bits, tmp_path):
    wide = {} if system == "rnn_nmt" else {"encoder_ffn_dim": 64, "decoder_ffn_dim": 64}  # for blocks of weights
    model = tiny_model(system, dtype=torch.float32, d_model=64, encoder_layers=1, decoder_layers=1, **wide)
    model.save_pretrained(tmp_path)
    how = BitsAndBytesConfig(load_in_8bit=bits == 8, load_in_4bit=bits == 4)
    quantised, rounded = (
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path, quantization_config=how, device_map="cpu") for _ in range(2)
    )
    assert any(type(module).__name__ == f"Linear{bits}bit{'Lt' * (bits == 8)}" for module in quantised.modules())
    found = quantised(**batch()).logits.float()
    expected = rounded.dequantize()(**batch()).logits.float()
    # The median: where a source position is at an edge between tokens, rounding moves the window by one of them.
    error = (found - expected).square().mean(-1).sqrt().median()
    assert error < (0.1 if bits == 8 else 0.04) * expected.std()
    assert (found - model(**batch()).logits).square().mean().sqrt() < expected.std()


@pytest.mark.full
@pytest.mark.capability("LoRA")
@pytest.mark.parametrize("system", SYSTEMS)
def test_low_rank_adapters_are_trained_saved_and_merged(system, tmp_path):
    model = tiny_model(system, dropout=0.0)
    with torch.no_grad():
        before = model(**batch()).logits
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear) and name != "lm_head"]
    how = LoraConfig(task_type=TaskType.SEQ_2_SEQ_LM, r=2, target_modules=linear)
    adapted = get_peft_model(copy.deepcopy(model), how).double()
    with torch.no_grad():
        torch.testing.assert_close(adapted(**batch()).logits, before, **EXACT)
    optimizer = torch.optim.SGD([p for p in adapted.parameters() if p.requires_grad], lr=1.0)
    for _ in range(2):  # the second factor of an adapter begins at zero, so that the first learns a step later
        optimizer.zero_grad()
        adapted(**batch(), labels=batch()["decoder_input_ids"]).loss.backward()
        optimizer.step()
    for name, parameter in adapted.named_parameters():
        assert (parameter.grad is not None) == ("lora_" in name), name
        assert parameter.grad is None or parameter.grad.any(), name
    with torch.no_grad():
        after = adapted.eval()(**batch()).logits
        assert (after - before).abs().max() > 1e-3
        adapted.save_pretrained(tmp_path)
        again = PeftModel.from_pretrained(copy.deepcopy(model), tmp_path).double()
        torch.testing.assert_close(again(**batch()).logits, after, **EXACT)
        merged = again.merge_and_unload()
        torch.testing.assert_close(merged(**batch()).logits, after, **EXACT)
        assert torch.equal(merged.generate(batch()["input_ids"], **GENERATE), adapted.generate(
            input_ids=batch()["input_ids"], **GENERATE
        ))  # fmt: skip


def adaptable(model: nn.Module) -> list[str]:
    """The own parameters of encodings and alignments that PEFT can adapt: of two or three dimensions."""
    return [
        f"{name}.{table}"
        for name, module in model.named_modules()
        if isinstance(module, PositionEncoding | Alignment)
        for table, parameter in module.named_parameters(recurse=False)
        if parameter.ndim in (2, 3)
    ]


@pytest.mark.full
@pytest.mark.parametrize(
    ("system", "cross"),
    [
        ("relative+window by recurrent", "deberta+window"),
        ("alibi by fertility", "relative+window"),
        *((system, "none") for system in (*REGISTERED, *SUMS)),
        *(("none", cross) for cross in ("t5", "kerple", "fire", "transformer_xl")),
    ],
)
def test_adapters_of_tables_are_trained_saved_and_merged(system, cross, tmp_path):
    model = tiny_model(system, dropout=0.0, cross_position_encoding_type=cross).train()
    parameters = adaptable(model)
    if not parameters:
        return
    adapter = LoraConfig(r=2, target_modules=[], target_parameters=parameters, init_lora_weights=False)
    adapted = get_peft_model(copy.deepcopy(model), adapter).double()
    adapted(**batch(), labels=batch()["decoder_input_ids"]).loss.backward()
    for name, parameter in adapted.named_parameters():
        assert parameter.grad.any() if "lora_" in name else parameter.grad is None, name
    with torch.no_grad():
        expected = adapted.eval()(**batch()).logits
        assert (expected - model.eval()(**batch()).logits).abs().max() > 1e-3
        tokens = adapted.generate(input_ids=batch()["input_ids"], **GENERATE)
        adapted.save_pretrained(tmp_path)
        loaded = PeftModel.from_pretrained(model, tmp_path).double()
        torch.testing.assert_close(loaded(**batch()).logits, expected, **EXACT)
        merged = loaded.merge_and_unload()
        torch.testing.assert_close(merged(**batch()).logits, expected, **EXACT)
        assert torch.equal(merged.generate(batch()["input_ids"], **GENERATE), tokens)


@pytest.mark.parametrize("system", ["gru", "rnn_nmt"])
def test_adapters_of_a_recurrent_networks_weights_are_refused(system):
    """torch reads the weights of a network from a list, in which an adapter is not."""
    model = tiny_model(system)
    [weight, *_] = [name for name, _ in model.named_parameters() if "weight_ih" in name]
    adapted = get_peft_model(model, LoraConfig(target_modules=[], target_parameters=[weight]))
    with pytest.raises(ValueError, match=r"must not have adapters .* modules_to_save"):
        adapted(**batch())


@pytest.mark.parametrize("system", ["relative", "t5", "gru"])
def test_an_encoding_is_trained_whole_beside_adapters(system):
    how = LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["positions.0"])
    adapted = get_peft_model(tiny_model(system, dropout=0.0), how).double()
    adapted(**batch(), labels=batch()["decoder_input_ids"]).loss.backward()
    copies = {name: p.grad for name, p in adapted.named_parameters() if "modules_to_save" in name}
    assert copies
    assert all(gradient is not None and gradient.any() for gradient in copies.values())


@pytest.mark.capability("packed")
@pytest.mark.parametrize("back_end", ["sdpa", "eager"])
@pytest.mark.parametrize("form", ["Boolean", "additive"])
@pytest.mark.parametrize("system", PARALLEL)
@torch.no_grad()
@pytest.mark.full
def test_packed_sentences_equal_separate_ones(system, form, back_end):
    """By masks of four dimensions, block by block, and positions that begin again."""
    if system in ALIGNED:
        pytest.skip("refused: a row of several sentences does not say where each source ends")
    model = tiny_model(system)
    model.set_attn_implementation(back_end)
    sources, targets = [sentences(1, n, seed=n) for n in (4, 6)], [sentences(1, n, seed=n) for n in (5, 3)]

    def blocks(rows: list[Tensor], columns: list[Tensor]) -> Tensor:
        mask = torch.block_diag(*(torch.ones(r.shape[1], c.shape[1]) for r, c in zip(rows, columns, strict=True))) > 0
        mask = (mask.tril() if rows is columns is targets else mask)[None, None]
        return mask if form == "Boolean" else torch.zeros(mask.shape, dtype=torch.float64).masked_fill(~mask, -1e30)

    def restarting(rows: list[Tensor]) -> Tensor:
        return torch.cat([torch.arange(row.shape[1]) for row in rows])[None]

    encoded = model.model.encoder(
        torch.cat(sources, 1), attention_mask=blocks(sources, sources), position_ids=restarting(sources)
    ).last_hidden_state
    decoded = model.model.decoder(
        torch.cat(targets, 1), attention_mask=blocks(targets, targets), position_ids=restarting(targets),
        encoder_hidden_states=encoded, encoder_attention_mask=blocks(targets, sources),
    ).last_hidden_state  # fmt: skip
    alone = [model(input_ids=s, decoder_input_ids=t).logits for s, t in zip(sources, targets, strict=True)]
    torch.testing.assert_close(model.lm_head(decoded), torch.cat(alone, 1), **EXACT)


@pytest.mark.parametrize("system", ["sinusoidal", "relative", "gru", "rnn_nmt"])
def test_prefix_tuning_works_or_names_what_does(system):
    """Its cache is peft's own, and has no place for what some encodings remember."""
    sizes = {"num_layers": 3, "token_dim": 16, "num_attention_heads": 4}
    how = {"task_type": TaskType.SEQ_2_SEQ_LM, "num_virtual_tokens": 3}
    inputs = batch()
    prefixed = get_peft_model(tiny_model(system), PrefixTuningConfig(**how, **sizes)).double()
    if system == "sinusoidal":
        assert prefixed(**inputs).logits.isfinite().all()
        return
    with pytest.raises(ValueError, match=r"prefix tuning .* take LoRA"):
        prefixed(**inputs)
    prompted = get_peft_model(tiny_model(system), PromptTuningConfig(**how, **sizes)).double()
    assert prompted(**inputs).logits.isfinite().all()
