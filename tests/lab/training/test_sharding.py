"""Two processes that share a batch (DDP), or also the model (FSDP2), compute what one would.

accelerate leaves FSDP out on a CPU, though torch has it there; here it is made to take the two processes for a GPU's.
"""

import json
import os
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator, DistributedType, PartialState
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedDataParallelKwargs, FullyShardedDataParallelPlugin
from support.causal import tiny_causal_model
from support.models import ALIGNED, EVERY_ENCODING, FAST, KINDS, MIXED, REGISTERED, SUMS, sentences, tiny_model
from support.ranks import ACCELERATE, PROCESSES, Ranks, become_rank, free_port, same, write_config
from torch import nn

from hf_posenc.lab.training.distributed import materialize, shard_by_layers

SIDES_TIED = {"share_encoder_decoder_embeddings": True, "decoder_vocab_size": 29}
TIES = ({"tie_word_embeddings": True}, SIDES_TIED, SIDES_TIED | {"tie_word_embeddings": True})


def shard() -> None:
    """In this process, FSDP on a CPU as fsdp.yaml sets it."""
    settings = load_config_from_file(str(ACCELERATE / "fsdp.yaml")).fsdp_config
    os.environ.update({name.upper(): str(value) for name, value in settings.items()})
    os.environ |= {"ACCELERATE_USE_FSDP": "true", "ACCELERATE_TORCH_DEVICE": "cpu"}
    torch.distributed.init_process_group("gloo")
    PartialState._prepare_backend = lambda self, *args, **kwargs: ("gloo", DistributedType.MULTI_GPU)


@pytest.mark.slow
def test_a_sharded_run_equals_an_unsharded_one(tmp_path):
    """With every table tied. Stopped, it goes on from there, to the bit."""
    path = write_config(tmp_path, max_steps=16, save_steps=4)
    model = {"position_encoding_type": "gru+relative", **TIES[-1]}
    overrides = [f"model.{name}={value}".lower() for name, value in model.items() if name != "decoder_vocab_size"]
    whole, sharded, told = (
        Ranks(path, name, *overrides, before=before)
        for name, before in (("whole", (None, None)), ("sharded", (shard, shard)), ("told", (shard, shard)))
    )
    while len(told.log()) < 5:
        assert all(process.is_alive() for process in told.processes), told.texts()
        time.sleep(0.01)
    told.processes[1].terminate()
    assert told.end() == [1, 1], told.texts()
    assert "SIGTERM stopped relative" in told.texts()[0]
    again = Ranks(path, "told", *overrides, before=(shard, shard))
    assert whole.end() == sharded.end() == again.end() == [0, 0], sharded.texts()
    losses = [[line["loss"] for line in run.log() if "loss" in line] for run in (whole, sharded, again)]
    assert len(losses[0]) == 16
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert losses[2] == losses[1]
    torch.testing.assert_close(sharded.weights(), whole.weights(), rtol=1e-3, atol=1e-4)
    assert same(again.weights(), sharded.weights())
    names = sorted(file.name for file in (whole.folder / "model").iterdir())
    for folder in (sharded.folder / "model", sharded.folder / "checkpoints" / "checkpoint-16"):
        assert set(names) - {"training.json", "README.md"} <= {file.name for file in folder.iterdir()}
        assert not list(folder.glob("_fsdp*"))
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        assert config["auto_map"]["AutoModelForSeq2SeqLM"] == "modeling_posenc.PosEncForConditionalGeneration"


@pytest.mark.slow
def test_translating_during_sharded_training_is_refused(tmp_path):
    refused = Ranks(write_config(tmp_path), "refused", "train.predict_with_generate=true", before=(shard, shard))
    assert refused.end() == [1, 1]
    assert all("leave train.predict_with_generate out" in text for text in refused.texts())


@pytest.mark.slow
def test_a_sharded_bf16_run_equals_an_unsharded_one_and_its_loss_is_float32(tmp_path):
    path, half = write_config(tmp_path), ("train.bf16=true", "model.position_encoding_type=learned+relative")
    whole, sharded = (
        Ranks(path, name, *half, before=before)
        for name, before in (("whole", (None, None)), ("sharded", (shard, shard)))
    )
    assert whole.end() == sharded.end() == [0, 0], sharded.texts()
    ours, theirs = ([line["loss"] for line in run.log() if "loss" in line] for run in (sharded, whole))
    assert ours == pytest.approx(theirs, rel=3e-4)  # a loss in bf16 is right to 4e-3


def model_of_case(system: str, **changes) -> nn.Module:
    """An encoder-decoder, or a decoder-only model for "causal" and an encoding."""
    kind, _, encoding = system.partition(" ")
    make = partial(tiny_causal_model, encoding) if kind == "causal" else partial(tiny_model, system)
    return make(dtype=torch.float32, dropout=0.0, **changes)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, *seeds: int, is_causal: bool) -> None:
    """One step on as many batches of equal weight."""
    for seed in seeds:
        ids = sentences(2, 7, seed=seed)
        labels = ids if is_causal else sentences(2, 6, seed=100 + seed)
        (model(input_ids=ids, labels=labels).loss / len(seeds)).backward()
    optimizer.step()
    optimizer.zero_grad()


def differences(number: int, port: int, cases: list[tuple[str, dict]], path: Path, is_sharded: bool) -> None:
    """What one of two processes does: two steps of a model that both train, each on its part of the batch, and of one
    that is trained alone; the greatest difference of any weight for each case."""
    become_rank(number, port, path.with_suffix(f".{number}.txt"))
    if is_sharded:
        shard()
    found = []
    for system, changes in cases:
        whole, part = model_of_case(system, **changes), model_of_case(system, **changes)
        is_causal = system.startswith("causal ")
        print(system, changes)
        if is_sharded:
            AcceleratorState._reset_state(reset_partial_state=True)
            accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin())
            shard_by_layers(part, accelerator.state.fsdp_plugin)
        else:
            # Without training's noise, and so without its length loss, a part of `fertility` has no gradient.
            accelerator = Accelerator(
                cpu=True, kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)]
            )
        assert accelerator.num_processes == 2
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.5) for model in (whole, part)]
        part, optimizers[1] = accelerator.prepare(part, optimizers[1])
        for first in (0, 2):
            step(whole, optimizers[0], first, first + 1, is_causal=is_causal)
            step(part, optimizers[1], first + number, is_causal=is_causal)
        trained = accelerator.unwrap_model(part)
        gathered = materialize(part, accelerator.get_state_dict(part)) if is_sharded else trained
        if number == 0:
            pairs = zip(gathered.parameters(), whole.parameters(), strict=True)
            found.append(max((ours - theirs).abs().max().item() for ours, theirs in pairs))
    if number == 0:
        path.write_text(json.dumps(found), encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("is_sharded", [True, False], ids=["FSDP", "DDP"])
def test_a_model_in_two_processes_trains_like_one_in_one(is_sharded, tmp_path):
    """Of the fast tests' encodings, and of every encoding where the environment has EVERY_ENCODING."""
    some = [*REGISTERED, *SUMS, *MIXED] if EVERY_ENCODING else [*(name for name in KINDS if name in FAST), *MIXED]
    cases = [(system, {}) for system in [*some, *ALIGNED, "rnn_nmt", "causal relative", "causal gru+rotary"]]
    cases += [(system, ties) for system in ("relative", "gru", "rnn_nmt") for ties in TIES]
    port, path = free_port(), tmp_path / "found.json"
    given = port, cases, path, is_sharded
    ranks = [PROCESSES.Process(target=differences, args=(number, *given)) for number in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(240)
    printed = [path.with_suffix(f".{number}.txt").read_text(encoding="utf-8") for number in range(2)]
    assert [process.exitcode for process in ranks] == [0, 0], "\n".join(printed)
    found = json.loads(path.read_text(encoding="utf-8"))
    assert len(found) == len(cases)
    assert [(case, most) for case, most in zip(cases, found, strict=True) if most > 1e-6] == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fsdp_version": 1}, "fsdp_version was 2 and is 1"),
        ({"auto_wrap_policy": "size_based_wrap"}, "auto_wrap_policy was 'transformer_.*' and is 'size_based_auto_wrap"),
        ({"state_dict_type": "SHARDED_STATE_DICT"}, "'FULL_STATE_DICT' and is 'SHARDED_STATE_DICT'"),
        ({"cpu_ram_efficient_loading": True}, "fsdp_cpu_ram_efficient_loading was False and is True"),
    ],
)
def test_sharding_in_a_way_that_these_models_cannot_take_is_refused(settings, message):
    right = {"fsdp_version": 2, "auto_wrap_policy": "transformer_based_wrap", "state_dict_type": "FULL_STATE_DICT"}
    shard_by_layers(tiny_model("relative"), FullyShardedDataParallelPlugin(**right))
    with pytest.raises(ValueError, match=rf"{message}.*; launch with that file"):
        shard_by_layers(tiny_model("relative"), FullyShardedDataParallelPlugin(**(right | settings)))
