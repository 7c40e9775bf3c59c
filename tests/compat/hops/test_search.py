"""Which parameters Hops' searches try."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridflow.compat.hops import search
from gridflow.errors import UsageError


def train(learning_rate: float, layers: int, dropout: float = 0.5) -> float:
    return learning_rate * layers * dropout


def test_grid_holds_every_combination() -> None:
    grid = search.grid_params({"layers": [2, 9], "learning_rate": [0.1, 0.3, 0.5]})
    assert grid == {"layers": [2, 2, 2, 9, 9, 9], "learning_rate": [0.1, 0.3, 0.5, 0.1, 0.3, 0.5]}


def test_calls_take_the_arguments_in_the_order_of_the_function() -> None:
    found = search.calls(train, {"layers": [2, 9], "learning_rate": [0.1, 0.3]})
    assert found == [{"learning_rate": 0.1, "layers": 2}, {"learning_rate": 0.3, "layers": 9}]
    assert [search.describe(params) for params in found] == ["learning_rate=0.1&layers=2", "learning_rate=0.3&layers=9"]


def test_lists_of_arguments_must_be_equally_long() -> None:
    with pytest.raises(ValueError, match="Length of each function argument list must be equal"):
        search.calls(train, {"layers": [2], "learning_rate": [0.1, 0.3]})


def test_names_must_be_those_of_the_function() -> None:
    with pytest.raises(UsageError, match="is given no value for layers and a value for depth"):
        search.calls(train, {"learning_rate": [0.1], "depth": [3]})


def test_a_slash_in_a_value_makes_no_folder() -> None:
    assert search.describe({"path": "a/b"}) == "path=a%2Fb"


@pytest.mark.parametrize("written", ["max", "MAX", "Max"])
def test_direction_is_read_however_it_is_written(written: str) -> None:
    assert search.check_direction(written) == "MAX"
    with pytest.raises(ValueError, match="Invalid direction up, must be"):
        search.check_direction("up")


@given(st.integers(0, 1000), st.integers(1, 30))
def test_random_calls_are_within_their_bounds_and_differ(seed: int, samples: int) -> None:
    bounds: dict[str, list[Any]] = {"learning_rate": [0.1, 0.3], "layers": [2, 9]}
    found = search.random_calls(train, bounds, samples, random.Random(seed))
    assert 1 <= len(found) <= samples
    assert len({search.describe(params) for params in found}) == len(found)
    for params in found:
        assert 0.1 <= params["learning_rate"] <= 0.3
        assert params["layers"] in range(2, 10)


@pytest.mark.parametrize(
    ("bounds", "kind", "words"),
    [
        ([1], ValueError, "Boundary list must contain exactly two elements"),
        ([3, 1], AssertionError, "lower bound: 3 must be less than upper bound: 1"),
        (["a", "b"], ValueError, "Only float and int is currently supported"),
    ],
)
def test_bounds_that_cannot_be_are_refused(bounds: list[Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        search.random_calls(lambda x: x, {"x": bounds}, 3, random.Random(0))


def evolution(bounds: dict[str, tuple[Any, Any]], seed: int = 0, **changed: Any) -> search.Evolution:
    usual: dict[str, Any] = {"generations": 8, "population": 8, "mutation": 0.5, "crossover": 0.7, "direction": "MIN"}
    return search.Evolution(bounds, chance=random.Random(seed), **{**usual, **changed})


@given(st.integers(0, 200), st.sampled_from(["MIN", "MAX"]))
def test_evolution_stays_in_bounds_and_gets_better(seed: int, direction: str) -> None:
    tried: list[list[float]] = []

    def measure(generation: int, members: list[search.Params]) -> list[float]:
        assert generation == len(tried)
        for params in members:
            assert -2.0 <= params["x"] <= 6.0
            assert params["n"] in range(1, 9)
            assert type(params["n"]) is int
            assert params["kind"] in ("sgd", "adam")
        sign = 1 if direction == "MIN" else -1
        tried.append([sign * ((each["x"] - 1) ** 2 + abs(each["n"] - 3)) for each in members])
        return tried[-1]

    evolution({"x": (-2.0, 6.0), "n": (1, 8), "kind": ("sgd", "adam")}, seed, direction=direction).run(measure)
    assert len(tried) == 9
    pick = min if direction == "MIN" else max
    assert pick(pick(each) for each in tried) == pick(pick(tried[0]), pick(pick(each) for each in tried[1:]))


def test_evolution_finds_the_bottom_of_a_bowl() -> None:
    found: list[float] = []

    def measure(_generation: int, members: list[search.Params]) -> list[float]:
        scores = [(params["x"] - 1.0) ** 2 for params in members]
        found.extend(scores)
        return scores

    evolution({"x": (-10.0, 10.0)}, generations=30).run(measure)
    assert min(found) < 0.01


def test_evolution_needs_enough_to_mix() -> None:
    with pytest.raises(AssertionError, match="population should be greater than 3"):
        evolution({"x": (0.0, 1.0)}, population=3)
    with pytest.raises(AssertionError, match="generations should be greater than 1"):
        evolution({"x": (0.0, 1.0)}, generations=1)
