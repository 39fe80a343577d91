"""What scoring by length costs: generated pairs as references, the same with words lost and changed as translations.

python benchmarks/scoring.py                 28,075 pairs, as many as newstest_all; BLEU, TER, 1000 bootstrap samples
"""

import argparse
import random
import resource
import time

from hf_posenc import load_length_buckets
from hf_posenc.lab.data.synthetic import LANGUAGES, generate_pairs


def corrupted(reference: str, error_rate: float, rng: random.Random) -> str:
    """The reference with a share of its words left out, doubled or moved by a place."""
    words: list[str] = []
    for word in reference.split():
        draw = rng.random() / error_rate
        if draw < 1 / 3:
            continue
        words.insert(max(0, len(words) - (1 / 3 <= draw < 2 / 3)), word)
        if 2 / 3 <= draw < 1:
            words.append(word)
    return " ".join(words)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=28_075)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--wrong", type=float, default=0.5, help="share of words that are wrong")
    options = parser.parse_args()
    rng = random.Random(0)
    english = LANGUAGES.index("en")
    pairs = generate_pairs(seed=1, pairs=options.pairs, min_words=6, max_words=60)
    references = [pair[english] for pair in pairs]
    predictions = [corrupted(reference, options.wrong, rng) for reference in references]
    started = time.perf_counter()
    result = load_length_buckets().compute(
        predictions=predictions,
        references=references,
        source_lengths=[len(reference.split()) for reference in references],
        edges=(15, 30, 45),
        bootstrap=1000,
        num_proc=options.processes,
    )
    seconds = time.perf_counter() - started
    assert result is not None
    for group in [result["all"], *result["groups"]]:  # type: ignore[misc]
        print(f"{group['label']:>8} n={group['n']:<6} BLEU {group['bleu']:.1f} TER {group['ter']:.1f}")
    used = {who: resource.getrusage(getattr(resource, f"RUSAGE_{who}")) for who in ("SELF", "CHILDREN")}
    core = sum(one.ru_utime + one.ru_stime for one in used.values())
    first, another = (used[who].ru_maxrss / 1024 for who in ("SELF", "CHILDREN"))
    print(f"{seconds:.0f} s in {options.processes} processes, {core:.0f} core-seconds of all;")
    print(f"at most {first:.0f} MiB in the first process and {another:.0f} in another")


if __name__ == "__main__":
    main()
