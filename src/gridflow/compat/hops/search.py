"""Which parameters to try. Pure: chance is an argument."""

from __future__ import annotations

import inspect
import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gridflow.errors import UsageError

#: The arguments of one call, by name.
Params = dict[str, Any]
DIRECTIONS = ("MAX", "MIN")


def grid_params(values: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """Return all combinations: for each name a list with its value in each of them."""
    combinations = list(itertools.product(*values.values()))
    return {name: [each[position] for each in combinations] for position, name in enumerate(values)}


def calls(function: Callable[..., Any], values: Mapping[str, Sequence[Any]]) -> list[Params]:
    """Return the calls that lists of arguments stand for: the first of all lists, then the second, ….

    Each call has the function's arguments in the order of its signature.
    """
    lengths = {len(each) for each in values.values()}
    if len(lengths) > 1:
        raise ValueError("Length of each function argument list must be equal")
    names = arguments(function, values)
    return [{name: values[name][number] for name in names} for number in range(lengths.pop() if lengths else 0)]


def arguments(function: Callable[..., Any], values: Mapping[str, Any]) -> list[str]:
    """Return the names of the function's arguments that have values, in their order; refuse any others."""
    parameters = inspect.signature(function).parameters
    needed = [name for name, each in parameters.items() if each.default is each.empty]
    missing = [name for name in needed if name not in values]
    unknown = [name for name in values if name not in parameters]
    if missing or unknown:
        said = [f"no value for {', '.join(missing)}"] if missing else []
        said += [f"a value for {', '.join(unknown)}"] if unknown else []
        raise UsageError(
            f"{function.__name__}({', '.join(parameters)}) is given {' and '.join(said)}",
            hint="the names are those of the function's arguments",
        )
    return [name for name in parameters if name in values]


def describe(params: Params) -> str:
    """Return the name of a trial's folder: `a=1&b=0.5`."""
    return "&".join(f"{name}={value}".replace("/", "%2F") for name, value in params.items())


def check_direction(direction: str) -> str:
    """Return MAX or MIN, however it is written."""
    if str(direction).upper() not in DIRECTIONS:
        raise ValueError(f"Invalid direction {direction}, must be Direction.MAX or Direction.MIN")
    return str(direction).upper()


def best(metrics: Sequence[float], direction: str) -> int:
    """Return the position of the best metric; of the first, where several are equal."""
    return metrics.index(max(metrics) if direction == "MAX" else min(metrics))


def random_calls(
    function: Callable[..., Any], bounds: Mapping[str, Sequence[Any]], samples: int, chance: random.Random
) -> list[Params]:
    """Return calls whose arguments are drawn from between their bounds; the same call does not come twice."""
    drawn = {name: _draw(each, samples, chance) for name, each in check_bounds(bounds).items()}
    return unique(calls(function, drawn))


def unique(trials: Sequence[Params]) -> list[Params]:
    """Return each of the trials once."""
    return list({describe(params): params for params in reversed(trials)}.values())[::-1]


def check_bounds(bounds: Mapping[str, Sequence[Any]]) -> dict[str, tuple[Any, Any]]:
    """Return the lower and the upper bound of each argument."""
    for name, each in bounds.items():
        if len(each) != 2:
            raise ValueError(
                "Boundary list must contain exactly two elements, [lower_bound, upper_bound] for each hyperparameter: "
                f"{name} has {len(each)}"
            )
    return {name: (each[0], each[1]) for name, each in bounds.items()}


def _draw(bounds: tuple[Any, Any], samples: int, chance: random.Random) -> list[Any]:
    lower, upper = bounds
    if not all(isinstance(each, int | float) for each in bounds):
        raise ValueError("Only float and int is currently supported")
    if not lower < upper:
        # Programs may expect this very kind of error.
        raise AssertionError(f"lower bound: {lower} must be less than upper bound: {upper}")
    if all(isinstance(each, int) for each in bounds):
        return [chance.randint(lower, upper) for _ in range(samples)]
    return [chance.uniform(lower, upper) for _ in range(samples)]


@dataclass
class Evolution:
    """Differential evolution: each generation mixes the best of those before it.

    A parameter whose lower bound is an int stays one, and one that is neither int nor float is one of its two bounds.
    """

    bounds: dict[str, tuple[Any, Any]]
    direction: str
    generations: int
    population: int
    mutation: float
    crossover: float
    chance: random.Random

    def __post_init__(self) -> None:
        if self.population <= 3:
            raise AssertionError("population should be greater than 3")
        if self.generations <= 1:
            raise AssertionError("generations should be greater than 1")

    def run(self, measure: Callable[[int, list[Params]], list[float]]) -> None:
        """Have every generation measured: the first as it is drawn, then each with those that compete with it."""
        members = [self._random_member() for _ in range(self.population)]
        scores = measure(0, [self._params(member) for member in members])
        for generation in range(1, self.generations + 1):
            rivals = [self._cross(member, self._mutate(members, number)) for number, member in enumerate(members)]
            found = measure(generation, [self._params(rival) for rival in rivals])
            for number, (rival, score) in enumerate(zip(rivals, found, strict=True)):
                if best([scores[number], score], self.direction) == 1:
                    members[number], scores[number] = rival, score

    def _ranges(self) -> Iterator[tuple[float, float]]:
        for lower, upper in self.bounds.values():
            yield (lower, upper) if isinstance(lower, int | float) else (0, 1)

    def _random_member(self) -> list[float]:
        return [self.chance.uniform(*each) for each in self._ranges()]

    def _mutate(self, members: list[list[float]], number: int) -> list[float]:
        others = [member for position, member in enumerate(members) if position != number]
        first, second, third = self.chance.sample(others, 3)
        moved = [a + self.mutation * (b - c) for a, b, c in zip(first, second, third, strict=True)]
        return [min(max(value, low), high) for value, (low, high) in zip(moved, self._ranges(), strict=True)]

    def _cross(self, member: list[float], donor: list[float]) -> list[float]:
        return [d if self.chance.random() <= self.crossover else m for m, d in zip(member, donor, strict=True)]

    def _params(self, member: list[float]) -> Params:
        params: Params = {}
        for (name, bounds), value in zip(self.bounds.items(), member, strict=True):
            if isinstance(bounds[0], int):
                params[name] = round(value)
            else:
                params[name] = value if isinstance(bounds[0], float) else bounds[round(value)]
        return params
