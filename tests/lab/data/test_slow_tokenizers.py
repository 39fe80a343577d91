"""Slow tokenizers in experiments: ids, texts and files are those of transformers' own class."""

import pickle
import subprocess
import sys

import pytest
from support.family_tokenizers import TEXTS, bart_tokenizer, m2m100_tokenizer, marian_tokenizer
from transformers import PreTrainedTokenizerBase

from hf_posenc.convert.folders import language_token
from hf_posenc.lab.data.corpus import prepend_tag
from hf_posenc.lab.data.tokenization import SlowTokenizer, adopt_tokenizer, load_experiment_tokenizer
from hf_posenc.tokenizer.tokenization_posenc import PosEncTokenizer

pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
# Characters outside the vocabulary, spaces of other kinds, and no text.
LINES = [*TEXTS, "  a dog\tand   a zebra!", "ﬁne ½ cat \u3000 bird", "Ω", "", "a " * 300]
MAKERS = {
    "M2M-100": m2m100_tokenizer,
    "opus-mt": marian_tokenizer,
    "opus-mt, two vocabularies": lambda folder: marian_tokenizer(folder, separate=True),
    "opus-mt, several targets": lambda folder: marian_tokenizer(folder, tags=(">>deu<<", ">>fra<<")),
}
TAGS = {"M2M-100": ("__de__", "__en__"), "opus-mt, several targets": (">>fra<<", None)}


@pytest.fixture(params=MAKERS, scope="module")
def made(request, tmp_path_factory) -> tuple[str, PreTrainedTokenizerBase]:
    pytest.importorskip("sentencepiece", reason="slow tokenizers need it: pip install sentencepiece")
    folder = tmp_path_factory.mktemp("words")
    return request.param, MAKERS[request.param](folder / "new" if request.param == "M2M-100" else folder)


def bare(ids: list[int], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Ids without the language tag and the end token that M2M-100 writes."""
    return ids[1 if hasattr(tokenizer, "lang_code_to_token") else 0 : -1]


def test_ids_are_the_tokenizers_own_between_its_special_tokens(made):
    name, theirs = made
    ours = adopt_tokenizer(theirs)
    assert isinstance(ours, SlowTokenizer)
    if name == "M2M-100":
        theirs.src_lang, theirs.tgt_lang = "de", "en"
    expected = {
        "text": [bare(ids, theirs) for ids in theirs(LINES)["input_ids"]],
        "text_target": [bare(ids, theirs) for ids in theirs(text_target=LINES)["input_ids"]],
    }
    for side, ids in expected.items():
        assert ours(**{side: LINES})["input_ids"] == [[*subwords, theirs.eos_token_id] for subwords in ids]
        assert ours(**{side: LINES}, add_special_tokens=False)["input_ids"] == ids
        assert ours(**{side: LINES[0]})["input_ids"] == [*ids[0], theirs.eos_token_id]
    assert (expected["text"] != expected["text_target"]) == (name != "M2M-100")  # opus-mt has a model for each side
    assert ours.num_special_tokens_to_add() == 1


def test_a_text_that_spells_a_special_token_has_none(made):
    _, theirs = made
    ours = adopt_tokenizer(theirs)
    texts = [f"a dog{token} a cat {token}" for token in theirs.all_special_tokens]
    for side in ("text", "text_target"):
        ids = ours(**{side: texts}, add_special_tokens=False)["input_ids"]
        assert not {token for row in ids for token in row} & {theirs.eos_token_id, theirs.pad_token_id}


def test_a_tagged_text_is_the_tokenizers_own_for_that_language(made):
    name, theirs = made
    if name not in TAGS:
        assert adopt_tokenizer(theirs).tag_ids == {}
        return
    source, target = TAGS[name]
    ours = adopt_tokenizer(theirs)
    texts = [text for text in LINES if text.strip()]
    tagged = [prepend_tag(text, source) for text in texts]
    if name == "M2M-100":
        theirs.src_lang, theirs.tgt_lang = "de", "en"
        labels = theirs(text_target=texts)["input_ids"]
        assert ours(text_target=[prepend_tag(text, target) for text in texts])["input_ids"] == labels
        assert ours(tagged)["input_ids"] == theirs(texts)["input_ids"]
        assert ours.batch_decode(labels, skip_special_tokens=True) == theirs.batch_decode(
            [ids[1:-1] for ids in labels], skip_special_tokens=True
        )
    else:
        assert ours(tagged)["input_ids"] == theirs(tagged)["input_ids"]
    untagged = ours(texts)["input_ids"]
    assert ours(tagged)["input_ids"] == [[ours.convert_tokens_to_ids(source), *ids] for ids in untagged]


def test_decoded_texts_are_the_tokenizers_own(made):
    _, theirs = made
    ids = adopt_tokenizer(theirs)(text_target=LINES)["input_ids"]
    texts = adopt_tokenizer(theirs).batch_decode(ids, skip_special_tokens=True)
    assert texts == theirs.batch_decode(ids, skip_special_tokens=True) and texts[:3] == TEXTS


def test_a_saved_tokenizer_is_the_original_and_hashes_tell_two_apart(made, tmp_path):
    _, theirs = made
    ours = adopt_tokenizer(theirs)
    ours.save_pretrained(tmp_path)
    again = load_experiment_tokenizer(tmp_path)
    assert type(again.wrapped) is type(theirs)
    for copy in (again, pickle.loads(pickle.dumps(ours))):
        assert copy(LINES)["input_ids"] == ours(LINES)["input_ids"]
        assert copy.to_str() == ours.to_str() and len(copy) == len(ours)
        assert copy.target_vocab_size == ours.target_vocab_size and copy.bos_token_id == ours.bos_token_id


def test_two_tokenizers_have_two_hashes(tmp_path):
    pytest.importorskip("sentencepiece", reason="slow tokenizers need it: pip install sentencepiece")
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    hashes = {
        adopt_tokenizer(tokenizer).to_str()
        for tokenizer in (
            marian_tokenizer(tmp_path / "one"),
            marian_tokenizer(tmp_path / "two", tags=(">>fra<<",)),
            m2m100_tokenizer(tmp_path / "three"),
        )
    }
    assert len(hashes) == 3


def test_a_fast_tokenizer_becomes_one_of_this_family(tmp_path):
    assert isinstance(adopt_tokenizer(bart_tokenizer(tmp_path)), PosEncTokenizer)


# What is refused


def test_what_a_slow_tokenizer_cannot_do_is_refused(tmp_path):
    pytest.importorskip("sentencepiece", reason="slow tokenizers need it: pip install sentencepiece")
    (tmp_path / "marian").mkdir()
    marian = adopt_tokenizer(marian_tokenizer(tmp_path / "marian"))
    m2m100 = adopt_tokenizer(m2m100_tokenizer(tmp_path / "m2m100"))
    assert m2m100.add_special_tokens({"extra_special_tokens": ["__de__"]}) == 0
    for call, said in (
        (lambda: m2m100.add_special_tokens({"extra_special_tokens": ["de"]}), "but it is 'de', .*; write '__de__'"),
        (lambda: m2m100.add_special_tokens({"extra_special_tokens": ["dee"]}), "'dee'; the nearest one is 'de'"),
        (lambda: marian.add_special_tokens({"extra_special_tokens": ["de"]}), "MarianTokenizer has none; leave"),
        (lambda: marian.with_normalization(source=["lowercase"]), r"a MarianTokenizer, .*; leave data.normalize out"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=said):
            call()


def test_a_language_is_named_as_the_tokenizer_names_it_or_by_its_tag(tmp_path):
    pytest.importorskip("sentencepiece", reason="slow tokenizers need it: pip install sentencepiece")
    m2m100 = m2m100_tokenizer(tmp_path / "m2m100")
    assert [language_token(m2m100, name) for name in ("de", "__de__")] == ["__de__", "__de__"]
    ours = PosEncTokenizer.train(["ein Hund"] * 9, 270, tags=["<2de>"])
    assert language_token(ours, "<2de>") == "<2de>"
    with pytest.raises(ValueError, match="'<2dee>'; the nearest one is '<2de>'"):
        language_token(ours, "<2dee>")


@pytest.mark.slow
def test_a_tokenizer_without_its_package_is_refused_with_the_remedy(tmp_path):
    pytest.importorskip("sentencepiece", reason="the tokenizer is made with it: pip install sentencepiece")
    marian_tokenizer(tmp_path)
    code = (
        "import sys; sys.modules['sentencepiece'] = None\n"
        "from hf_posenc.lab.run.shared_tokenizer import load_pretrained_tokenizer\n"
        f"load_pretrained_tokenizer({str(tmp_path)!r})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "ValueError: The package of a tokenizer must be installed" in done.stderr
    assert "pip install 'hf-posenc[sentencepiece]'" in done.stderr
