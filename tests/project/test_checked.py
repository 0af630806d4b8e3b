"""The tests check types and shapes of our packages in the first call that a test function makes of each function."""

from collections.abc import Callable

import pytest
import torch
from beartype import beartype
from checked import Checks, first_calls
from jaxtyping import Float
from torch import Tensor


@first_calls(typechecker=beartype)
def doubled(number: int) -> int:
    return 2 * number


@first_calls(typechecker=beartype)
def added(one: Float[Tensor, "n"], other: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
    return one + other.sum()


def made(typechecker: Callable = beartype) -> Callable[[int], int]:
    @first_calls(typechecker=typechecker)
    def inner(number: int) -> int:
        return number

    return inner


@pytest.fixture(autouse=True)
def one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Checks, "calls", 1)


@pytest.mark.parametrize(
    ("function", "wrong"), [(doubled, ("1",)), (made(), ("1",)), (added, (torch.ones(2), torch.ones(3)))]
)
def test_the_first_call_is_checked_in_each_test(
    monkeypatch: pytest.MonkeyPatch, function: Callable, wrong: tuple
) -> None:
    for test in ("one", "another"):
        monkeypatch.setattr(Checks, "test", test)
        with pytest.raises(Exception, match=r"violates type|Type-check error"):
            function(*wrong)
        function(*wrong)


def test_a_function_inside_another_is_wrapped_for_its_first_call_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    wrapped: list[Callable] = []

    def typechecker(part: Callable) -> Callable:
        wrapped.append(part)
        return part

    for test in ("one", "another"):
        monkeypatch.setattr(Checks, "test", test)
        for number in range(5):
            assert made(typechecker)(number) == number
    assert len(wrapped) == 2


def test_all_calls_are_checked_where_slow_tests_run_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Checks, "calls", float("inf"))
    for _ in range(3):
        with pytest.raises(Exception, match="violates type"):
            made()("1")
