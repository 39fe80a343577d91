"""transformers' own tests of models, configs and training, on encodings of each architecture and on RNN-NMT."""

import unittest

import pytest
import torch
from support.causal import tiny_causal_config
from support.models import EVERY_ENCODING, KINDS, REGISTERED, tiny_config
from support.upstream import upstream_tests

from hf_posenc import (
    PosEncCausalModel,
    PosEncForCausalLM,
    PosEncForConditionalGeneration,
    PosEncModel,
    RnnNmtForConditionalGeneration,
    RnnNmtModel,
)

try:
    modeling, configuration, training = upstream_tests()
except (RuntimeError, ImportError) as missing:
    pytest.skip(f"transformers' own tests are not to be had: {missing}", allow_module_level=True)

# Upstream's tests warn of what they do themselves, each version of something else, and one looks for a deprecation.
WARNINGS = [pytest.mark.filterwarnings(rule) for rule in ("ignore", "always::FutureWarning")]
pytestmark = [pytest.mark.slow, *WARNINGS]

# Hundreds of tests each, so not of every kind unless the environment has EVERY_ENCODING.
CAUSAL = [f"causal {name}" for name in (REGISTERED if EVERY_ENCODING else ["rotary"])]
SIDES = [*(KINDS if EVERY_ENCODING else ["learned", "gru+relative"]), *CAUSAL, "rnn_nmt"]

MODELS = {
    "posenc": (PosEncModel, PosEncForConditionalGeneration),
    "causal": (PosEncCausalModel, PosEncForCausalLM),
    "rnn_nmt": (RnnNmtModel, RnnNmtForConditionalGeneration),
}
# By these tables upstream's tests know which class has labels and which has none.
for base, whole in MODELS.values():
    modeling.MODEL_MAPPING_NAMES[base.config_class.model_type] = base.__name__
    heads = (
        modeling.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
        if whole is PosEncForCausalLM
        else modeling.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
    )
    heads[whole.config_class.model_type] = whole.__name__


def architecture(sides: str) -> str:
    """The key of MODELS."""
    return "rnn_nmt" if sides == "rnn_nmt" else "causal" if sides.startswith("causal ") else "posenc"


# What cannot apply, and why. These tests are counted as skipped, for this reason.
INAPPLICABLE = {
    "test_generation_tester_mixin_inheritance": "transformers does not distribute its tests of generation; "
    "tests/invariants/test_generation.py stands for them",
    "test_model_rope_scaling_from_config_1_dynamic": "frequencies that change with the length are refused, because "
    "cached decoding could not equal a full forward",
}
ROTARY_ALONE = {
    "test_model_rope_scaling_from_config_0_linear": "nothing is rotated",
    "test_model_rope_scaling_from_config_2_yarn": "nothing is rotated",
}
TRANSFORMER_ALONE = {
    "test_attention_outputs": "an RNN has no self-attention, whose weights are looked at first",
    "test_hidden_states_output": "torch's LSTM returns the outputs of its last layer alone",
    "test_retain_grad_hidden_states_attentions": "torch's LSTM returns the outputs of its last layer alone",
}
# These ask of any encoder-decoder that one table of embeddings, and one size, is that of both sides.
OF_ONE_TABLE = {
    "test_inputs_embeds_matches_input_ids",
    "test_resize_embeddings_untied",
    "test_resize_embeddings_untied_no_reinit_on_post_init",
}


def keep_norms_tame(config) -> None:
    """Upstream sets all epsilons that any model has, which a config that refuses unknown fields could not load."""
    if hasattr(config, "layer_norm_eps"):
        config.layer_norm_eps = 1.0


modeling.set_config_for_less_flaky_test = keep_norms_tame


class Small:
    """What upstream calls a model tester: a config, inputs for it, and the sizes that both go by."""

    batch_size, seq_length, hidden_size = 3, 7, 16
    num_hidden_layers, num_attention_heads = 2, 2
    vocab_size, is_training, pad_token_id = 99, True, 0

    def __init__(self, sides: str, test: str) -> None:
        self.sides, self.test = sides, test
        self.base_model_class, self.causal_lm_class = MODELS[architecture(sides)]

    def get_causal_config(self):
        sizes = {"num_hidden_layers": self.num_hidden_layers, "num_attention_heads": self.num_attention_heads}
        dropout = {"dropout": 0.0} if self.test == "test_training_overfit" else {}
        encoding = self.sides.removeprefix("causal ")
        return tiny_causal_config(encoding, vocab_size=self.vocab_size, max_position_embeddings=32, **sizes, **dropout)

    def get_config(self):
        config = self.get_causal_config() if architecture(self.sides) == "causal" else self.get_seq2seq_config()
        if self.test in ROTARY_ALONE:
            # Upstream scales the frequencies of the decoder's view, which is a copy in any flat config.
            config.get_text_config = lambda **side: config
        return config

    def get_seq2seq_config(self):
        fields = {
            "vocab_size": self.vocab_size,
            "decoder_vocab_size": self.vocab_size,
            "encoder_layers": self.num_hidden_layers,
            "decoder_layers": self.num_hidden_layers,
            "share_encoder_decoder_embeddings": self.test in OF_ONE_TABLE,
        }
        if self.sides != "rnn_nmt":
            fields |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_position_embeddings": 32}
        if self.test == "test_training_overfit":
            fields |= {"dropout": 0.0}
        return tiny_config(self.sides, **fields)

    def prepare_config_and_inputs_for_common(self):
        source, target = torch.randint(3, self.vocab_size, (2, self.batch_size, self.seq_length))
        inputs = {"input_ids": source, "attention_mask": torch.ones_like(source)}
        if architecture(self.sides) == "causal":
            return self.get_config(), inputs
        inputs |= {"decoder_input_ids": target, "decoder_attention_mask": torch.ones_like(target)}
        return self.get_config(), inputs


class Upstream(modeling.ModelTesterMixin, training.TrainingTesterMixin):
    """All of upstream's tests, of the models that `sides` names."""

    sides: str
    model_tester = None
    is_encoder_decoder = True
    test_can_init_all_missing_weights_before_2023 = True  # a file without a year in its head counts as an old one
    training_overfit_steps = 100
    training_overfit_learning_rate = 1e-2
    training_overfit_seq_length = 24

    def setUp(self) -> None:
        test, inapplicable, is_rnn = self._testMethodName, dict(INAPPLICABLE), self.sides == "rnn_nmt"
        self.is_encoder_decoder = architecture(self.sides) != "causal"
        if "rotary" not in self.sides:
            inapplicable |= ROTARY_ALONE
        if is_rnn:
            inapplicable |= TRANSFORMER_ALONE
        if test in inapplicable:
            self.skipTest(inapplicable[test])
        self.model_tester = Small(self.sides, test)
        self.config_tester = configuration.ConfigTester(
            self,
            config_class=type(self.model_tester.get_config()),
            common_properties=["hidden_size", "num_hidden_layers"] + ["num_attention_heads"] * (not is_rnn),
            **({"d_model": 32} if self.is_encoder_decoder else {"hidden_size": 32}),
        )
        if test == "test_bc_torch_dtype":
            self.all_model_classes = self.all_model_classes[1:]  # the longest one; the base is a part of the other
        if is_rnn:
            self.training_overfit_learning_rate = 3e-2  # its first gradients are small

    def test_config(self):
        self.config_tester.run_common_tests()

    def _create_text_training_batch(self, batch_size: int, seq_length: int, vocab_size: int) -> dict[str, torch.Tensor]:
        """Upstream's sentence, which a decoder-only model goes on with after its first token, as that which is
        translated from its first token: the rest of the source is padding, and a target begins with a start token."""
        batch = super()._create_text_training_batch(batch_size, seq_length, vocab_size)
        if not self.is_encoder_decoder:
            return batch
        ids = batch["input_ids"]
        assert (ids[:, 0] == self.model_tester.get_config().decoder_start_token_id).all()
        first = torch.zeros_like(ids)
        first[:, 0] = 1
        return {"input_ids": ids, "attention_mask": first, "labels": ids[:, 1:]}


def suite(sides: str) -> type[unittest.TestCase]:
    members = {"sides": sides, "all_model_classes": MODELS[architecture(sides)]}
    return type(sides, (Upstream, unittest.TestCase), {"__module__": __name__, **members})


globals().update({case.__name__: case for case in map(suite, SIDES)})
