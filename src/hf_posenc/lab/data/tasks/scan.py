"""SCAN: commands in a small language, and the actions that they stand for.

    jump around left after walk twice -> WALK WALK LTURN JUMP LTURN JUMP LTURN JUMP LTURN JUMP

Brenden Lake, Marco Baroni. Generalization without Systematicity: On the Compositional Skills of Sequence-to-Sequence
Recurrent Networks. ICML 2018. https://arxiv.org/abs/1711.00350

There are 20,910 commands. In the length split those of up to 22 actions, 16,990, are trained on, and the 3,920 others
tested. The names of actions are those of the paper.
"""

from functools import cache

from .strings import Pair

ACTIONS = {verb: [verb.upper()] for verb in ("walk", "look", "run", "jump")}
TURNS = {"left": ["LTURN"], "right": ["RTURN"]}
REPETITIONS = {"": 1, " twice": 2, " thrice": 3}


@cache
def all_pairs() -> list[Pair]:
    """Every command with its actions, in the order of the grammar."""
    phrases = [
        (command + suffix, actions * times)
        for command, actions in verb_phrases()
        for suffix, times in REPETITIONS.items()
    ]
    commands = list(phrases)
    for first, first_actions in phrases:
        for second, second_actions in phrases:
            commands.append((f"{first} and {second}", first_actions + second_actions))
            commands.append((f"{first} after {second}", second_actions + first_actions))
    return [(command.split(), actions) for command, actions in commands]


def verb_phrases() -> list[tuple[str, list[str]]]:
    """The 34 phrases of a verb: by itself, and with a direction, `opposite` or `around`."""
    phrases = list(ACTIONS.items())
    for verb, actions in [*ACTIONS.items(), ("turn", [])]:
        for direction, turn in TURNS.items():
            phrases.append((f"{verb} {direction}", turn + actions))
            phrases.append((f"{verb} opposite {direction}", turn + turn + actions))
            phrases.append((f"{verb} around {direction}", (turn + actions) * 4))
    return phrases
