from __future__ import annotations

import classad2
import pytest

from gridflow.platforms.htcondor_access import unmatched
from gridflow.platforms.htcondor_analysis import analyse, split


@pytest.mark.parametrize(
    ("expression", "parts"),
    [
        ("a", ["a"]),
        ("(a) && (b)", ["a", "b"]),
        ("((a && b) && (c || d && e))", ["a", "b", "c || d && e"]),
        ('x == "a && b" && y', ['x == "a && b"', "y"]),
        ('x == "say \\" && no" && y', ['x == "say \\" && no"', "y"]),
        ("(a) || (b)", ["(a) || (b)"]),
        ("f(a && b) && c[1 && 2]", ["f(a && b)", "c[1 && 2]"]),
    ],
)
def test_a_conjunction_is_taken_apart(expression: str, parts: list[str]) -> None:
    assert split(expression) == parts


def machine(**attributes: object) -> classad2.ClassAd:
    return classad2.ClassAd({"Memory": 16384, "OpSysAndVer": "Debian13", **attributes})


def job(requirements: str, **attributes: object) -> classad2.ClassAd:
    ad = classad2.ClassAd({"RequestMemory": 2048, **attributes})
    ad["Requirements"] = classad2.ExprTree(requirements)
    return ad


def test_what_no_machine_meets_is_named_with_the_figures_of_the_job() -> None:
    asked = job('TARGET.OpSysAndVer == "CentOS7" && TARGET.Memory >= RequestMemory', RequestMemory=999_999)
    said = analyse(asked, [machine(), machine(Memory=32768)])
    assert said == ('TARGET.OpSysAndVer == "CentOS7"; TARGET.Memory >= RequestMemory (RequestMemory = 999999)')


def test_a_job_that_some_machine_can_run_is_not_complained_of() -> None:
    assert analyse(job("TARGET.Memory >= RequestMemory"), [machine(Memory=100), machine()]) == ""


def test_conditions_that_no_machine_meets_together_are_named_together() -> None:
    asked = job("TARGET.Memory >= RequestMemory && TARGET.IsBig")
    said = analyse(asked, [machine(IsBig=False), machine(Memory=100, IsBig=True)])
    assert said == "no machine meets all of its requirements at once: TARGET.Memory >= RequestMemory && TARGET.IsBig"


def test_an_empty_pool_is_named() -> None:
    assert analyse(job("true"), []) == "the pool has no machines"


def test_what_the_tool_prints_is_read() -> None:
    printed = """
Step    Matched  Condition
-----  --------  ---------
[0]           0  OpSysAndVer == "CentOS7"
[1]           0  HasAVX512 == true
[10]          2  TARGET.HasFileTransfer
"""
    assert unmatched(printed) == 'OpSysAndVer == "CentOS7"; HasAVX512 == true'
