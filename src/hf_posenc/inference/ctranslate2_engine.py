"""CTranslate2, an inference engine in C++: export of trained models, and translation with an exported folder.

`ENCODING_SPEC_BUILDERS` has a builder for each class of encodings that CTranslate2 can compute. Its conventions are
those of this family: a distance is key minus query, and neighbouring channels are rotated together. Therefore both
engines compute the same function; quantised weights approximate it.
"""

import json
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from ..convert.folders import (
    auto_from_pretrained,
    missing_extra_error,
    remedy_without_ctranslate2,
    validate_export_call,
)
from ..encodings.base import HOOKS, PositionEncoding
from ..encodings.cape import Cape
from ..encodings.learned import Learned
from ..encodings.positions import AttentionContext
from ..encodings.relative import Relative
from ..encodings.rotary import Rotary, rotary_dim
from ..encodings.shape import Shape
from ..encodings.sinusoidal import Sinusoidal, sinusoids
from ..generation.limits import max_target_lengths
from ..generation.translate import MAX_TOKENS_PER_BATCH, TranslationOutput, encode_texts, translate_in_batches
from ..hub.errors import explain_unreadable, require, require_choice, validate_source_lengths, validate_texts
from ..hub.version import __version__
from ..transformer.configuration_posenc import PosEncConfig
from ..transformer.modeling_posenc import PosEncForConditionalGeneration
from ..utils.manifest import save_folder, verify_folder

if TYPE_CHECKING:
    from ctranslate2.specs.model_spec import LayerSpec, ModelSpec

# CTranslate2's names of transformers' activations.
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
class EncodingSpec:
    """One stack's encoding for CTranslate2.

    `options`: arguments of the stack's specification. `added_embeddings_ND`: a table added to the token embeddings.
    `layer_tables`: the tables of a layer's self-attention by name.
    """

    options: dict[str, object] = field(default_factory=dict)
    added_embeddings_ND: Tensor | None = None
    layer_tables: Callable[[int], dict[str, Tensor]] = lambda layer: {}


def additive_spec(encoding: PositionEncoding, positions: int) -> EncodingSpec:
    """A table of `positions` rows, or of the encoding's maximum length."""
    rows = min(positions, getattr(encoding.config, type(encoding).max_length_field or "", positions))
    pos_1N = torch.arange(rows)[None]
    zeros_1ND = torch.zeros(1, rows, encoding.config.d_model)
    return EncodingSpec(added_embeddings_ND=encoding.embed(zeros_1ND, AttentionContext(pos_1N, pos_1N))[0])  # type: ignore[misc]


def relative_spec(encoding: Relative, positions: int) -> EncodingSpec:
    """Tables of relative vectors for keys and, if the encoding has them, values."""
    sinusoidal_RK = sinusoids(torch.arange(-encoding.clip, encoding.clip + 1), encoding.side.head_dim, torch.float32)
    learned = {"keys": encoding.keys, "values": encoding.values}
    used = [name for name in learned if name == "keys" or encoding.value_bias is not None]

    def layer_tables(layer: int) -> dict[str, Tensor]:
        tables = {name: learned[name] for name in used}
        return {
            f"relative_position_{name}": sinusoidal_RK if table is None else table[layer]
            for name, table in tables.items()
        }

    return EncodingSpec({"relative_position": True}, layer_tables=layer_tables)


def rotary_spec(encoding: Rotary, positions: int) -> EncodingSpec:
    """Rotation of neighbouring channels; a ValueError for `xpos` in a decoder and for other frequency scalings."""
    rope_parameters = encoding.config.rope_parameters
    if encoding.decays:
        raise ValueError("it has no decay with the distance, which `xpos` has in a decoder")
    if encoding.rope_type != "default":
        raise ValueError(f"it has rope_type='default' only, but this encoding has {encoding.rope_type!r}")
    num_rotated = rotary_dim(encoding.side.head_dim, rope_parameters.get("partial_rotary_factor", 1.0))
    return EncodingSpec({"rotary_dim": num_rotated, "rotary_interleave": True, "rotary_base": encoding.theta})


# By class; subclasses do not count.
ENCODING_SPEC_BUILDERS: dict[type[PositionEncoding], Callable[[Any, int], EncodingSpec]] = {
    Sinusoidal: additive_spec,
    Learned: additive_spec,
    Shape: additive_spec,
    Cape: additive_spec,
    Relative: relative_spec,
    Rotary: rotary_spec,
}


def build_encoding_spec(model: PosEncForConditionalGeneration, side: str, positions: int) -> EncodingSpec:
    """One stack's encoding for CTranslate2, without encodings that act in training only; a ValueError without one."""
    encodings = getattr(model.model, side).positions
    active = [encodings[index] for index in sorted(set().union(*map(encodings.hook_indices, HOOKS)))]
    name = model.config.side(side).encoding
    try:
        if len(active) > 1:
            raise ValueError("it has no sums")
        if not active:  # a rotation by zero angles, because a table of zeros would bound the length
            linear = import_ctranslate2().specs.attention_spec.RotaryScalingType.Linear
            return EncodingSpec({"rotary_dim": 2, "rotary_scaling_type": linear, "rotary_scaling_factor": math.inf})
        if type(active[0]) not in ENCODING_SPEC_BUILDERS:
            raise ValueError("it has no such encoding")
        return ENCODING_SPEC_BUILDERS[type(active[0])](active[0], positions)
    except ValueError as reason:
        raise ValueError(
            f"CTranslate2 cannot run {name!r} in the {side}: {reason}; {remedy_without_ctranslate2(model)}."
        ) from None


def build_model_spec(model: PosEncForConditionalGeneration, encoding_specs: dict[str, EncodingSpec]) -> "ModelSpec":
    """CTranslate2's specification of a model in float32, whose weights it takes and overwrites.

    Modules have the names of BART's, and therefore CTranslate2's converter of BART reads the layers.
    """
    config, package = model.config, import_ctranslate2()
    specs, loader = package.specs, package.converters.transformers.BartLoader()
    loader.set_common_layers = partial(fill_outside_layers, loader)
    common = {
        "pre_norm": config.norm_first,
        "layernorm_embedding": config.normalize_embedding,
        "activation": getattr(specs.common_spec.Activation, ACTIVATIONS[config.activation_function]),
    }
    sizes = {side: (config.side(side).layers, config.side(side).heads) for side in encoding_specs}
    encoder = specs.TransformerEncoderSpec(*sizes["encoder"], **common, **encoding_specs["encoder"].options)
    decoder = specs.TransformerDecoderSpec(*sizes["decoder"], **common, **encoding_specs["decoder"].options)
    loader.set_encoder(encoder, model.model.encoder)
    loader.set_decoder(decoder, model.model.decoder)
    fill_positions(encoder, encoding_specs["encoder"])
    fill_positions(decoder, encoding_specs["decoder"])
    loader.set_linear(decoder.projection, model.lm_head)
    if model.final_logits_bias is not None:
        decoder.projection.bias = model.final_logits_bias.flatten()
    return specs.TransformerSpec(encoder, decoder)


def fill_outside_layers(loader: Any, spec: "LayerSpec", stack: Any) -> None:
    """Fill in what stands before and after the layers of a stack, except positions."""
    spec.scale_embeddings = float(stack.embed_scale)
    embeddings = spec.embeddings[0] if isinstance(spec.embeddings, list) else spec.embeddings
    loader.set_embeddings(embeddings, stack.embed_tokens)
    for name in ("layer_norm", "layernorm_embedding"):
        if getattr(stack, name) is not None:
            loader.set_layer_norm(getattr(spec, name), getattr(stack, name))


def fill_positions(spec: "LayerSpec", encoding_spec: EncodingSpec) -> None:
    """Fill in the tables of a stack's encoding."""
    if encoding_spec.added_embeddings_ND is not None:
        spec.position_encodings.encodings = encoding_spec.added_embeddings_ND
    for number, layer in enumerate(spec.layer):
        layer_tables = encoding_spec.layer_tables(number)
        for name in ("relative_position_keys", "relative_position_values"):
            if name in layer_tables:
                setattr(layer.self_attention, name, layer_tables[name].contiguous())
            elif hasattr(layer.self_attention, name):
                delattr(layer.self_attention, name)


# Options of a generation config that CTranslate2 has under the same name, and those that it lacks, with the values that
# have no effect.
SUPPORTED_SEARCH_OPTIONS = ("length_penalty", "repetition_penalty", "no_repeat_ngram_size")
UNSUPPORTED_SEARCH_OPTIONS: dict[str, object] = {
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
    tokenizer: PreTrainedTokenizerBase,
    folder: str | Path,
    *,
    quantization: str | None = None,
    positions: int = 4096,
) -> Path:
    """Write a trained model and its tokenizer as a folder for CTranslate2, an inference engine in C++.

    Args:
        model: a Transformer of this family. Its encodings may be `none`, `sinusoidal`, `learned`, `shape`, `cape`, one
            of the `relative` family or `rotary`, also with encodings that act in training only.
        tokenizer: the model's PosEncTokenizer.
        folder: a new folder.
        quantization: precision of the weights by CTranslate2's names ("int8", "float16"). None keeps it.
        positions: rows, in tokens, of the table for encodings that are added to embeddings.

    Returns the folder, for CTranslate2Translator. Needs the extra "ctranslate2".

    Raises a ValueError, before anything is written, for a model that CTranslate2 cannot run, an unknown quantization, a
    folder that exists, and a missing extra.
    """
    folder = Path(folder)
    validate_ctranslate2_export(model, tokenizer, folder, quantization)
    source, target = vocabularies(model.config, tokenizer)
    search = search_options(model, target)
    model = deepcopy(model).float().requires_grad_(False)
    encoding_specs = {side: build_encoding_spec(model, side, positions) for side in ("encoder", "decoder")}
    spec = build_model_spec(model, encoding_specs)
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    config: PosEncConfig = model.config
    spec.config.decoder_start_token = spec.config.bos_token = target[model.start_token()]
    spec.config.eos_token = target[model.end_tokens()[0][0]]
    spec.config.unk_token = tokenizer.unk_token or tokenizer.pad_token  # a byte-level vocabulary has none
    spec.config.layer_norm_epsilon = config.layer_norm_eps
    spec.validate()
    spec.optimize(quantization)
    rows = {
        side: None if encoding_spec.added_embeddings_ND is None else len(encoding_spec.added_embeddings_ND)
        for side, encoding_spec in encoding_specs.items()
    }
    metadata = {
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
        tokenizer.save_pretrained(unfinished / TOKENIZER_FOLDER)
        (unfinished / METADATA_FILE).write_text(json.dumps(metadata, indent=2) + "\n", encoding="utf-8")

    save_folder(folder, save)
    return folder


def validate_ctranslate2_export(
    model: PosEncForConditionalGeneration, tokenizer: PreTrainedTokenizerBase, folder: Path, quantization: str | None
) -> None:
    quantizations = import_ctranslate2().specs.model_spec.ACCEPTED_MODEL_TYPES
    validate_export_call(model, tokenizer, folder, "CTranslate2")
    if quantization is not None:
        require_choice("`quantization`", quantization, quantizations, "leave it out to keep the precision")
    remedy = remedy_without_ctranslate2(model)
    require(
        model.config.activation_function in ACTIVATIONS,
        f"CTranslate2 has the activations {', '.join(ACTIVATIONS)}, but activation_function="
        f"{model.config.activation_function!r}; {remedy}.",
    )
    require(
        not model.model.decoder.cross_positions.modifies_attention,
        "CTranslate2 has no positions in cross-attention, but this model has cross_position_encoding_type="
        f"{model.config.cross_position_encoding_type!r}; {remedy}.",
    )


def search_options(model: PosEncForConditionalGeneration, target: list[str]) -> dict[str, object]:
    """The generation config's search options in CTranslate2's form; a ValueError for options that it lacks."""
    config = model.generation_config
    unsupported = [
        name
        for name, no_effect_value in UNSUPPORTED_SEARCH_OPTIONS.items()
        if getattr(config, name, None) not in (None, no_effect_value)
    ]
    require(
        not unsupported,
        f"CTranslate2 has no {', '.join(unsupported)}, which the model's generation config sets; set "
        f"model.generation_config.{next(iter(unsupported), None)}=None to translate without it.",
    )
    options: dict[str, object] = {}
    for name in SUPPORTED_SEARCH_OPTIONS:
        value = getattr(config, name, None)
        if value is not None:
            options[name] = value
    ends, _ = model.end_tokens()
    require(
        ends,
        "CTranslate2 ends a sentence at an end token, but the generation config has eos_token_id=None; set "
        "model.generation_config.eos_token_id.",
    )
    options["end_token"] = [target[end] for end in ends]
    suppressed = [[token] for token in config.suppress_tokens or []]
    for ids in config.bad_words_ids or []:
        is_end_token = len(ids) == 1 and ids[0] in ends
        if not is_end_token:  # transformers ignores bad words that are end tokens
            suppressed.append(ids)
    if suppressed:
        options["suppress_sequences"] = [list(map(target.__getitem__, ids)) for ids in suppressed]
    return options


def vocabularies(config: PosEncConfig, tokenizer: PreTrainedTokenizerBase) -> tuple[list[str], list[str]]:
    """The tokens of source and target by id; the model's rows without a token have placeholder names."""
    source = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    target = source
    if getattr(tokenizer, "separate_vocabs", False):  # a MarianTokenizer
        target = [tokenizer.decoder[number] for number in range(len(tokenizer.decoder))]
    elif not getattr(tokenizer, "shares_vocabulary", True):
        target = tokenizer.target.convert_ids_to_tokens(list(range(len(tokenizer.target))))

    def pad_vocabulary(tokens: list[str], rows: int) -> list[str]:
        """As many tokens as the model has rows."""
        return [*tokens[:rows], *(f"<row {number}>" for number in range(len(tokens), rows))]

    return pad_vocabulary(source, config.vocab_size), pad_vocabulary(target, config.target_vocab_size)


# This package's files in such a folder, in addition to CTranslate2's.
METADATA_FILE = "hf_posenc.json"
TOKENIZER_FOLDER = "tokenizer"
MORE_POSITIONS_REMEDY = "export with more `positions`"  # for a source that is longer than the table


def import_ctranslate2() -> ModuleType:
    """The package; a ValueError with the command that installs it."""
    try:
        import ctranslate2.converters.transformers
        import ctranslate2.specs
    except ModuleNotFoundError:
        raise missing_extra_error("ctranslate2", "CTranslate2") from None
    return ctranslate2


class CTranslate2Translator:
    """Translator that runs CTranslate2 on a folder written by `to_ctranslate2`.

    Args:
        folder: the folder that `to_ctranslate2` returned.
        device: "cpu", "cuda", or one of several GPUs, such as "cuda:1".
        compute_type: precision of the computation by CTranslate2's names. "default" is the saved precision.
        threads: threads for one batch. 0 is the number of cores, at most four.

    `translate(texts, num_beams=5, batch_size=32, max_new_tokens=None)` returns the translations in order, with a
    model's length limits. Raises a ValueError for another kind of folder, and without the extra "ctranslate2".
    """

    def __init__(
        self, folder: str | Path, *, device: str = "cpu", compute_type: str = "default", threads: int = 0
    ) -> None:
        folder = Path(folder)
        require(
            is_ctranslate2(folder),
            f"A folder for CTranslate2 must have {METADATA_FILE}, but {folder} has none; run to_ctranslate2.",
        )
        verify_folder(folder, "export the model again")
        self.metadata = read_metadata(folder)
        self.tokenizer = auto_from_pretrained(AutoTokenizer, folder / TOKENIZER_FOLDER)
        ctranslate2 = import_ctranslate2()
        with explain_unreadable(folder, ("*.json", "model.bin")):
            self.source, self.target = (read_vocabulary(folder, side) for side in ("source", "target"))
            self.token_to_id = {token: token_id for token_id, token in enumerate(self.target)}
            device_type, _, index = device.partition(":")
            self.translator = ctranslate2.Translator(
                str(folder), device_type, device_index=int(index or 0), compute_type=compute_type, intra_threads=threads
            )

    def translate(self, texts: Iterable[str], **options: Any) -> list[str]:
        """The translations of `texts`, in their order. Options and errors are those of `translations`."""
        return self.translations(texts, **options).texts

    def translations(
        self,
        texts: Iterable[str],
        *,
        batch_size: int = 32,
        tokens_per_batch: int = MAX_TOKENS_PER_BATCH,
        num_beams: int = 5,
        max_new_tokens: int | None = None,
        progress: bool = False,
    ) -> TranslationOutput:
        """The translations of `texts`, with the length limits of a model's `translations`, or of `max_new_tokens`.

        Raises a ValueError, before any compute, that names a text which is not UTF-8 or longer than an encoding's
        table.
        """
        texts = validate_texts(texts)
        sources = encode_texts(texts, self.tokenizer)
        validate_source_lengths(sources, self.metadata["longest_source"], remedy=MORE_POSITIONS_REMEDY)
        return translate_in_batches(
            sources,
            lambda batch: self.translate_batch(batch, num_beams, max_new_tokens),
            batch_size=batch_size,
            tokens_per_batch=tokens_per_batch,
            progress=progress,
            # CTranslate2 has one limit for a batch, and a larger limit changes a beam's translation.
            max_target_lengths=self.target_limits(sources, max_new_tokens),
        )

    def target_limits(self, sources: Sequence[list[int]], max_new_tokens: int | None) -> list[int]:
        """The maximum length of each translation in tokens: `max_new_tokens`, or what the source's length allows."""
        longest = self.metadata["longest_target"]
        if max_new_tokens is None:
            return max_target_lengths(map(len, sources), longest)
        return [min(max_new_tokens, (longest or sys.maxsize) - 1)] * len(sources)

    def translate_batch(
        self, sources: list[list[int]], num_beams: int, max_new_tokens: int | None, **options: Any
    ) -> list[tuple[str, bool]]:
        """The translations of one batch of token ids, and whether each was truncated. `options` are CTranslate2's."""
        (max_length,) = set(self.target_limits(sources, max_new_tokens))
        search = self.metadata.get("search", {})
        results = self.translator.translate_batch(
            [list(map(self.source.__getitem__, source)) for source in sources],
            beam_size=num_beams,
            max_input_length=0,
            min_decoding_length=0,
            max_decoding_length=max_length,
            return_end_token=True,
            **{**search, **options},
        )
        hypotheses = [result.hypotheses[0] for result in results]
        token_ids = [list(map(self.token_to_id.__getitem__, tokens)) for tokens in hypotheses]
        texts = self.tokenizer.batch_decode(token_ids, skip_special_tokens=True)
        end_tokens = search.get("end_token", [self.tokenizer.eos_token])
        return [
            (text, not tokens or tokens[-1] not in end_tokens) for text, tokens in zip(texts, hypotheses, strict=True)
        ]


def read_metadata(folder: Path) -> dict[str, Any]:
    """What `to_ctranslate2` says of a model: `longest_source` and `longest_target` in tokens or None, `search`."""
    with explain_unreadable(folder, (METADATA_FILE,)):
        metadata: dict[str, Any] = json.loads((folder / METADATA_FILE).read_text(encoding="utf-8"))
        for name in ("longest_source", "longest_target"):
            if type(metadata[name]) not in (int, type(None)):
                raise TypeError(f"{name} must be a number of tokens or null, but it is {metadata[name]!r:.100}")
        if not isinstance(metadata.get("search", {}), dict):
            raise TypeError(f"search must be an object, but it is {metadata['search']!r:.100}")
    return metadata


def read_vocabulary(folder: Path, side: str) -> list[str]:
    """The tokens of "source" or "target" by id."""
    shared = folder / "shared_vocabulary.json"
    return json.loads((shared if shared.exists() else folder / f"{side}_vocabulary.json").read_text(encoding="utf-8"))


def is_ctranslate2(folder: Path) -> bool:
    """Whether `to_ctranslate2` has written the folder."""
    return (folder / METADATA_FILE).is_file()
