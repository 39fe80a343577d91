"""A tiny config file, and how it is loaded."""

from pathlib import Path
from typing import Any

from hf_posenc.lab.config.loading import load_experiment

ROOT = Path(__file__).parents[2]


TINY: dict[str, Any] = {
    "data": {
        "source_language": "de",
        "target_language": "en",
        "train": {"generator": {"seed": 1, "pairs": 60, "min_words": 6, "max_words": 12}},
        "validation": {"generator": {"seed": 3, "pairs": 8, "min_words": 6, "max_words": 12}},
        "test": {"generated": {"generator": {"seed": 2, "pairs": 6, "min_words": 6, "max_words": 24}}},
        "vocab_size": 700,
        "max_length": 40,
    },
    "model": {
        "d_model": 16,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 16,
        "decoder_ffn_dim": 16,
        "learned_max_positions": 200,
    },
    "train": {"max_steps": 6, "per_device_train_batch_size": 4, "save_steps": 2, "logging_steps": 1, "use_cpu": True},
    "score": {
        "bucket_edges": [12, 24],
        "metrics": ["bleu", "ter"],
        "num_beams": 2,
        "max_new_tokens": 12,  # an untrained model writes to its limit
        "concatenate": [1, 2],
        "bootstrap_samples": 100,
    },
    "systems": {
        "absolute": {"model": {"position_encoding_type": "sinusoidal"}},
        "relative": {},
        "rnn-nmt": {"model": {"model_type": "posenc_rnn_nmt", "d_model": 16, "encoder_layers": 1, "decoder_layers": 1}},
    },
}

# One system, scored on two sentences and not analysed, so that tests of training spend their time on training.
ONE_SYSTEM: dict[str, Any] = TINY | {
    "data": TINY["data"]
    | {"test": {"generated": {"generator": {"seed": 2, "pairs": 2, "min_words": 6, "max_words": 9}}}},
    "score": TINY["score"] | {"concatenate": [1], "metrics": ["bleu"], "num_beams": 1},
    "systems": {"relative": {}},
    "diagnose": False,
}


def load(config: Path, *overrides: str) -> Any:
    return load_experiment(config, [f"output_dir={config.parent / 'runs'}", *overrides])
