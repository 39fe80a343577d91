"""What the explorer's tab *See* shows: of an encoding or a sum, new or trained, a picture for each thing its hooks do.

They are the figures of `python -m hf_posenc figures`, of as many positions as a reader has chosen, with a name and with
what to look at. Nothing here knows gradio, and nothing is drawn before it is asked for.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import isqrt

from matplotlib.figure import Figure

from ..pictures.encoding_figures import drawings
from ..pictures.subjects import Extent, Subject
from .choice import MOST_POSITIONS, Subjects, checked_number

# The rows of a picture up to which each position has one of its own, with space to see it.
ROWS = 60
# So many positions a curve shows with a mark for each, a matrix of products has, and distances lie on either side.
CURVE, PAIRS, REACH = 100, 256, 64
QUERIES, CHANNELS = 16, 32
# What is read token by token costs D backward passes a token: so many tokens, and so much work at most.
FEWEST_TOKENS, MOST_TOKENS, MOST_WORK = 4, 16, 2e10

NAMES = {
    "positions": "Heat map",
    "many": "Heat map",
    "widths": "Two widths",
    "channels": "Curves",
    "products": "By distance",
}
CAPTIONS = {
    "Heat map": "A row is a position, a column a channel, the colour the number added there. Look for columns that "
    "change from row to row and for columns that hardly change: a position is told by all of them together. Of many "
    "positions, one row in several can show waves that are not there; the means beside it cannot.",
    "Curves": f"Single channels over the positions (at most the first {CURVE}). Look at how fast low channels change "
    "and how slowly high ones do; the marks are the values, the lines only guide the eye.",
    "By distance": f"The product of the vectors of two positions (at most the first {PAIRS}), for every pair and by "
    "their distance. Look at the right: where a line stands without a band, the distance alone decides the product.",
    "Wavelengths": "After how many positions a channel is back where it was. Look at the lines: channels above one do "
    "not come round once within so many positions. Channels that are no single wave are left out.",
    "Lengths": "How long the vector of each position is. Look for positions that stand out: what training has never "
    "seen stays as it was drawn, and its length is chance.",
    "Influence": "What becomes of a token depends on its neighbours. Look along a row: how much each token that is "
    "read moves what becomes of this one; a triangle says that reading goes one way.",
    "Turning": "The product of a query with a key that was equal to it before both were turned, by their distance (at "
    f"most {REACH}). Look at the black line: it falls as the key moves away; and on the right at the channels that "
    "turn fast and those that hardly turn.",
    "Scores": f"What is added to the score of a key by its distance (at most {REACH}). Look at both ends: where a line "
    "is level, all keys that far away are treated alike.",
    "Vectors": "The vector of each distance, channel by channel, and its length on the right. Look for the distances "
    "from which the columns repeat: there the encoding tells only before from after. Untrained, the vectors are "
    "chance.",
}


@dataclass(frozen=True)
class Picture:
    """A figure not yet drawn, and what to look at in it."""

    caption: str
    draw: Callable[[], Figure]


def pictures(subjects: Subjects, positions: int) -> dict[str, Picture]:
    """Every picture of so many positions by its name; none for an encoding that answers no hook."""
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
    for name, draw in drawings(shown).items():
        if name != ("positions" if positions > ROWS else "many"):
            kind, _, where = name.partition("-")
            label = NAMES.get(kind, kind.capitalize())
            caption = CAPTIONS[label] + (costly if kind == "influence" else "")
            made[f"{label}, {where.replace('-', ' ')}" if where else label] = Picture(caption, draw)
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
