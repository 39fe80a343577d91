"""Samples of a run: which pairs they are, how they are rendered, and the warning of runs that failed."""

from types import SimpleNamespace

from hf_posenc.lab.run.samples import Bucket, choose_samples, console_lines, near_zero_warnings, render_html
from hf_posenc.lab.run.samples import render_markdown as render

SOURCES = ["eins", "zwei", "drei", "vier"]
REFERENCES = ["one house", "two houses", "three houses", "four houses"]
OUTPUTS = {
    "good": ["one house", "two houses", "three houses", "four houses"],
    "bad": ["one house", "two", "x", "four"],
}
LENGTHS = [1, 2, 3, 9]
BUCKETS = [Bucket("[0,5]", [0, 1, 2]), Bucket("[6,10]", [3]), Bucket(">10", [])]


def test_the_worst_and_the_median_pair_of_each_bucket_are_chosen() -> None:
    samples = choose_samples(SOURCES, REFERENCES, OUTPUTS, LENGTHS, BUCKETS)
    assert [(sample.bucket, sample.kind, sample.number) for sample in samples] == [
        ("[0,5]", "worst", 3),
        ("[0,5]", "median", 2),
        ("[6,10]", "worst", 4),
    ]
    assert samples[0].outputs["good"] == ("three houses", 100.0)
    assert samples[0].outputs["bad"][1] == 0.0


def test_texts_are_escaped_and_a_console_line_is_one_line() -> None:
    texts = {"a|b": ["<script>x</script>\n| y"]}
    [sample] = choose_samples(["<b>\x1b[1m"], ["z" * 300], texts, [1], [Bucket("[0,5]", [0])])
    assert "<script>" not in render_html({"test": [sample]})
    assert r"| a\|b | &lt;script>x&lt;/script> \| y | " in render({"test": [sample]})
    lines = console_lines(sample)
    assert [line.split()[0] for line in lines] == ["source", "reference", "a|b"]
    assert all(line.isprintable() and len(line) < 130 for line in lines)


def test_a_run_in_which_every_system_scores_near_zero_is_warned_of() -> None:
    def run(*scores: float) -> SimpleNamespace:
        overall = [SimpleNamespace(score={"bleu": score}.get) for score in scores]
        tests = [SimpleNamespace(tests={"news": SimpleNamespace(overall=one)}) for one in overall]
        return SimpleNamespace(test_sets=["news"], systems=dict(enumerate(tests)))

    assert near_zero_warnings(run(0.4, 12.0)) == []
    [warning] = near_zero_warnings(run(0.4, 0.9))
    assert "on news every system scores below 1 bleu (the best 0.90)" in warning
