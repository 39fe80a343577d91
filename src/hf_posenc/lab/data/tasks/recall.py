"""Tasks that look symbols up: compositions of tables, and keys with their values.

lookup: Adam Liška, Germán Kruszewski, Marco Baroni. Memorize or generalize? Searching for a compositional RNN in a
haystack. 2018. https://arxiv.org/abs/1802.06467. With every intermediate result in the answer, as in Yann Dubois et al.
Location Attention for Extrapolation to Longer Sequences. ACL 2020. https://arxiv.org/abs/1911.03872

mqar, multi-query associative recall: Simran Arora et al. Zoology: Measuring and Improving Recall in Efficient Language
Models. ICLR 2024. https://arxiv.org/abs/2312.04927. There keys and values are 8192 symbols, and a value is
predicted at its query; here each are 128, and all values follow all queries.
"""

from random import Random

from .strings import Pair

NUM_TABLES, NUM_KEYS = 8, 128
BIT_STRINGS = [f"{number:03b}" for number in range(8)]
# The tables are part of the task, and therefore do not depend on the seed of a corpus.
TABLES = [
    dict(zip(BIT_STRINGS, Random(f"table {number}").sample(BIT_STRINGS, k=8), strict=True))
    for number in range(NUM_TABLES)
]


def lookup(rng: Random, length: int) -> Pair:
    """Three bits and the names of `length` tables -> the bits, and what each table makes of the result before it."""
    bits = rng.choice(BIT_STRINGS)
    tables = rng.choices(range(NUM_TABLES), k=length)
    results = [bits]
    for number in tables:
        results.append(TABLES[number][results[-1]])
    return [bits, *(f"t{number}" for number in tables)], results


def mqar(rng: Random, length: int) -> Pair:
    """`length` keys, each with its value, then all keys in another order -> their values in that order."""
    if length > NUM_KEYS:
        raise ValueError(f"mqar has {NUM_KEYS} different keys, but {length} are asked for; lower max_length.")
    keys = rng.sample(range(NUM_KEYS), k=length)
    values = rng.choices(range(NUM_KEYS), k=length)
    value_of = dict(zip(keys, values, strict=True))
    queries = rng.sample(keys, k=length)
    pairs = [symbol for key in keys for symbol in (f"k{key}", f"v{value_of[key]}")]
    return [*pairs, ";", *(f"k{key}" for key in queries)], [f"v{value_of[key]}" for key in queries]
