"""The configs of Neishi & Yoshinaga (CoNLL 2019) are the paper's systems: to the parameter, and in their recipe."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, get_scheduler

from hf_posenc.lab.config.loading import load_experiment
from hf_posenc.lab.training.arguments import training_arguments

CONFIGS = Path(__file__).parents[3] / "configs" / "n19"
# What the authors' code has beyond embeddings and output projection.
BODIES = {
    "rnn-nmt": 45_923_328,
    "transformer": 44_138_496,
    "rel-transformer": 44_189_184,
    "rnn-transformer": 43_086_336,
    "rr-transformer": 43_132_800,
}


@pytest.mark.full
@pytest.mark.parametrize("name", ["wmt14-ende", "aspec-enja"])
def test_the_bodies_have_the_papers_number_of_parameters(name):
    experiment = load_experiment(CONFIGS / f"{name}.yaml")
    counts = {}
    for system in experiment.systems.values():
        with torch.device("meta"):
            model = AutoModelForSeq2SeqLM.from_config(system.model_config(system.data.vocab_size))
        assert not model.config.share_encoder_decoder_embeddings
        assert not model.config.tie_word_embeddings
        tables = (model.model.encoder.embed_tokens, model.model.decoder.embed_tokens, model.lm_head)
        beyond = sum(table.weight.numel() for table in tables) + model.final_logits_bias.numel()
        counts[system.name] = model.num_parameters() - beyond
    assert counts == BODIES


@pytest.mark.full
def test_the_learning_rate_is_noams(tmp_path):
    system = load_experiment(CONFIGS / "wmt14-ende.yaml").systems["transformer"]
    args = training_arguments(system.train, tmp_path)
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.Adam([parameter], lr=args.learning_rate)
    schedule = get_scheduler(args.lr_scheduler_type, optimizer, args.get_warmup_steps(args.max_steps), args.max_steps)
    for step in range(1, 6001):
        optimizer.step()
        schedule.step()
        if step in (1, 100, 3999, 4000, 4001, 6000):
            noam = 512**-0.5 * min(step**-0.5, step * 4000**-1.5)
            assert schedule.get_last_lr()[0] == pytest.approx(noam, rel=1e-6)


def test_the_data_may_be_files_in_place_of_the_hubs():
    files = {"files": ["a.en", "a.de"]}
    overrides = [f"data.{part}={{files: [a.en, a.de]}}" for part in ("train", "validation", "test.newstest2014")]
    data = load_experiment(CONFIGS / "wmt14-ende.yaml", overrides).systems["rnn-nmt"].data
    assert (data.train, data.validation, data.test) == (files, files, {"newstest2014": files})
