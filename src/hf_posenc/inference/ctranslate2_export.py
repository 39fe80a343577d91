"""Export of trained models to CTranslate2, an inference engine in C++."""

import json
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from ..hub.version import __version__
from ..transformer.configuration_posenc import PosEncConfig
from ..transformer.modeling_posenc import PosEncForConditionalGeneration
from ..utils.manifest import save_folder
from .ctranslate2_specs import ACTIVATIONS, build_encoding_spec, build_model_spec
from .ctranslate2_translator import METADATA_FILE, TOKENIZER_FOLDER, import_ctranslate2
from .export_validation import remedy_without_ctranslate2, validate_export_call

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
    if quantization is not None and quantization not in quantizations:
        raise ValueError(
            f"`quantization` must be one of {', '.join(quantizations)} or None, but it is {quantization!r}."
        )
    if model.config.activation_function not in ACTIVATIONS:
        raise ValueError(
            f"CTranslate2 has the activations {', '.join(ACTIVATIONS)}, but activation_function="
            f"{model.config.activation_function!r}; {remedy_without_ctranslate2(model)}."
        )
    if model.model.decoder.cross_positions.modifies_attention:
        raise ValueError(
            "CTranslate2 has no positions in cross-attention, but this model has cross_position_encoding_type="
            f"{model.config.cross_position_encoding_type!r}; {remedy_without_ctranslate2(model)}."
        )


def search_options(model: PosEncForConditionalGeneration, target: list[str]) -> dict[str, object]:
    """The generation config's search options in CTranslate2's form; a ValueError for options that it lacks."""
    config = model.generation_config
    unsupported = [
        name
        for name, no_effect_value in UNSUPPORTED_SEARCH_OPTIONS.items()
        if getattr(config, name, None) not in (None, no_effect_value)
    ]
    if unsupported:
        raise ValueError(
            f"CTranslate2 has no {', '.join(unsupported)}, which the model's generation config sets; set "
            f"model.generation_config.{unsupported[0]}=None to translate without it."
        )
    options: dict[str, object] = {}
    for name in SUPPORTED_SEARCH_OPTIONS:
        value = getattr(config, name, None)
        if value is not None:
            options[name] = value
    ends, _ = model.end_tokens()
    if not ends:
        raise ValueError(
            "CTranslate2 ends a sentence at an end token, but the generation config has eos_token_id=None; set "
            "model.generation_config.eos_token_id."
        )
    options["end_token"] = [target[end] for end in ends]
    suppressed = [[token] for token in config.suppress_tokens or []]
    for ids in config.bad_words_ids or []:
        is_end_token = len(ids) == 1 and ids[0] in ends
        if not is_end_token:  # transformers ignores bad words that are end tokens
            suppressed.append(ids)
    if suppressed:
        options["suppress_sequences"] = [vocabulary_tokens(target, ids) for ids in suppressed]
    return options


def vocabulary_tokens(vocabulary: list[str], ids: list[int]) -> list[str]:
    """The tokens with these ids."""
    return [vocabulary[token_id] for token_id in ids]


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
