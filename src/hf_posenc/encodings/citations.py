# SPDX-License-Identifier: Apache-2.0
"""References to publications, and those that several files cite."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Reference:
    """A publication. `venue` may be empty.

    `authors` has surnames as a sentence has them: "Shaw, Uszkoreit & Vaswani" or "Su et al.". `full_authors` has whole
    names for BibTeX, joined by " and ".
    """

    authors: str
    title: str
    venue: str
    year: int
    url: str
    full_authors: str = ""

    def __str__(self) -> str:
        venue_and_year = f"{self.venue} {self.year}" if self.venue else str(self.year)
        return f'{self.authors}, "{self.title}" ({venue_and_year}), {self.url}'


VASWANI = Reference(
    "Vaswani et al.",
    "Attention Is All You Need",
    "NeurIPS",
    2017,
    "https://arxiv.org/abs/1706.03762",
    full_authors=(
        "Ashish Vaswani and Noam Shazeer and Niki Parmar and Jakob Uszkoreit and Llion Jones and "
        "Aidan N. Gomez and Łukasz Kaiser and Illia Polosukhin"
    ),
)
ROSENDAHL = Reference(
    "Rosendahl et al.",
    "Analysis of Positional Encodings for Neural Machine Translation",
    "IWSLT",
    2019,
    "https://aclanthology.org/2019.iwslt-1.20",
    full_authors="Jan Rosendahl and Viet Anh Khoa Tran and Weiyue Wang and Hermann Ney",
)
NEISHI = Reference(
    "Neishi & Yoshinaga",
    "On the Relation between Position Information and Sentence Length in Neural Machine Translation",
    "CoNLL",
    2019,
    "https://aclanthology.org/K19-1031",
    full_authors="Masato Neishi and Naoki Yoshinaga",
)
LUONG = Reference(
    "Luong, Pham & Manning",
    "Effective Approaches to Attention-based Neural Machine Translation",
    "EMNLP",
    2015,
    "https://arxiv.org/abs/1508.04025",
    full_authors="Minh-Thang Luong and Hieu Pham and Christopher D. Manning",
)
