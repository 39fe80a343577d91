"""Errors of pydantic in one line: key, rule, value and remedy."""

from typing import Annotated, Any, NamedTuple

import pytest
from annotated_types import Predicate
from pydantic import Field, model_validator

from hf_posenc.lab.config.errors import Fraction, Keys, OneOf, PositiveInt, Text, describe, parse

Color = Annotated[str, OneOf(("red", "green"))]


class Inner(Keys):
    size: PositiveInt
    rate: Fraction = 0.5


class Outer(Keys):
    steps: PositiveInt = 5
    name: Text | None = None
    color: Color | list[Color] | None = None
    scores: dict[str, float | list[float | None] | None] = {}
    inner: Inner | None = None
    inners: Annotated[list[Inner], Field(description="a list of sizes, such as [{size: 1}]")] = []
    pair: Annotated[list[int], Predicate(lambda pair: len(pair) == 2), Field(description="two numbers")] = [1, 2]
    outer: "Outer | None" = None

    @model_validator(mode="after")
    def check(self) -> "Outer":
        if self.steps == 7:
            raise ValueError("steps must not be 7, but it is; write 8.")
        return self


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"steps": 0}, "train.steps must be a whole number from 1 on, but it is 0; correct it, or leave it out for 5."),
        ({"steps": True}, "train.steps must be a whole number from 1 on, but it is true; correct it, or leave it"),
        ({"steps": 1.0}, "train.steps must be a whole number from 1 on, but it is 1.0; correct it, or leave it out"),
        ({"step": 1}, "train has no key 'step'; the nearest one is 'steps'."),
        ({"name": 2019}, "train.name must be text, but it is 2019; write it in quotes, or leave it out."),
        ({"name": ""}, "train.name must be text, but it is ''; correct it, or leave it out."),
        ({"color": "gren"}, "train.color must be one of red, green or a list in which each is one of red, green, but"),
        ({"color": "gren"}, "but it is 'gren'; the nearest is 'green', or leave it out."),
        ({"color": ["red", "rad"]}, "train.color[1] must be one of red, green, but it is 'rad'; the nearest is 'red'."),
        (
            {"scores": {"bleu": "x"}},
            "train.scores.bleu must be a number or a list in which each is a number, but it is",
        ),
        ({"scores": {"bleu": [1, "x"]}}, "train.scores.bleu[1] must be a number, but it is 'x'; correct it."),
        ({"scores": {"bleu": float("nan")}}, "train.scores.bleu must be a number"),
        ({"inner": {}}, "train.inner needs size; add what is missing under `train.inner:`."),
        ({"inner": {"sise": 1}}, "train.inner has no key 'sise'; the nearest one is 'size'."),
        ({"inner": [1]}, "train.inner must be keys and values, but it is [1]; correct it, or leave it out."),
        (
            {"inner": {"size": 1, "rate": 1}},
            "train.inner.rate must be a number from 0 to below 1, but it is 1; correct",
        ),
        ({"inners": [{"size": 1}, {"size": 0}]}, "train.inners[1].size must be a whole number from 1 on, but it is 0"),
        ({"inners": 3}, "train.inners must be a list of sizes, such as [{size: 1}], but it is 3; correct it, or leave"),
        ({"pair": [1]}, "train.pair must be two numbers, but it is [1]; correct it, or leave it out for [1, 2]."),
        ({"outer": {"outer": {"steps": 0}}}, "train.outer.outer.steps must be a whole number from 1 on"),
        ({"steps": 7}, "train: steps must not be 7, but it is; write 8."),
        ([1], "train must be keys and values, but it is [1]; correct it."),
    ],
)
def test_refused_content_is_told_by_key_rule_value_and_remedy(content: Any, message: str) -> None:
    with pytest.raises(ValueError) as refused:
        parse(Outer, content, "train")
    said = str(refused.value)
    assert message in said and said.startswith("train") and "\n" not in said


def test_the_root_of_a_file_has_no_key() -> None:
    with pytest.raises(ValueError, match=r"^a config file has no key 'stps'; the nearest one is 'steps'\.$"):
        parse(Outer, {"stps": 1})
    with pytest.raises(ValueError, match=r"^steps must be"):
        parse(Outer, {"steps": 0})


def test_an_annotation_is_described_in_words() -> None:
    assert describe(Outer.model_fields["color"].annotation) == (
        "one of red, green or a list in which each is one of red, green"
    )
    assert describe(PositiveInt | None) == "a whole number from 1 on"
    assert describe(Annotated[float, Field(gt=0)]) == "a number above 0"
    assert describe(list[Text]) == "a list in which each is text"


class Point(NamedTuple):
    step: PositiveInt
    value: float


Short = Annotated[str, Field(max_length=3, description="a short name")]


def test_a_name_and_an_item_of_a_tuple_are_told_by_their_own_rules() -> None:
    with pytest.raises(ValueError, match=r"^a key of scores must be a short name, but it is 'a name'; rename it\.$"):
        parse(dict[Short, int], {"a name": 1}, "scores")
    with pytest.raises(ValueError, match=r"^points\[1\]\[0\] must be a whole number from 1 on, but it is 0"):
        parse(tuple[Point, ...], [[1, 2.0], [0, 2.0]], "points")
