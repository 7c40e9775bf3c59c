from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridflow.errors import SettingsError
from gridflow.gpu.order import AGEING_SECONDS, DEFAULT_ORDER, ORDERS, rank


@dataclass(frozen=True)
class Waiter:
    arrived: float = 0.0
    priority: int = 0
    weight: float = 1.0
    owner: str = "ana"


def first(order: str, *waiters: Waiter, held: dict[str, float] | None = None, now: float = 100.0) -> Waiter:
    return min(waiters, key=lambda waiter: rank(order, waiter, held or {}, now))


@pytest.mark.parametrize("order", ORDERS)
def test_among_equals_who_came_first_is_first(order: str) -> None:
    early, late = Waiter(arrived=1), Waiter(arrived=2)
    assert first(order, late, early) == early


def test_fifo_heeds_nothing_else() -> None:
    early, important = Waiter(arrived=1, owner="bo"), Waiter(arrived=2, priority=9)
    assert first("fifo", important, early, held={"bo": 8}) == early


def test_a_higher_priority_is_first_until_a_lower_one_has_waited_long_enough() -> None:
    low = Waiter(arrived=0, priority=0)
    assert first("priority", low, Waiter(arrived=AGEING_SECONDS - 1, priority=1), now=AGEING_SECONDS).priority == 1
    assert first("priority", low, Waiter(arrived=AGEING_SECONDS + 1, priority=1), now=2 * AGEING_SECONDS) == low


def test_fair_is_who_has_least_by_weight_until_somebody_has_waited_long_enough() -> None:
    rich, poor = Waiter(arrived=1, owner="rich"), Waiter(arrived=2, owner="poor")
    held = {"rich": 2.0, "poor": 1.0}
    assert first("fair", rich, poor, held=held) == poor
    heavy = Waiter(arrived=1, owner="rich", weight=4.0)
    assert first("fair", heavy, poor, held=held) == heavy
    patient = Waiter(arrived=-AGEING_SECONDS, owner="rich")
    assert first("fair", patient, poor, held=held) == patient


@given(
    st.sampled_from(sorted(ORDERS)),
    st.builds(Waiter, arrived=st.floats(0, 1e4), priority=st.integers(-5, 5), weight=st.floats(0.5, 4)),
    st.builds(Waiter, priority=st.integers(-5, 5), weight=st.floats(0.5, 4), owner=st.just("bo")),
    st.floats(0, 16),
)
def test_whoever_waits_long_enough_comes_before_all_that_ask_later(
    order: str, patient: Waiter, later: Waiter, held: float
) -> None:
    now = patient.arrived + 60 * AGEING_SECONDS
    newcomer = Waiter(now, later.priority, later.weight, later.owner)
    assert first(order, newcomer, patient, held={"ana": held}, now=now) == patient


def test_an_unknown_order_is_refused() -> None:
    assert DEFAULT_ORDER in ORDERS
    with pytest.raises(SettingsError, match=r"there is no order 'lifo' \(one of: fifo, priority, fair\)"):
        rank("lifo", Waiter(), {}, 0.0)
