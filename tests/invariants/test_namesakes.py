"""Encodings whose classes or files have the same name keep separate cached state and code."""

import importlib
import sys
from functools import partial

import pytest
import torch
from support.decoding import CHUNKS, EXACT, TOKENS, cache_for, decode
from support.models import tiny_model

from hf_posenc import PositionEncoding, register_position_encoding


def running_sum(sign: float) -> type[PositionEncoding]:
    """An encoding that needs the state of the token before. Every class made here is called `RunningSum`."""

    class RunningSum(PositionEncoding):
        summary = "A key gains by the tokens between it and the query."
        shift_invariant = True
        is_stateful = True

        def score_bias(self, q_BHQK, k_BHSK, ctx):
            steps_BT1 = ctx.inputs_BTD[..., :1].tanh() * sign
            sums_BT1 = steps_BT1.cumsum(1)
            keys_BS1 = sums_BT1
            if ctx.state is not None:
                if (before_B1 := ctx.state.last("sums", 1)) is not None:
                    sums_BT1 = sums_BT1 + before_B1[:, None]
                keys_BS1 = ctx.state.append("sums", sums_BT1)
            return (sums_BT1 - keys_BS1.mT)[:, None]

    return RunningSum


@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("sum_of", ["rise+fall", "fall+rise", "rise+forgetting+fall"])
@torch.no_grad()
def test_two_encodings_whose_classes_have_one_name_decode_cached_as_uncached(
    unregistered_after, sum_of, kind, source, target
):
    register_position_encoding("rise", running_sum(1.0))
    register_position_encoding("fall", running_sum(-0.5), summary="Another factor.")
    model = tiny_model(sum_of)
    full = model(input_ids=source, decoder_input_ids=target).logits
    for chunks in (TOKENS, CHUNKS):
        cached = decode(model, source, target, chunks, cache_for(model, kind))
        torch.testing.assert_close(cached, full, **EXACT)


@torch.no_grad()
def test_encodings_inside_a_wrapping_module_keep_their_own_state(unregistered_after, source, target):
    """An adapter may wrap each of them in a class of its own, one name for both."""
    register_position_encoding("rise", running_sum(1.0))
    register_position_encoding("fall", running_sum(-0.5), summary="Another factor.")

    class Wrapper(torch.nn.Module):
        def __init__(self, wrapped):
            super().__init__()
            self.wrapped = wrapped

        def __getattr__(self, name):
            return super().__getattr__(name) if name == "wrapped" else getattr(self.wrapped, name)

        def forward(self, *arguments):
            return self.wrapped(*arguments)

    model = tiny_model("rise+fall")
    full = model(input_ids=source, decoder_input_ids=target).logits
    for stack in (model.model.encoder, model.model.decoder):
        for number, encoding in enumerate(list(stack.positions)):
            stack.positions[number] = Wrapper(encoding)
    cached = decode(model, source, target, [4, 5], cache_for(model, "dynamic"))
    torch.testing.assert_close(cached, full, **EXACT)


OWN = """
from hf_posenc import PositionEncoding, register_position_encoding


class Own(PositionEncoding):
    summary = "An encoding of {module}."
    shift_invariant = True


register_position_encoding("{name}", Own)
"""


@pytest.mark.full
def test_two_files_whose_names_are_alike_both_travel(unregistered_after, tmp_path, monkeypatch, request):
    monkeypatch.syspath_prepend(str(tmp_path))
    places = {"own_first": "own.a_b", "own_second": "own_a.b"}
    for name, module in places.items():
        folder, _, file = module.partition(".")
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{file}.py").write_text(OWN.format(module=module, name=name))
        importlib.import_module(module)
        for loaded in (folder, module):
            request.addfinalizer(partial(sys.modules.pop, loaded))
    tiny_model("own_first+own_second+relative").save_pretrained(tmp_path / "saved")
    carried = sorted(file.read_text() for file in (tmp_path / "saved").glob("registered_*.py"))
    assert len(carried) == 2
    for text, module in zip(carried, sorted(places.values()), strict=True):
        assert f"An encoding of {module}." in text
