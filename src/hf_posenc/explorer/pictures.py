"""What the explorer's tab *See* shows: of an encoding or a sum, new or trained, a picture for each thing its hooks do.

They are the figures of `python -m hf_posenc figures`, of as many positions as a reader has chosen. Nothing here knows
gradio, and nothing is drawn before it is asked for.
"""

from dataclasses import replace
from math import isqrt

from ..pictures.encoding_figures import Drawing, drawings
from ..pictures.subjects import Extent, Subject
from .choice import MOST_POSITIONS, Subjects, checked_number

# The rows of a picture up to which each position has one of its own, with space to see it.
ROWS = 60
# So many positions a curve shows with a mark for each, a matrix of products has, and distances lie on either side.
CURVE, PAIRS, REACH = 100, 256, 64
QUERIES, CHANNELS = 16, 32
# What is read token by token costs D backward passes a token: so many tokens, and so much work at most.
FEWEST_TOKENS, MOST_TOKENS, MOST_WORK = 4, 16, 2e10


def pictures(subjects: Subjects, positions: int) -> dict[str, Drawing]:
    """Every picture of so many positions by its label; none for an encoding that answers no hook."""
    positions = checked_number("The number of positions", positions, 3, MOST_POSITIONS)
    vectors, attention, reading = subjects["vectors"], subjects["attention"], subjects["influence"]
    pairs = (min(positions, PAIRS) - 1) // 2
    shown = {
        "vectors": vectors.showing(Extent(positions=min(positions, CURVE), many=positions, distances=pairs)),
        "attention": attention.showing(Extent(distances=min(positions - 1, REACH), queries=QUERIES, channels=CHANNELS)),
        "influence": reading,
    }
    costly = ""
    if "embed" in reading.answers and not reading.adds_by_position:
        tokens = readable_tokens(reading, positions)
        shown["influence"] = reading.showing(Extent(tokens=tokens))
        if (reading.width, tokens) != (vectors.width, positions):
            costly = f" It is costly, and so drawn at D = {reading.width} and {tokens} tokens."
    made = {}
    for name, drawing in drawings(shown).items():
        if name != ("positions" if positions > ROWS else "many"):
            look_for = drawing.look_for + (costly if name == "influence" else "")
            made[drawing.label] = replace(drawing, look_for=look_for)
    return made


def readable_tokens(subject: Subject, positions: int) -> int:
    """How many tokens the page has time to read in every way; a ValueError if they are too few for a picture."""
    each = max(1, subject.parameters) * subject.width
    tokens = min(positions, MOST_TOKENS, isqrt(int(MOST_WORK / each)))
    if tokens < min(positions, FEWEST_TOKENS):
        raise ValueError(
            f"A picture of {FEWEST_TOKENS} tokens needs {each * FEWEST_TOKENS**2:.0e} products, but the page has time "
            f"for {MOST_WORK:.0e}; choose a smaller D or hidden size, or draw it with `python -m hf_posenc figures`."
        )
    return tokens
