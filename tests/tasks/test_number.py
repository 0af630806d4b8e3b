"""Numbers are read from what models write in words, Markdown and LaTeX."""

from fractions import Fraction

import pytest

from parallelbench.tasks.mathematics import improper
from parallelbench.tasks.number import read_number

FORMS = r"""
\boxed{1{,}234}|1234
The answer is $12{,}500$.|12500
\boxed{\$1{,}800.50}|1800.5
\boxed{\frac{18}{5}}|18/5
The answer is \dfrac{7}{2}.|7/2
\boxed{12~000}|12000
\boxed{\frac12}|1/2
\boxed{\frac1{2}}|1/2
\boxed{2\frac{1}{2}}|5/2
\boxed{2 \frac{1}{2}}|5/2
#### 2 1/2|5/2
The answer is 2 1/2 cups.|5/2
The answer is 2½ cups|5/2
\boxed{12\:000}|12000
\boxed{12\,000}|12000
\boxed{12\;000}|12000
\boxed{12 000}|12000
\boxed{12 000}|12000
The answer is 12 000.|12000
#### 12 000|12000
#### - 3|-3
#### –3|-3
#### − 3|-3
Answer: minus 3|-3
The answer is negative 3.|-3
The answer is - 3.|-3
\boxed{- 3}|-3
#### 1.2e3|1200
#### 10^3|1000
\boxed{10^{3}}|1000
\boxed{1.2 \times 10^3}|1200
\boxed{1.2 \cdot 10^{3}}|1200
#### 1.2 × 10³|1200
#### 1.2*10^3|1200
#### 1.2 x 10^3|1200
#### 10**3|1000
**Answer**: 18. That is 5 more.|18
**Answer:** 18 and 5|18
**Final Answer**: **18** (of 20)|18
*Answer*: 18 of 20|18
#### 18 = 9 * 2|18
#### 9 * 2 = 18|18
Answer: 18 = 9 * 2|18
The answer is 18%.|18
\boxed{18\%}|18
\boxed{18\text{ dollars}}|18
\boxed{\text{\$}18}|18
#### €18|18
#### £1,234.50|1234.5
The answer is **18**. Check 5.|18
\boxed{-\frac{1}{2}}|-1/2
\boxed{-2\frac{1}{2}}|-5/2
#### 18/5|18/5
#### 1'234|1234
#### 1.234.567|1234567
#### 1,00,000|100000
The area is 12 cm^2.|12
\boxed{x = 12\text{ cm}}|12
<answer>18</answer> of 20|18
{"answer": 18, "n": 5}|18
The answer is $-3$.|-3
10-3 makes 10-3|3
It costs $2.50 in all.|2.5
\(\boxed{18}\)|18
\[ \boxed{1,234} \]|1234
So 5 - 3 = 2|2
The answer is 5. |5
The answer to the question is 18, not 20.|18
The answer is 1,234,567|1234567
#### 40 pens, 3 more than 37|40
#### 18 - because 9*2|18
total: 12 000 people|12000
\boxed{3.0}|3
#### +5|5
Answer: $18 per day for 5 days|18
The answer is\n\n18 eggs, 5 left|18
\boxed{\dfrac{1{,}000}{3}}|1000/3
\boxed{.5}|1/2
#### 1e3|1000
\boxed{\frac{-1}{2}}|-1/2
\boxed{2^5}|32
\boxed{18 \text{ of } 20}|18
\boxed{\mathbf{18}}|18
#### 18 (9 × 2)|18
Answer: 9 × 2 = 18 eggs|18
Answer = 18, 5|18
she has 10 - 3 = 7|7
#### 3 + 4|None
"""  # noqa: RUF001


@pytest.mark.parametrize("line", FORMS.strip().splitlines())
def test_a_form(line: str) -> None:
    text, _, right = line.rpartition("|")
    assert read_number(text.replace("\\n", "\n")) == (None if right == "None" else Fraction(right))


@pytest.mark.parametrize("space", ["\u00a0", "\u2009", "\u202f", "~", r"\,", r"\:", r"\;", r"\ ", "{,}", r",\!"])
def test_what_separates_thousands(space: str) -> None:
    assert read_number(f"#### 12{space}000") == 12000 and read_number(f"It is 1{space}200{space}000.") == 1200000
    assert read_number(f"The answer is 3{space}and 1") == 3


@pytest.mark.parametrize(
    ("text", "wrong"),
    [(r"\boxed{\frac{18}{5}}", 18), (r"\boxed{1{,}800}", 1), ("2 1/2", 2), ("#### 1.2e3", 1), ("- 3", 3), ("10^3", 10)],
)
def test_a_wrong_answer_does_not_score(text: str, wrong: int) -> None:
    assert read_number(f"#### {text}" if "boxed" not in text else text) != wrong


def test_mixed_fractions_are_improper_for_math_verify() -> None:
    assert improper(r"\boxed{1 1/4}") == r"\boxed{\frac{5}{4}}"
    for text in ("1/4", "2 3/2", "1.5 1/2", "x1 1/2", "1 1/4.5"):
        assert improper(text) == text
