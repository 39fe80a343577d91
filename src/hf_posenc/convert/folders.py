"""Conversion from folder to folder: the model, the tokenizer that it was trained with, and a pair of languages.

A tokenizer is saved as it is, with its own files, because `AutoTokenizer` takes its class from tokenizer_config.json.
Multilingual models have language tags. The source's is a token of the source, which the tokenizer writes; the target's
is the first token of the target, which `forced_bos_token_id` of the generation config forces.

Also loading by transformers' Auto classes, without code from checkpoints, and what exports for other engines require.
"""

import copy
import os
import re
from os import PathLike
from pathlib import Path
from typing import Any

from tokenizers import Regex, decoders
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)

from ..generation.translate import validate_tokenizer
from ..hub.errors import (
    CONFIG_FILES,
    MODEL_FILES,
    TOKENIZER_FILES,
    closest_name,
    explain_unreadable,
    require,
    require_choice,
    require_new,
)
from ..tokenizer.tokenization_posenc import PosEncTokenizer
from ..transformer.configuration_posenc import PosEncConfig
from ..transformer.loading import set_weights_mode
from ..transformer.modeling_posenc import PosEncForConditionalGeneration
from ..utils.manifest import save_folder
from .checkpoints import convert_checkpoint, load_any_config, to_transformers

FILES_READ = {AutoConfig: CONFIG_FILES, AutoTokenizer: (*TOKENIZER_FILES, *CONFIG_FILES)}  # by others: MODEL_FILES


def auto_from_pretrained(auto: Any, name: str | PathLike[str] | None, **options: object) -> Any:
    """The object that `auto`, an Auto class, loads from a checkpoint: a folder or a name on the Hub.

    Raises a ValueError for files that cannot be read, and for a checkpoint that needs its own code: a model or a
    tokenizer of another family.
    """
    with explain_unreadable(name, FILES_READ.get(auto, MODEL_FILES), options):
        try:
            return auto.from_pretrained(name, trust_remote_code=False, **options)
        except ValueError as error:
            if "trust_remote_code" not in str(error):
                raise
            raise ValueError(
                f"Code of a checkpoint must not run, but {name} needs code of its own ({auto.__name__}). Name a model "
                "of this family, whose tokenizer is PosEncTokenizer or one of transformers; or load it in a script of "
                "yours."
            ) from None


def auto_model_class(config: PreTrainedConfig) -> Any:
    """The Auto class of a model with an output projection: AutoModelForSeq2SeqLM, or AutoModelForCausalLM."""
    return AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM


def load_model_with_head(name: str | PathLike[str]) -> Any:
    """The model of a checkpoint with its output projection, by the class that its config belongs to."""
    return auto_from_pretrained(auto_model_class(auto_from_pretrained(AutoConfig, name)), name)


FORMATS = ("posenc", "transformers")


def convert_folder(
    origin: str | os.PathLike,
    folder: Path,
    *,
    to: str = "posenc",
    source_tag: str | None = None,
    target_tag: str | None = None,
    **overrides: object,
) -> Path:
    """Convert a checkpoint and write it to a new folder, with its tokenizer.

    Args:
        origin: a folder or a name on the Hub: a Transformer of this family, or a model that `from_transformers` takes.
        folder: a folder that does not exist.
        to: `posenc` for a model of this family, `transformers` for one that needs transformers alone.
        source_tag, target_tag: language tags of a multilingual model by its tokenizer's names, such as `de` and `en`,
            or `deu_Latn` and `eng_Latn`. None keeps those of the tokenizer and of the generation config.
        **overrides: encodings, alignment, their parameters and fields that affect training only, as in
            `convert_encodings`.

    Returns the folder. Raises a ValueError, before any weight is read, for a folder that exists, an unknown tag, a
    checkpoint that cannot be converted, and for `transformers` a tokenizer whose two sides differ. A ValueError, before
    anything is written, for a model that transformers cannot represent.
    """
    require_choice("`to`", to, FORMATS)
    require_new(folder)
    tokenizer = auto_from_pretrained(AutoTokenizer, origin)
    languages = {"src_lang": source_tag, "tgt_lang": target_tag}
    languages = {name: language for name, language in languages.items() if language is not None}
    target_token = None
    for name, language in languages.items():
        require_tags(hasattr(tokenizer, "src_lang"), tokenizer, str(language))
        token = tokenizer.convert_tokens_to_ids(language_token(tokenizer, str(language)))
        target_token = token if name == "tgt_lang" else None
    if languages:
        tokenizer = auto_from_pretrained(AutoTokenizer, origin, **languages)
    config = load_any_config(origin)
    with explain_unreadable(origin, (*CONFIG_FILES, *TOKENIZER_FILES)):
        validate_tokenizer(config, tokenizer)
    require(
        to == "posenc" or isinstance(config, PosEncConfig),
        f"transformers' format is for encoder-decoders, but {origin} holds a `{config.model_type}` model; convert it "
        "to `posenc`, which keeps it a model of this family.",
    )
    if to == "transformers" and isinstance(tokenizer, PosEncTokenizer):
        tokenizer = standalone_tokenizer(tokenizer)
    model = convert_checkpoint(origin, **overrides)
    if target_token is not None and model.config.decoder_start_token_id != target_token:
        model.generation_config.forced_bos_token_id = target_token
    converted = to_transformers(model) if to == "transformers" else model

    def save(unfinished: Path) -> None:
        converted.save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)
        set_weights_mode(unfinished)

    save_folder(folder, save)
    return folder


def standalone_tokenizer(tokenizer: PosEncTokenizer) -> PosEncTokenizer:
    """A copy whose files transformers' own class reads as this one does: with a decoder that leaves out tags.

    A ValueError for a tokenizer with different sides, of which transformers' own class would read the source's alone.
    """
    require(
        tokenizer.target is tokenizer,
        f"transformers alone reads one tokenizer for source and target, but {tokenizer.name_or_path or 'this one'} has "
        "a vocabulary or a normalization for each; convert the model with hf_posenc.to_transformers, and encode and "
        "decode with this tokenizer of hf_posenc.",
    )
    standalone = copy.deepcopy(tokenizer)
    backend = standalone.backend_tokenizer
    if standalone.extra_special_tokens and backend.decoder is not None:
        patterns = [Regex(f"^{re.escape(tag)}$") for tag in standalone.extra_special_tokens]
        backend.decoder = decoders.Sequence([*(decoders.Replace(tag, "") for tag in patterns), backend.decoder])
    return standalone


def language_token(tokenizer: PreTrainedTokenizerBase, language: str) -> str:
    """The tag of a language, by its name or by the tag itself; a ValueError for an unknown one."""
    tokens = language_tokens(tokenizer)
    require_tags(bool(tokens), tokenizer, language)
    require(
        language in tokens or language in tokens.values(),
        f"A language tag must be one of the tokenizer's, but it is {language!r}; the nearest one is "
        f"{closest_name(language, tokens)!r}.",
    )
    return tokens.get(language, language)


def require_tags(has_tags: bool, tokenizer: PreTrainedTokenizerBase, language: str) -> None:
    """Raise a ValueError for a language of a tokenizer without tags."""
    require(
        has_tags,
        f"A language tag needs a tokenizer with tags, but {language!r} was given and {type(tokenizer).__name__} has "
        "none; leave the tag out.",
    )


# The tags of opus-mt, MADLAD and M2M-100. A row of underscores, which vocabularies of text have, is none.
MARKED_CODE = re.compile(r">>([\w-]+)<<|<2([\w-]+)>|__([a-z]{2,3})__")


def language_tokens(tokenizer: PreTrainedTokenizerBase) -> dict[str, str]:
    """The tags of a tokenizer by the codes of their languages; empty without tags.

    A tag of this family, which need not be of a language, is its own code. So is that of NLLB and mBART.
    """
    if isinstance(tokenizer, PosEncTokenizer):
        return {tag: tag for tag in tokenizer.extra_special_tokens}
    tokens: dict[str, str] = {}
    for token in tokenizer.get_vocab():
        if match := MARKED_CODE.fullmatch(token):
            tokens[next(filter(None, match.groups()))] = token
    if not tokens and hasattr(tokenizer, "lang_code_to_token"):  # M2M-100, whose vocabulary leaves them out
        tokens = dict(tokenizer.lang_code_to_token)
    if not tokens and hasattr(tokenizer, "src_lang"):  # NLLB and mBART: added tokens such as deu_Latn and de_DE
        added = (str(token) for token in tokenizer.added_tokens_decoder.values())
        tokens = {token: token for token in added if re.fullmatch(r"[a-z]{2,3}_[A-Z]\w+", token)}
    return tokens


# Exports for other engines.


def validate_export_call(model: object, tokenizer: PreTrainedTokenizerBase, folder: Path, engine: str) -> None:
    """Raise a ValueError unless `model` is a Transformer of the family, `folder` new, and `tokenizer` the model's."""
    if not isinstance(model, PosEncForConditionalGeneration):
        raise ValueError(
            f"{engine} needs a Transformer with encoder and decoder, a PosEncForConditionalGeneration, but got a "
            f"{type(model).__name__}; translate with `model.translate`."
        )
    require_new(folder)
    validate_tokenizer(model.config, tokenizer)


def recurrent_modules(model: nn.Module) -> list[str]:
    """The names of a model's recurrent networks, which torch exports for one length only."""
    return [name for name, module in model.named_modules() if isinstance(module, nn.RNNBase)]


def remedy_without_ctranslate2(model: nn.Module) -> str:
    """The fastest other way to run a model that CTranslate2 cannot run, for error messages."""
    if recurrent_modules(model):
        return "translate with `model.translate`"
    return "export it for ONNX, by `to_onnx` or `export --engine onnx`"


def missing_extra_error(extra: str, engine: str) -> ValueError:
    """The error for an engine that is not installed, with the command that installs it."""
    return ValueError(
        f"{engine} must be installed as an extra, but is missing; run `pip install 'hf-posenc[{extra}]'`, in a clone "
        f"`pip install '.[{extra}]'`."
    )
