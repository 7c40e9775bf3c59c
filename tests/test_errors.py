from __future__ import annotations

import inspect
import pickle
import re

import pytest

from gridflow import errors
from gridflow.errors import CommandError, GridflowError, RecordError, TaskFailedError

CLASSES: dict[str, type[GridflowError]] = {
    name: kind for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, GridflowError)
}


def test_the_tree_in_the_docstring_is_the_tree_in_the_code() -> None:
    # '    │   ├── JobError                        a job or one of its groups'
    drawn = re.findall(r"^([ │├└─]*)(\w+Error)\b", errors.__doc__ or "", re.MULTILINE)
    parents: dict[str, str] = {}
    branch: list[str] = []
    for indent, name in drawn:
        depth = (len(indent) - 4) // 4
        branch = [*branch[:depth], name]
        parents[name] = branch[-2] if depth else "Exception"
    assert parents == {name: kind.__bases__[0].__name__ for name, kind in CLASSES.items()}


def test_the_exit_codes_in_the_docstring_are_those_in_the_code() -> None:
    # '    ├── UsageError                      2   the request itself is wrong'
    drawn = re.findall(r"(\w+Error)\s+(\d+)\s{3}", errors.__doc__ or "")
    assert {name: int(code) for name, code in drawn} == {
        name: kind.exit_code for name, kind in CLASSES.items() if kind.__bases__ == (GridflowError,)
    }


def test_an_error_is_one_line_of_what_happened_and_what_to_do() -> None:
    error = GridflowError("12 is too many", hint="ask for 3")
    assert (str(error), error.message, error.hint) == ("12 is too many (ask for 3)", "12 is too many", "ask for 3")


def test_an_error_without_remedy_is_what_happened() -> None:
    assert str(GridflowError("12 is too many")) == "12 is too many"


def test_a_failed_command_shows_all_there_is_to_know() -> None:
    error = CommandError(["condor_q", "-x"], 2, "queue\n", "no such option\n", hint="upgrade it")
    assert str(error) == ("`condor_q -x` ended with exit code 2; stdout: queue; stderr: no such option (upgrade it)")
    assert error.exit_code == 3


def test_a_failed_command_that_said_nothing_says_so() -> None:
    assert str(CommandError(["true"], 1, " \n", "")) == "`true` ended with exit code 1; no output"


def test_a_failed_command_shows_the_end_of_long_output() -> None:
    message = str(CommandError(["yes"], 1, "y" * 9000 + "end", ""))
    assert message.endswith("yend")
    assert len(message) < 2100


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_an_error_survives_its_way_out_of_a_task(name: str) -> None:
    kind = CLASSES[name]
    error: GridflowError
    if kind is CommandError:
        error = CommandError(["ls"], 2, "", "", hint="do")
    elif kind is RecordError:
        error = RecordError("cut", path="a.tfrecord", record=3, offset=70, kind="cut", hint="do")
    else:
        error = kind("what happened", hint="do")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert (str(copy), copy.hint, copy.exit_code) == (str(error), "do", error.exit_code)


def test_errors_are_caught_by_their_base() -> None:
    with pytest.raises(GridflowError, match=r"^worker/0 failed$"):
        raise TaskFailedError("worker/0 failed")
