"""Translation by a causal model: prompts, equal results in batches and alone, and refusals."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from hf_posenc.lab import cli
from hf_posenc.translator.causal import CausalTranslator
from hf_posenc.translator.translator import Translator

TEXTS = ["ein kleines haus", "wo", "das ist ein kleines haus am meer"]
WORDS = sorted({word for text in TEXTS for word in text.split()} | {"German", "English", ":", "a", "small", "house"})
PIECES = [
    "<unk>",
    "</s>",
    "\u010a",
    *WORDS,
    *(f"\u0120{word}" for word in WORDS),
]  # line feed, words, words after a blank
TEMPLATE = "{source_language} : {text}\n{target_language} :"
CHAT = "{% for message in messages %}{{ message['content'] }} ]{% endfor %} :"


def make_tokenizer(**options: Any) -> PreTrainedTokenizerFast:
    vocabulary = {word: number for number, word in enumerate(PIECES)}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", eos_token="</s>", **options)


@pytest.fixture
def model() -> LlamaForCausalLM:
    torch.manual_seed(1)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=len(PIECES), max_position_embeddings=64, eos_token_id=1, **sizes)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for weight in model.parameters():  # outputs that depend on the text
            if weight.dim() > 1:
                weight.mul_(20)
    return model


@pytest.mark.parametrize("language", ["deu_Latn", "de", "German"])
def test_a_prompt_names_languages_and_ends_with_the_template(language: str, model: LlamaForCausalLM) -> None:
    translator = CausalTranslator(model, make_tokenizer(), language, "en", prompt_template=TEMPLATE)
    assert (translator.direction.source, translator.target_script) == ("de", "Latn")
    assert translator.tokenizer.decode(translator.encode("wo")) == "German : wo\nEnglish :"


def test_without_a_template_the_prompt_is_a_chat(model: LlamaForCausalLM) -> None:
    translator = CausalTranslator(model, make_tokenizer(chat_template=CHAT), "de", "en")
    ids = translator.encode("ein kleines haus")
    assert translator.tokenizer.decode(ids).endswith("ein kleines haus<unk> :")


def test_a_batch_has_the_results_of_each_text_alone(model: LlamaForCausalLM) -> None:
    translator = CausalTranslator(
        model, make_tokenizer(), "de", "en", prompt_template=TEMPLATE, max_new_tokens=6, num_beams=1
    )
    together = translator.generate(TEXTS, translator.generate_options)
    assert together == [translator.generate([text], translator.generate_options)[0] for text in TEXTS]
    assert len({text for text, _ in together}) > 1, "outputs depend on the text"
    prompt = torch.tensor([translator.encode(TEXTS[0])])
    new = model.generate(prompt, max_new_tokens=6, do_sample=False)[0, prompt.shape[1] :]
    before_line_feed = translator.tokenizer.decode(new, skip_special_tokens=True).split("\n")[0]
    assert together[0][0] == before_line_feed.strip(), "the prompt is no part of the translation"


def test_a_translation_that_reaches_its_limit_is_doubtful(model: LlamaForCausalLM) -> None:
    translator = CausalTranslator(
        model, make_tokenizer(), "de", "en", prompt_template=TEMPLATE, max_new_tokens=6, repair=False
    )
    results = translator(TEXTS)
    cut = [was_cut for _, was_cut in translator.generate(TEXTS, translator.generate_options)]
    doubted = ["cut" in {doubt.check for doubt in result.segments[0].doubts} for result in results]
    assert any(cut) and doubted == cut


def test_a_score_is_the_mean_over_the_translation_alone(model: LlamaForCausalLM) -> None:
    translator = CausalTranslator(model, make_tokenizer(), "de", "en", prompt_template=TEMPLATE)
    prompt = translator.encode("wo")
    answer = translator.tokenizer(" a small house")["input_ids"]
    with torch.no_grad():
        log_probs_TV = model(torch.tensor([prompt + answer])).logits[0].log_softmax(-1)
    expected = sum(float(log_probs_TV[len(prompt) - 1 + at, token]) for at, token in enumerate(answer)) / len(answer)
    assert translator.log_probabilities("wo", ["a small house"]) == [pytest.approx(expected, rel=1e-4)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "has no chat template"),
        ({"prompt_template": "{source_language}:"}, r"must have \{text\}"),
        ({"prompt_template": "{text} {other}"}, "write other braces twice"),
        ({"prompt_template": "{text"}, "must be a format string"),
        ({"prompt_template": TEMPLATE, "target_language": None}, "target_language must be given"),
        ({"prompt_template": TEMPLATE, "do_sample": True}, "must not be sampled"),
    ],
)
def test_what_cannot_be_used_is_refused(model: LlamaForCausalLM, options: dict[str, Any], message: str) -> None:
    languages = {"source_language": "de", "target_language": "en"}
    with pytest.raises(ValueError, match=message):
        CausalTranslator(model, make_tokenizer(), **{**languages, **options})


def test_the_other_architecture_is_refused(model: LlamaForCausalLM) -> None:
    with pytest.raises(ValueError, match="must have an encoder-decoder, but LlamaForCausalLM"):
        Translator(model, make_tokenizer())


def test_the_command_takes_a_template(
    model: LlamaForCausalLM, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model.save_pretrained(tmp_path / "model")
    make_tokenizer().save_pretrained(tmp_path / "model")
    (tmp_path / "in.txt").write_text("".join(f"{text}\n" for text in TEXTS), encoding="utf-8")
    languages = ["--source-language", "de", "--target-language", "en"]
    options = [*languages, "--num-beams", "1", "--max-new-tokens", "6", "--no-repair"]
    cli.main(
        [
            "translate",
            str(tmp_path / "model"),
            "--input",
            str(tmp_path / "in.txt"),
            "--prompt-template",
            TEMPLATE,
            *options,
        ]
    )
    translator = CausalTranslator(
        model, make_tokenizer(), "de", "en", prompt_template=TEMPLATE, num_beams=1, max_new_tokens=6, repair=False
    )
    assert capsys.readouterr().out == "".join(f"{result}\n" for result in translator(TEXTS))
