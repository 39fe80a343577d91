"""Trained models for CTranslate2, an engine for translation in C++.

`RUNS` says of each class of encodings what becomes of it there. CTranslate2's conventions are this family's (a distance
is key minus query; neighbouring channels are turned together), so both engines compute the same function; int8 and the
other quantisations come near it.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..manifest import save_folder
from ..modeling.modeling_posenc import PosEncForConditionalGeneration
from ..modeling.place import Place
from ..modeling.position import HOOKS, PositionEncoding
from ..modeling.position_cape import Cape
from ..modeling.position_learned import Learned
from ..modeling.position_relative import Relative
from ..modeling.position_rotary import Rotary, turned_channels
from ..modeling.position_shape import Shape
from ..modeling.position_sinusoidal import Sinusoidal, sinusoids
from ..modeling.version import __version__
from .calls import check_call
from .ctranslate2_translator import ABOUT, engine

# transformers' activations by CTranslate2's names.
ACTIVATIONS = {
    "relu": "RELU",
    "gelu": "GELU",
    "gelu_new": "GELUTanh",
    "gelu_pytorch_tanh": "GELUTanh",
    "quick_gelu": "GELUSigmoid",
    "silu": "SWISH",
    "swish": "SWISH",
    "tanh": "Tanh",
    "sigmoid": "Sigmoid",
}


@dataclass
class Run:
    """How the encoding of one side is run: options of that side's specification, what is added to its embeddings, and
    what a layer's self-attention holds, by name."""

    options: dict[str, Any] = field(default_factory=dict)
    added_ND: Tensor | None = None
    held: Callable[[int], dict[str, Tensor]] = lambda layer: {}


def without() -> Run:
    """No encoding is a rotation by angles of nothing: so nothing ends it, as a table of zeros would."""
    linear = engine().specs.attention_spec.RotaryScalingType.Linear
    return Run({"rotary_dim": 2, "rotary_scaling_type": linear, "rotary_scaling_factor": math.inf})


def added(encoding: PositionEncoding, positions: int) -> Run:
    rows = min(positions, getattr(encoding.config, type(encoding).longest or "", positions))
    pos_1N = torch.arange(rows)[None]
    zeros_1ND = torch.zeros(1, rows, encoding.config.d_model)
    return Run(added_ND=encoding.embed(zeros_1ND, Place(pos_1N, pos_1N))[0])  # type: ignore[misc]


def relative(encoding: Relative, positions: int) -> Run:
    fixed_RK = sinusoids(torch.arange(-encoding.clip, encoding.clip + 1), encoding.side.head_width, torch.float32)
    learned = {"keys": encoding.keys, "values": encoding.values}
    used = [name for name in learned if name == "keys" or encoding.value_bias is not None]

    def held(layer: int) -> dict[str, Tensor]:
        tables = {name: learned[name] for name in used}
        return {
            f"relative_position_{name}": fixed_RK if table is None else table[layer] for name, table in tables.items()
        }

    return Run({"relative_position": True}, held=held)


def rotary(encoding: Rotary, positions: int) -> Run:
    given = encoding.config.rope_parameters
    if encoding.falling:
        raise ValueError("it has no products that fall with the distance, as those of `xpos` in a decoder do")
    if encoding.kind != "default":
        raise ValueError(f"of the rotary encodings it has rope_type='default', but this one has {encoding.kind!r}")
    turned = turned_channels(encoding.side.head_width, given.get("partial_rotary_factor", 1.0))
    return Run({"rotary_dim": turned, "rotary_interleave": True, "rotary_base": encoding.theta})


# By the class itself, not by what inherits from it.
RUNS: dict[type[PositionEncoding], Callable[[Any, int], Run]] = {
    Sinusoidal: added,
    Learned: added,
    Shape: added,
    Cape: added,
    Relative: relative,
    Rotary: rotary,
}

# Of a generation config: what CTranslate2 has by the same name, and what it has not.
SEARCH = ("length_penalty", "repetition_penalty", "no_repeat_ngram_size")
NO_SEARCH: dict[str, Any] = {  # and where it changes nothing
    "begin_suppress_tokens": None,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "exponential_decay_length_penalty": None,
    "forced_bos_token_id": None,
    "min_length": 0,
    "min_new_tokens": 0,
    "sequence_bias": None,
}


def to_ctranslate2(
    model: PosEncForConditionalGeneration,
    tokenizer: Any,
    folder: str | Path,
    *,
    quantization: str | None = None,
    positions: int = 4096,
) -> Path:
    """A trained model as a folder of CTranslate2, with its tokenizer; returns the folder.

    `quantization`: one of CTranslate2's ("int8", "float16", ...; None leaves the weights as they are). `positions`: how
    many tokens an encoding that is added to embeddings can tell apart there. Both sides' encodings may be `none`,
    `sinusoidal`, `learned`, `shape`, `cape`, one of the relative family or `rotary`, with whatever acts in training
    only. Raises a ValueError, before anything is written, for what CTranslate2 cannot run, for a quantisation that it
    does not know, and for a folder that is there already.
    """
    folder = Path(folder)
    check_runs(model, tokenizer, folder, quantization)
    source, target = vocabularies(model.config, tokenizer)
    search = search_options(model, target)
    runs = {side: run_of(model, side, positions) for side in ("encoder", "decoder")}
    spec = specification(model, runs)
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    config: Any = model.config
    spec.config.decoder_start_token = spec.config.bos_token = target[model.start_token()]
    spec.config.eos_token = search["end_token"][0]
    spec.config.unk_token = tokenizer.unk_token or tokenizer.pad_token  # a byte-level vocabulary has none
    spec.config.layer_norm_epsilon = config.layer_norm_eps
    spec.validate()
    spec.optimize(quantization)
    rows = {side: None if run.added_ND is None else len(run.added_ND) for side, run in runs.items()}
    about = {
        "hf_posenc_version": __version__,
        "position_encoding_type": config.position_encoding_type,
        "decoder_position_encoding_type": config.decoder_position_encoding_type,
        "quantization": quantization,
        "longest_source": rows["encoder"],
        "longest_target": rows["decoder"],
        "search": search,
    }

    def save(unfinished: Path) -> None:
        unfinished.mkdir()
        spec.save(str(unfinished))
        tokenizer.save_pretrained(unfinished / "tokenizer")
        (unfinished / ABOUT).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")

    save_folder(folder, save)
    return folder


def check_runs(model: Any, tokenizer: Any, folder: Path, quantization: str | None) -> None:
    known = engine().specs.model_spec.ACCEPTED_MODEL_TYPES
    check_call(model, tokenizer, folder, "CTranslate2")
    if quantization is not None and quantization not in known:
        raise ValueError(f"`quantization` must be one of {', '.join(known)} or None, but it is {quantization!r}.")
    if model.config.activation_function not in ACTIVATIONS:
        raise ValueError(
            f"CTranslate2 has the activations {', '.join(ACTIVATIONS)}, but activation_function="
            f"{model.config.activation_function!r}; translate with `model.translate`."
        )
    if model.model.decoder.cross_positions.act_in_attention:
        raise ValueError(
            "CTranslate2 has no positions in cross-attention, but this model has cross_position_encoding_type="
            f"{model.config.cross_position_encoding_type!r}; translate with `model.translate`."
        )


def run_of(model: PosEncForConditionalGeneration, side: str, positions: int) -> Run:
    """How a side's encoding is run; what acts in training only is left out."""
    acting = [one for one in getattr(model.model, side).positions if any(getattr(one, hook) for hook in HOOKS)]
    name = model.config.side(side).encoding
    try:
        if len(acting) > 1:
            raise ValueError("it has no sums")
        if not acting:
            return without()
        if type(acting[0]) not in RUNS:
            raise ValueError("it has no such encoding")
        return RUNS[type(acting[0])](acting[0], positions)
    except ValueError as reason:
        raise ValueError(
            f"CTranslate2 cannot run {name!r} in the {side}: {reason}; translate with `model.translate`."
        ) from None


def specification(model: PosEncForConditionalGeneration, runs: dict[str, Run]) -> Any:
    """The model as CTranslate2 describes one, with copies of its weights, for to quantise is to overwrite."""
    config, specs = model.config, engine().specs
    common = {
        "pre_norm": config.norm_first,
        "activation": getattr(specs.common_spec.Activation, ACTIVATIONS[config.activation_function]),
    }
    sizes = {side: (config.side(side).layers, config.side(side).heads) for side in runs}
    encoder = specs.TransformerEncoderSpec(*sizes["encoder"], **common, **runs["encoder"].options)
    decoder = specs.TransformerDecoderSpec(*sizes["decoder"], **common, **runs["decoder"].options)
    whole = specs.TransformerSpec(encoder, decoder)
    for side, given in (("encoder", encoder), ("decoder", decoder)):
        fill_stack(given, getattr(model.model, side), runs[side])
    encoder.embeddings[0].weight = copied(model.model.encoder.embed_tokens.weight)
    decoder.embeddings.weight = copied(model.model.decoder.embed_tokens.weight)
    fill_linear(decoder.projection, model.lm_head)
    if model.final_logits_bias is not None:
        decoder.projection.bias = copied(model.final_logits_bias).flatten()
    return whole


def copied(tensor: Tensor) -> Tensor:
    return tensor.detach().float().clone(memory_format=torch.contiguous_format)


def fill_linear(given: Any, linear: nn.Linear) -> None:
    given.weight = copied(linear.weight)
    if linear.bias is not None:
        given.bias = copied(linear.bias)


def fill_norm(given: Any, norm: nn.LayerNorm) -> None:
    given.gamma, given.beta = copied(norm.weight), copied(norm.bias)


def fill_stack(given: Any, stack: Any, run: Run) -> None:
    given.scale_embeddings = float(stack.embed_scale)
    if stack.layer_norm is not None:
        fill_norm(given.layer_norm, stack.layer_norm)
    if run.added_ND is not None:
        given.position_encodings.encodings = copied(run.added_ND)
    for number, (layer, trained) in enumerate(zip(given.layer, stack.layers, strict=True)):
        fill_attention(layer.self_attention, trained.self_attn, [3])
        fill_norm(layer.self_attention.layer_norm, trained.self_attn_layer_norm)
        held = run.held(number)
        for name in ("relative_position_keys", "relative_position_values"):
            if name in held:
                setattr(layer.self_attention, name, copied(held[name]))
            elif hasattr(layer.self_attention, name):
                delattr(layer.self_attention, name)
        if hasattr(trained, "encoder_attn"):
            fill_attention(layer.attention, trained.encoder_attn, [1, 2])
            fill_norm(layer.attention.layer_norm, trained.encoder_attn_layer_norm)
        fill_linear(layer.ffn.linear_0, trained.fc1)
        fill_linear(layer.ffn.linear_1, trained.fc2)
        fill_norm(layer.ffn.layer_norm, trained.final_layer_norm)


def fill_attention(given: Any, trained: Any, joined: list[int]) -> None:
    """Queries, keys and values, so many of them joined in one map, and the map of the output."""
    package = engine()
    maps = [package.specs.common_spec.LinearSpec() for _ in range(3)]
    for one, linear in zip(maps, (trained.q_proj, trained.k_proj, trained.v_proj), strict=True):
        fill_linear(one, linear)
    for number, many in enumerate(joined):
        package.converters.utils.fuse_linear(given.linear[number], maps[:many])
        maps = maps[many:]
    fill_linear(given.linear[-1], trained.out_proj)


def search_options(model: PosEncForConditionalGeneration, target: list[str]) -> dict[str, Any]:
    """What a model's generation config says of every search, as CTranslate2 has it; a ValueError if it has not."""
    config: Any = model.generation_config
    if lacking := [name for name, idle in NO_SEARCH.items() if getattr(config, name, None) not in (None, idle)]:
        raise ValueError(
            f"CTranslate2 has no {', '.join(lacking)}, which the model's generation config sets; set "
            f"model.generation_config.{lacking[0]}=None if the translations shall do without."
        )
    made = {name: value for name in SEARCH if (value := getattr(config, name, None)) is not None}
    ends, _ = model.end_tokens()
    if not ends:
        raise ValueError(
            "CTranslate2 ends a sentence at a token, but the model's generation config has eos_token_id=None; set "
            "model.generation_config.eos_token_id."
        )
    made["end_token"] = [target[end] for end in ends]
    words = [ids for ids in config.bad_words_ids or [] if ids not in [[end] for end in ends]]  # as transformers does
    hidden = [*words, *([token] for token in config.suppress_tokens or [])]
    return made | ({"suppress_sequences": [[target[token] for token in ids] for ids in hidden]} if hidden else {})


def vocabularies(config: Any, tokenizer: Any) -> tuple[list[str], list[str]]:
    """The tokens of either side by their numbers; rows of the model that no token has get names of their own."""
    source = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    target = source
    if getattr(tokenizer, "separate_vocabs", False):  # of Marian
        target = [tokenizer.decoder[number] for number in range(len(tokenizer.decoder))]
    elif not getattr(tokenizer, "is_joint", True):
        target = tokenizer.target.convert_ids_to_tokens(list(range(len(tokenizer.target))))

    def filled(tokens: list[str], rows: int) -> list[str]:
        return [*tokens[:rows], *(f"<row {number}>" for number in range(len(tokens), rows))]

    return filled(source, config.vocab_size), filled(target, config.decoder_vocab_size)
