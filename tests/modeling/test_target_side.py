"""Two vocabularies: attributes without a side are those of the target, or are refused."""

from typing import Any

import pytest
import torch
from support.family_tokenizers import marian_tokenizer
from support.models import BEFORE_5_18, TEXTS, TEXTS_VOCABULARY, sentences, tiny_model
from transformers import WatermarkingConfig

from hf_posenc import PosEncTokenizer

SIZES = {"vocab_size": 31, "decoder_vocab_size": 23}
of_sizes = pytest.mark.parametrize(
    "sizes", [SIZES, {"vocab_size": 23, "decoder_vocab_size": 31}], ids=["source", "target"]
)
of_families = pytest.mark.parametrize("where", ["relative", "rnn_nmt"])
GREEDY: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False, "num_beams": 1}


def source(vocab_size: int = 23) -> torch.Tensor:
    return sentences(3, 6, seed=1, vocab_size=vocab_size)


@of_families
@of_sizes
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("normalize", [False, True])
@torch.no_grad()
def test_transition_scores_are_those_of_the_target(where, sizes, beams, normalize):
    if beams > 1 and BEFORE_5_18:
        pytest.skip("transformers before 5.18 takes the encoder's vocabulary for the decoder's in beam search")
    model = tiny_model(where, **sizes)
    made = model.generate(source(), **GREEDY | {"num_beams": beams}, return_dict_in_generate=True, output_scores=True)
    found = model.compute_transition_scores(
        made.sequences, made.scores, made.get("beam_indices"), normalize_logits=normalize
    )
    for row, ids in enumerate(made.sequences):
        for step in range(found.shape[1]):
            beam = row if beams == 1 else int(made.beam_indices[row, step])
            if beam < 0:
                assert found[row, step] == 0
                continue
            scores = made.scores[step][beam]
            expected = (scores.log_softmax(-1) if normalize else scores)[ids[step + 1]]
            torch.testing.assert_close(found[row, step], expected)
    assert model.config.vocab_size == sizes["vocab_size"]


@pytest.fixture(scope="module")
def two() -> PosEncTokenizer:
    return PosEncTokenizer.train(TEXTS * 2, TEXTS_VOCABULARY, target_texts=[text.upper() for text in TEXTS] * 2)


@of_families
@torch.no_grad()
def test_a_stop_string_is_read_in_what_is_generated(where, two):
    model = tiny_model(where, vocab_size=TEXTS_VOCABULARY, decoder_vocab_size=TEXTS_VOCABULARY)
    ids = two(TEXTS[:1], return_tensors="pt")["input_ids"]
    in_source = {token.strip() for token in two.get_vocab()}
    texts = {token: two.target.decode([token]).strip() for token in range(260, TEXTS_VOCABULARY)}
    words = [token for token, text in texts.items() if text.isalpha() and text not in in_source]
    how = GREEDY | {"max_new_tokens": 6, "suppress_tokens": sorted({*range(TEXTS_VOCABULARY)} - {*words})}
    plain = model.generate(ids, **how)[0]
    stop = two.target.convert_ids_to_tokens(int(plain[4])).strip()
    first = next(end for end in range(1, len(plain)) if stop in two.decode(plain[1 : end + 1])) + 1
    stopped = model.generate(ids, **how, stop_strings=[stop], tokenizer=two)[0]
    assert stopped.tolist() == plain[:first].tolist()
    made = model.translate(TEXTS[:1], two, stop_strings=[stop], **how)
    assert made == [two.decode(stopped, skip_special_tokens=True)]


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("by", ["option", "generation config"])
def test_a_stop_string_is_refused_where_transformers_would_search_the_sources_vocabulary(separate, by, tmp_path):
    """A MarianTokenizer with two vocabularies shows the source's; with one it is right."""
    pytest.importorskip("sentencepiece", reason="MarianTokenizer needs it: pip install sentencepiece")
    marian = marian_tokenizer(tmp_path, separate=separate)
    sizes = {"vocab_size": len(marian), "decoder_vocab_size": len(getattr(marian, "target_encoder", marian))}
    tokens = {"pad_token_id": marian.pad_token_id, "eos_token_id": marian.eos_token_id}
    model = tiny_model("relative", decoder_start_token_id=marian.pad_token_id, **tokens, **sizes)
    ids = marian(["a dog"], return_tensors="pt")["input_ids"]
    options = GREEDY | {"suppress_tokens": list(tokens.values())}
    plain = model.generate(ids, **options)
    piece = marian.convert_ids_to_tokens([int(plain[0, 2])])[0].strip("\u2581")
    if by == "generation config":
        model.generation_config.stop_strings = [piece]
    else:
        options["stop_strings"] = [piece]
    if separate:
        with pytest.raises(ValueError, match=r"^stop_strings .* MarianTokenizer with two; leave"):
            model.generate(ids, tokenizer=marian, **options)
    else:
        assert model.generate(ids, tokenizer=marian, **options).shape[1] <= 3


SOURCE_COMPARING_OPTIONS = {"encoder_repetition_penalty": 1.3, "encoder_no_repeat_ngram_size": 2}
EQUAL_SIZE_OPTIONS = {"prompt_lookup_num_tokens": 3, "watermarking_config": WatermarkingConfig()}


@of_sizes
@pytest.mark.parametrize("name", [*SOURCE_COMPARING_OPTIONS, *EQUAL_SIZE_OPTIONS])
@pytest.mark.parametrize("by", ["option", "generation config"])
def test_what_mixes_two_vocabularies_is_refused(sizes, name, by):
    model, value = tiny_model("relative", **sizes), (SOURCE_COMPARING_OPTIONS | EQUAL_SIZE_OPTIONS)[name]
    if by == "generation config":
        setattr(model.generation_config, name, value)
    with pytest.raises(ValueError, match=rf"^{name} .*{sizes['vocab_size']} and {sizes['decoder_vocab_size']} tokens"):
        model.generate(source(), **GREEDY, **({name: value} if by == "option" else {}))


@pytest.mark.parametrize("name", SOURCE_COMPARING_OPTIONS)
def test_a_tokenizer_says_that_two_vocabularies_of_one_size_are_two(two, tokenizer, name):
    model = tiny_model("relative", vocab_size=TEXTS_VOCABULARY, decoder_vocab_size=TEXTS_VOCABULARY)
    options = {name: SOURCE_COMPARING_OPTIONS[name], **GREEDY}
    with pytest.raises(ValueError, match=f"^{name} .* one vocabulary .*, but .* two"):
        model.translate(TEXTS[:1], two, **options)
    assert len(model.translate(TEXTS[:1], tokenizer, **options)) == 1


@of_sizes
def test_what_does_nothing_is_not_refused(sizes):
    model = tiny_model("relative", **sizes)
    plain = model.generate(source(), **GREEDY)
    neutral = {"encoder_repetition_penalty": 1.0, "encoder_no_repeat_ngram_size": 0}
    assert torch.equal(model.generate(source(), **GREEDY, **neutral), plain)


@pytest.mark.parametrize("how", ["assistant", "prompt lookup", "watermark"])
@torch.no_grad()
def test_two_vocabularies_of_one_size_go_with_what_counts_tokens(how):
    model = tiny_model("relative", vocab_size=31, decoder_vocab_size=31)
    one = source()[:1]
    plain = model.generate(one, **GREEDY)
    if how == "watermark":
        assert model.generate(one, **GREEDY, watermarking_config=WatermarkingConfig()).shape[1] > 1
        return
    options = {"assistant_model": tiny_model("relative", seed=1, vocab_size=31, decoder_vocab_size=31)}
    if how == "prompt lookup":
        options = {"prompt_lookup_num_tokens": 3}
    assert torch.equal(model.generate(one, **GREEDY, **options), plain)


@pytest.mark.parametrize("theirs", [{"vocab_size": 30, "decoder_vocab_size": 23}, {"vocab_size": 31}])
def test_an_assistant_of_other_vocabularies_is_refused(theirs):
    model, assistant = tiny_model("relative", **SIZES), tiny_model("relative", **{"decoder_vocab_size": 31} | theirs)
    with pytest.raises(ValueError, match=r"31 source and 23 target .* assistant 3"):
        model.generate(source()[:1], assistant_model=assistant, **GREEDY)
