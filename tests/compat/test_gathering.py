"""What every task of a run tells all others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from gridflow.compat.gathering import Gathering, Invitation, Member
from gridflow.errors import DeadlineError, TaskError


@pytest.fixture
def gathering() -> Iterator[Gathering]:
    """A gathering of two."""
    with Gathering(2, "127.0.0.1", "127.0.0.1") as started:
        yield started


def test_all_hear_what_each_has_said_round_by_round(gathering: Gathering) -> None:
    heard: dict[int, list[list[str]]] = {}

    def take_part(number: int) -> None:
        with closing(Member(gathering.invitation, number)) as member:
            heard[number] = [member.gather(f"{number} says {text}") for text in ("a", "b")]

    other = threading.Thread(target=take_part, args=(1,))
    other.start()
    take_part(0)
    other.join()
    assert heard[0] == heard[1] == [["0 says a", "1 says a"], ["0 says b", "1 says b"]]


def test_who_waits_in_vain_is_told(gathering: Gathering) -> None:
    with (
        closing(Member(gathering.invitation, 0)) as member,
        pytest.raises(DeadlineError, match=r"not all tasks came to round 0 within 0\.1 s"),
    ):
        member.gather("", timeout_seconds=0.1)


def test_the_end_of_the_gathering_ends_all_waits() -> None:
    with Gathering(2, "127.0.0.1", "127.0.0.1") as gathering:
        member = Member(gathering.invitation, 0)
        with pytest.raises(DeadlineError):
            member.gather("", timeout_seconds=0.1)
    with closing(member), pytest.raises(TaskError, match="task 0 cannot meet the others"):
        member.gather("")


def test_strangers_are_not_let_in(gathering: Gathering) -> None:
    stranger = Member(Invitation(gathering.invitation.place, b"x" * 32), 1)
    with pytest.raises(TaskError, match="cannot connect"):
        stranger.gather("")
