"""Make the outputs of the translation pipeline of transformers 4, which later versions lack.

    python tests/translator/old_pipeline.py FOLDER

In an environment with transformers 4.57, torch, sentencepiece and sacremoses. For each family it writes a small model
with random weights and a tokenizer of its own class to FOLDER/FAMILY, and the pipeline's outputs to FOLDER/calls.json.

Published models normalize text by SentencePiece's rules `nmt_nfkc`, a table of 230 kB. These have some of its rules, so
that a file stays small.
"""

import io
import json
import sys
import tempfile
import unicodedata
from pathlib import Path

import sentencepiece
import torch
import transformers
from sentencepiece.sentencepiece_model_pb2 import ModelProto
from tokenizers import ByteLevelBPETokenizer
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BartTokenizer,
    M2M100Config,
    M2M100ForConditionalGeneration,
    M2M100Tokenizer,
    MarianConfig,
    MarianMTModel,
    MarianTokenizer,
    MBart50Tokenizer,
    MBartConfig,
    MBartForConditionalGeneration,
    NllbTokenizer,
    PegasusConfig,
    PegasusForConditionalGeneration,
    PegasusTokenizer,
    T5Config,
    T5ForConditionalGeneration,
    T5Tokenizer,
    T5TokenizerFast,
    pipeline,
)

TEXTS = [
    "Die Katze sitzt auf dem Dach.",
    "Wir gehen morgen in die Stadt, wenn es nicht regnet.",
    "Haus",
    "Der Preis beträgt 1.250 Euro; das ist viel.",
    "Er sagte\u2009: Komm mit\u2026 fu\u0308r 5\u00a0Tage!",
    "Sie haben das Buch gelesen und verstanden.",
    "Im Sommer fahren viele Leute ans Meer.",
    "Was ist das?",
]
SIZES = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2}
SIZES |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 64}
NORMALIZED = ("\u00a0", "\u2009", "\u202f", "\u3000", "\u2026", "\ufb01", "\u00b2", "a\u0308", "o\u0308", "u\u0308")
NUM_DIFFERENT = 6  # outputs of the eight texts
LANGUAGES = {"m2m_100": ("de", "en"), "nllb": ("deu_Latn", "eng_Latn"), "mbart": ("de_DE", "en_XX")}  # options
OTHER_LANGUAGES = {"marian_many": (None, "deu"), "madlad": (None, "en"), "t5": ("de", "en")}
PREFIXES = {"marian_many": ">>deu<< ", "madlad": "<2en> ", "t5": "translate German to English: "}
FAMILIES = ("marian", "marian_many", "m2m_100", "nllb", "mbart", "t5", "madlad", "bart", "pegasus")
T5_IDS = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}  # of T5 and Pegasus


def train_subwords(path: Path, model_type: str = "unigram", **options: object) -> Path:
    model = io.BytesIO()
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as rules:
        for text in NORMALIZED:
            rules.write(f"{code_points(text)}\t{code_points(unicodedata.normalize('NFKC', text))}\n")
        rules.flush()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(TEXTS * 4),
            model_writer=model,
            vocab_size=90,
            hard_vocab_limit=False,
            model_type=model_type,
            normalization_rule_tsv=rules.name,
            **options,
        )
    proto = ModelProto.FromString(model.getvalue())
    proto.normalizer_spec.ClearField("normalization_rule_tsv")  # a path of this machine; the rules are compiled
    path.write_bytes(proto.SerializeToString())
    return path


def code_points(text: str) -> str:
    return " ".join(f"{ord(character):X}" for character in text)


def pieces_of(path: Path) -> list[str]:
    model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return [model.id_to_piece(number) for number in range(model.get_piece_size())]


def marian_tokenizer(folder: Path, targets: tuple[str, ...] = ()) -> MarianTokenizer:
    subwords = train_subwords(folder / "source.spm")
    words = ["</s>", "<unk>", *(f">>{code}<<" for code in targets), *pieces_of(subwords)[3:], "<pad>"]
    (folder / "vocab.json").write_text(json.dumps({word: number for number, word in enumerate(words)}))
    return MarianTokenizer(str(subwords), str(subwords), str(folder / "vocab.json"))


def m2m_tokenizer(folder: Path) -> M2M100Tokenizer:
    subwords = train_subwords(folder / "sentencepiece.bpe.model")
    words = ["<s>", "<pad>", "</s>", "<unk>", *pieces_of(subwords)[3:]]
    (folder / "vocab.json").write_text(json.dumps({word: number for number, word in enumerate(words)}))
    return M2M100Tokenizer(str(folder / "vocab.json"), str(subwords))


def t5_tokenizer(folder: Path, is_madlad: bool) -> T5Tokenizer | T5TokenizerFast:
    if not is_madlad:
        return T5Tokenizer(str(train_subwords(folder / "spiece.model", **T5_IDS)), extra_ids=10)
    subwords = train_subwords(folder / "spiece.model", user_defined_symbols=["<2de>", "<2en>", "<2fr>"])
    # MADLAD is published with a tokenizer.json; without it, versions of transformers differ in the tags.
    return T5TokenizerFast(str(subwords), extra_ids=0, pad_token="<s>")


def bart_tokenizer(folder: Path) -> BartTokenizer:
    subwords = ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    subwords.train_from_iterator(TEXTS * 4, vocab_size=340, special_tokens=special, show_progress=False)
    return BartTokenizer(*subwords.save_model(str(folder)))


def make(family: str, folder: Path, seed: int) -> None:
    """A model with random weights and its tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    if family.startswith("marian"):
        tokenizer = marian_tokenizer(folder, ("deu", "fra") if family == "marian_many" else ())
        ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": 0, "forced_eos_token_id": 0}
        start = {"decoder_start_token_id": tokenizer.pad_token_id}
        model = MarianMTModel(MarianConfig(vocab_size=len(tokenizer), **SIZES, **ids, **start, max_length=48))
    elif family in ("m2m_100", "nllb"):
        if family == "nllb":
            tokenizer = NllbTokenizer(str(train_subwords(folder / "sentencepiece.bpe.model", "bpe")))  # as NLLB has it
        else:
            tokenizer = m2m_tokenizer(folder)
        model = M2M100ForConditionalGeneration(M2M100Config(vocab_size=len(tokenizer) + 120, **SIZES, max_length=48))
    elif family == "mbart":
        tokenizer = MBart50Tokenizer(str(train_subwords(folder / "sentencepiece.bpe.model")))
        model = MBartForConditionalGeneration(MBartConfig(vocab_size=len(tokenizer), **SIZES, max_length=48))
    elif family == "bart":
        tokenizer = bart_tokenizer(folder)
        model = BartForConditionalGeneration(BartConfig(vocab_size=len(tokenizer), **SIZES, max_length=48))
    elif family == "pegasus":
        tokenizer = PegasusTokenizer(str(train_subwords(folder / "spiece.model", **T5_IDS)))
        ids = {"pad_token_id": 0, "eos_token_id": 1, "forced_eos_token_id": 1, "decoder_start_token_id": 0}
        model = PegasusForConditionalGeneration(PegasusConfig(vocab_size=len(tokenizer), **SIZES, **ids, max_length=48))
    else:
        tokenizer = t5_tokenizer(folder, family == "madlad")
        ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
        sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
        model = T5ForConditionalGeneration(
            T5Config(vocab_size=len(tokenizer), decoder_start_token_id=0, **ids, **sizes)
        )
        model.generation_config.max_length = 48
    with torch.no_grad():  # outputs that depend on the source, and end
        for name, weight in model.named_parameters():
            if weight.dim() > 1:
                weight.mul_(12 if "embed" not in name and "shared" not in name else 4)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def call(family: str, folder: Path) -> list[dict[str, object]]:
    """The pipeline's outputs: greedy and by beams."""
    translate = pipeline("translation", model=str(folder), device="cpu")
    source, target = {**LANGUAGES, **OTHER_LANGUAGES}.get(family, (None, None))
    names = {"src_lang": source, "tgt_lang": target} if family in LANGUAGES else {}
    records = []
    for number, text in enumerate(TEXTS):
        shown = PREFIXES.get(family, "") + text
        options = {"num_beams": (1, 4)[number % 2], "max_new_tokens": 20}
        (output,) = translate(shown, **names, **options, return_tensors=True)
        languages = {"source_language": source, "target_language": target}
        records.append(
            {"family": family, "text": text, **languages, **options, "tokens": output["translation_token_ids"].tolist()}
        )
    return records


def main(folder: Path) -> None:
    calls = []
    for family in FAMILIES:
        for seed in range(20):
            make(family, folder / family, seed)
            records = call(family, folder / family)
            if len({tuple(record["tokens"]) for record in records}) >= NUM_DIFFERENT:
                break
        else:
            raise RuntimeError(f"No random {family} model has outputs that depend on the source.")
        calls += records
    record = {"transformers": transformers.__version__, "calls": calls}
    (folder / "calls.json").write_text(json.dumps(record, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
