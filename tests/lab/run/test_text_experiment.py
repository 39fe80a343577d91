"""Language models on plain text in experiments: scores by position and context length, and what is refused."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from support.causal import tiny_causal_model
from support.experiments import load
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from hf_posenc import PosEncTokenizer
from hf_posenc.lab.reports.report import write_report
from hf_posenc.lab.results.aggregation import aggregate
from hf_posenc.lab.results.saved_files import read_statistics
from hf_posenc.lab.run.evaluation import reads, row_statistics, statistics_by_position, window_nll
from hf_posenc.lab.run.pipeline import run_system
from hf_posenc.lab.run.prepare import prepare

CONFIG: dict[str, Any] = {
    "data": {
        "language": "en",
        "train": {"text": ["train.txt"]},
        "validation": {"text": "validation.txt"},
        "test": {"toy": {"text": ["test.txt"]}},
        "vocab_size": 275,
        "max_length": 8,
    },
    "model": {
        "model_type": "posenc_causal",
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "dropout": 0.0,
        "learned_max_positions": 32,
    },
    "train": {"max_steps": 4, "per_device_train_batch_size": 8, "use_cpu": True, "logging_steps": 1},
    "score": {"bucket_edges": [8, 16], "bootstrap_samples": 100},
    "systems": {
        "rotary": {"model": {"position_encoding_type": "rotary"}},
        "learned": {"model": {"position_encoding_type": "learned"}},
    },
}


def write_text(path: Path, seed: int, num_documents: int) -> None:
    """Documents of five lines of random words, with an empty line between them."""
    generator = random.Random(seed)
    words = ["ab", "ba", "abc", "cab", "bca"]
    documents = ["\n".join(" ".join(generator.choices(words, k=6)) for _ in range(5)) for _ in range(num_documents)]
    path.write_text("\n\n".join(documents), encoding="utf-8")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    for seed, name in enumerate(("train", "validation", "test")):
        write_text(tmp_path / f"{name}.txt", seed, 40 if name == "train" else 4)
    path = tmp_path / "text.yaml"
    content = CONFIG | {"data": CONFIG["data"] | {"data_dir": str(tmp_path)}}
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


@pytest.mark.parametrize("length", [1, 5, 8, 16, 23, 24])
@pytest.mark.parametrize(("window", "stride"), [(8, 8), (8, 4), (8, 3), (5, 1), (24, 4), (1, 1)])
def test_sliding_windows_predict_each_token_once_with_enough_context(length: int, window: int, stride: int) -> None:
    predicted = []
    for start, first, end in reads(length, window, stride):
        assert 0 <= start <= first < end <= length
        assert end - start <= window
        assert start == 0 or end - start == window
        assert first == 0 or end - first <= stride
        predicted += range(first, end)
    assert predicted == list(range(length))


@pytest.mark.parametrize(("window", "stride"), [(24, 24), (8, 4), (8, 3)])
@torch.no_grad()
def test_window_nll_is_transformers_loss_in_a_plain_loop(window: int, stride: int) -> None:
    """Llama's own loss of each read, in which labels before the predicted tokens are ignored."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=30, **sizes)).double().eval()
    tokens_NT = torch.randint(30, (3, 25))
    nll_NC = window_nll(model, tokens_NT[:, :-1], tokens_NT[:, 1:], window, stride, batch_tokens=2 * window)
    for row, tokens in enumerate(tokens_NT):
        total, end = 0.0, 0
        while end < 24:
            first, end = end, min(end + (stride if end else window), 24)
            start = max(0, end - window)
            ids = tokens[None, start : end + 1]
            labels = ids.clone()
            labels[:, : first + 1 - start] = -100
            total += float(model(input_ids=ids, labels=labels).loss) * (end - first)
        assert nll_NC[row].sum() == pytest.approx(total, rel=1e-6)


def test_statistics_hold_each_token_once() -> None:
    nll_NM = np.arange(24.0).reshape(2, 12)
    by_position = statistics_by_position(nll_NM, [3, 6, 12])
    assert by_position["lengths"].tolist() == [3, 3, 6, 6, 12, 12]
    assert by_position["perplexity"].sum(0).tolist() == [nll_NM.sum(), nll_NM.size]
    assert by_position["perplexity"][2].tolist() == [3 + 4 + 5, 3]
    by_context = row_statistics({3: nll_NM.reshape(-1, 3), 12: nll_NM})
    assert by_context["lengths"].tolist() == [3] * 8 + [12] * 2
    for context in (3, 12):
        rows = by_context["perplexity"][by_context["lengths"] == context]
        assert rows.sum(0).tolist() == [nll_NM.sum(), nll_NM.size]


def test_rotations_of_another_type_keep_their_theta_alone(config: Path) -> None:
    yarn = "{rope_type: yarn, rope_theta: 500.0, factor: 4.0, original_max_position_embeddings: 8}"
    linear = "{rope_type: linear, factor: 2.0}"
    experiment = load(
        config,
        "systems={rotary: {model: {position_encoding_type: rotary}}, far: {model: {position_encoding_type: rotary}}}",
        f"model.rope_parameters={yarn}",
        f"systems.rotary.model.rope_parameters={linear}",
        "systems.far.model.rope_parameters.factor=8.0",
    )
    rotary, far = (experiment.systems[name].model_config(275).rope_parameters for name in ("rotary", "far"))
    assert rotary == {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0}
    assert far["factor"] == 8.0 and far["rope_theta"] == 500.0 and far["rope_type"] == "yarn"


@pytest.mark.slow
def test_a_trained_model_is_scored_under_another_encoding(config: Path) -> None:
    """Scaled rotations change the perplexity of the same weights; without a change it is the same."""
    yarn = "{rope_type: yarn, rope_theta: 10000, factor: 4, original_max_position_embeddings: 8}"
    experiment = load(
        config,
        "systems.again={init_from: rotary, train: {max_steps: 0}}",
        f"systems.yarn={{init_from: rotary, model: {{rope_parameters: {yarn}}}, train: {{max_steps: 0}}}}",
    )
    run = prepare(experiment)
    scores, weights = {}, {}
    for name in ("rotary", "again", "yarn"):
        run_system(run, name)
        scores[name] = json.loads((experiment.folder / name / "scores.json").read_text())["tests"]["toy-whole"]
        weights[name] = AutoModelForCausalLM.from_pretrained(experiment.folder / name / "model").state_dict()
    assert scores["again"] == scores["rotary"] != scores["yarn"]
    torch.testing.assert_close(weights["yarn"], weights["rotary"], rtol=0, atol=0)
    folder = experiment.folder / "rotary" / "model"
    start = f"systems.rotary={{init_from: {folder}, train: {{max_steps: 0}}}}"
    saved = load(config, "name=saved", f"data.tokenizer={folder}", start)
    run_system(prepare(saved), "rotary")
    again = json.loads((saved.folder / "rotary" / "scores.json").read_text())["tests"]["toy-whole"]
    assert again["overall"] == scores["rotary"]["overall"]


@pytest.mark.slow
def test_a_config_trains_scores_and_reports_language_models(config: Path) -> None:
    experiment = load(config, "seeds=[1, 2]", "train.eval_strategy=steps", "train.eval_steps=2")
    run = prepare(experiment)
    for name in experiment.systems:
        run_system(run, name)
        card = (experiment.folder / name / "model" / "README.md").read_text(encoding="utf-8")
        assert "pipeline_tag: text-generation" in card and "This is a language model of `en`" in card
        assert "model.generate(" in card and "translate" not in card.lower().replace("translates", "")
    printed = write_report(aggregate(experiment), experiment.folder)
    assert "toy-sliding, by context length in tokens: perplexity" in printed
    folder = experiment.folder / "rotary-seed1"
    tests = json.loads((folder / "scores.json").read_text())["tests"]
    assert list(tests) == ["toy-position", "toy-whole", "toy-sliding"]
    values = {
        name: {g["label"]: g["scores"]["perplexity"]["value"] for g in test["buckets"]} for name, test in tests.items()
    }
    assert values["toy-whole"]["[0,8]"] == values["toy-sliding"]["[0,8]"]
    assert values["toy-whole"][">16"] != values["toy-sliding"][">16"]
    assert tests["toy-position"]["overall"]["scores"]["perplexity"]["value"] == pytest.approx(
        values["toy-whole"][">16"], rel=1e-9
    )
    model, tokenizer = (cls.from_pretrained(folder / "model") for cls in (AutoModelForCausalLM, AutoTokenizer))
    windows = run.system("rotary-seed1").test_windows("toy")
    ids, labels = torch.tensor(windows["input_ids"][:]), torch.tensor(windows["labels"][:])
    with torch.no_grad():
        loss = model(input_ids=ids, shift_labels=labels).loss
    assert values["toy-whole"][">16"] == pytest.approx(float(loss.exp()), rel=1e-5)
    statistics = read_statistics(folder / "statistics" / "toy-sliding.npz")
    sizes = {context: statistics["perplexity"][statistics["lengths"] == context, 1].sum() for context in (8, 16, 32)}
    assert set(sizes.values()) == {ids.numel()}
    assert {path.name for path in experiment.folder.glob("perplexity-*.png")} == {
        f"perplexity-toy-{score}.png" for score in ("position", "whole", "sliding")
    }
    prompt = tokenizer("ab", return_tensors="pt")["input_ids"]
    begun = [tokenizer.bos_token_id, *tokenizer("ab", add_special_tokens=False)["input_ids"]]
    assert prompt.tolist() == [begun]
    assert tokenizer("ab" + tokenizer.eos_token)["input_ids"] == [*begun, tokenizer.eos_token_id]
    assert PosEncTokenizer.from_fast_tokenizer(tokenizer)("ab")["input_ids"] == [*begun[1:], tokenizer.eos_token_id]
    assert model.generate(prompt, max_new_tokens=3, do_sample=False).shape[1] <= prompt.shape[1] + 3


SEQ2SEQ = "{model_type: posenc, d_model: 16}"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([f"model={SEQ2SEQ}"], "plain text is for decoder-only models, but model_type is posenc, an encoder-decoder"),
        (["data.test.toy={files: [a.de, a.en]}"], "data.test.toy must be plain text as data.train is, .*holds files"),
        (["data.validation={files: [a.de, a.en]}"], "data.validation must be plain text"),
        (["data.train={files: [train.txt]}"], "data.train has pairs; .*train on {text:"),
        (
            [
                "data.train={files: [a.de, a.en]}",
                "data.language=null",
                "data.source_language=de",
                "data.target_language=en",
            ],
            "data.test.toy must have pairs as data.train has, but it is plain text",
        ),
        (["data.train={files: [a.de, a.en]}"], "data.language is that of plain text, but data.train has pairs"),
        (["data.language=null"], "data needs language; add it, such as language: en"),
        (["data.source_language=de"], "plain text has one language, but source_language is given; write language"),
        (["data.max_length=null"], "plain text is cut into blocks of data.max_length tokens, but it is left out"),
        (["data.train.concatenate=2"], "concatenate"),
        (["data.concatenate=[1, 2]"], "data.concatenate is of pairs, but data.train is plain text"),
        (["score.max_per_bucket=4"], "score.max_per_bucket is of pairs"),
        (["data.tags=[<2en>]"], "data.tags is of pairs"),
        (["train.predict_with_generate=true"], "train.predict_with_generate translates pairs"),
        (
            ["score.bucket_edges=[8, 20]"],
            r"a multiple of the one before.* give \[8, 20, 40\]; write .*\[8, 16, 32, 64\]",
        ),
        (["score.max_context=24"], r"a multiple of the one before.* give \[8, 16, 24\]"),
        (["score.stride=9"], "score.stride must be at most data.max_length, 8, .*but it is 9"),
        (["score.max_context=64"], "systems.learned: its encoding has 32 positions, but .* has 64 tokens"),
        (
            ["systems.x={segment: rotary}"],
            "systems.x: segment translates parts of a source, but data.train is plain text",
        ),
        (["data.train.text=[]"], "data.train.text must be one plain text or a list of these"),
    ],
    ids=str,
)
def test_a_config_that_cannot_be_trained_is_refused_as_it_is_read(
    config: Path, overrides: list[str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        load(config, *overrides)


@pytest.mark.full
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["model.position_encoding_type=gru", "systems={x: {}}"],
            "systems.x: gru has a recurrent layer, .*hold several",
        ),
        (
            ["data.test.toy.text=train.txt"],  # of lines of six words
            "toy 199 of 200 lines begin 8 words or more that stand in the training text",
        ),
        (["data.max_length=4000", "score.bucket_edges=[4000]", "systems.learned=null"], "data.train has at most"),
        (["score.bucket_edges=[8, 512]", "model.learned_max_positions=2000"], "data.test.toy has at most"),
    ],
    ids=str,
)
def test_a_text_that_does_not_fit_is_refused_before_training(config: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        prepare(load(config, *overrides))


def test_half_precision_is_scored_in_float32() -> None:
    model = tiny_causal_model("rotary", dtype=torch.bfloat16)
    ids = torch.randint(3, 29, (2, 9))
    nll_NC = window_nll(model, ids[:, :-1], ids[:, 1:], 8, 8, batch_tokens=16)
    logits = model(ids[:, :-1]).logits.float()
    expected = torch.nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
    torch.testing.assert_close(torch.tensor(nll_NC).float(), expected.detach())
