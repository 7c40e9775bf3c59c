from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.rendezvous.starter import COOKIE, Starter, starting

from gridflow.errors import RendezvousError
from gridflow.rendezvous.chirp import CONFIG, LINE_BYTES, Chirp, ChirpError


@pytest.fixture
def starter(tmp_path: Path) -> Iterator[Starter]:
    with starting(tmp_path / "submit", {"NumJobStarts": "2", "Iwd": '"/home/alice/run"'}) as started:
        yield started


@pytest.fixture
def chirp(starter: Starter, tmp_path: Path) -> Iterator[Chirp]:
    with Chirp.connect(starter.configure(tmp_path)) as connected:
        yield connected


@pytest.mark.parametrize("content", [b"", b"a line\n", bytes(range(256)) * 1000], ids=["empty", "line", "bytes"])
def test_a_file_that_is_written_can_be_read(chirp: Chirp, starter: Starter, content: bytes) -> None:
    assert chirp.read("some notes") is None
    chirp.write("some notes", content)
    assert (starter.folder / "some notes").read_bytes() == content
    assert chirp.read("some notes") == content


def test_a_file_is_overwritten_and_added_to(chirp: Chirp) -> None:
    chirp.append("notes", b"one\n")
    chirp.append("notes", b"two\n")
    assert chirp.read("notes") == b"one\ntwo\n"
    chirp.write("notes", b"three\n")
    assert chirp.read("notes") == b"three\n"


def test_a_folder_may_be_there_already(chirp: Chirp, starter: Starter) -> None:
    chirp.make_folder("logs")
    chirp.make_folder("logs")
    assert (starter.folder / "logs").is_dir()


def test_words_with_blanks_and_backslashes_arrive_as_they_are(chirp: Chirp, starter: Starter) -> None:
    chirp.log('gridflow {"reason": "größer \\u00e4 C:\\\\x"}')
    assert starter.said == ['gridflow {"reason": "größer \\u00e4 C:\\\\x"}']


def test_attributes_are_as_htcondor_writes_them(chirp: Chirp) -> None:
    assert chirp.attribute("NumJobStarts") == "2"
    assert chirp.attribute("Iwd") == '"/home/alice/run"'


def test_a_line_that_is_too_long_is_refused_before_htcondor_cuts_it(chirp: Chirp) -> None:
    with pytest.raises(RendezvousError, match=rf"chirp ulog: {LINE_BYTES + 6} bytes are more than HTCondor takes"):
        chirp.log("x" * LINE_BYTES)


def test_files_that_a_job_may_not_use_are_refused_with_what_it_lacks(chirp: Chirp, starter: Starter) -> None:
    starter.allows_files = False
    with pytest.raises(ChirpError, match=r"chirp open: HTCondor refuses .* \(the job needs want_io_proxy = true\)"):
        chirp.append("notes", b"one\n")


def test_an_error_that_is_not_known_keeps_its_number() -> None:
    assert str(ChirpError("getfile", -77)) == "chirp getfile: error -77"


def test_a_wrong_cookie_is_refused(starter: Starter) -> None:
    with pytest.raises(ChirpError, match="chirp cookie: not authenticated"):
        Chirp("127.0.0.1", starter.port, COOKIE[:-1])


@pytest.mark.parametrize("content", [None, "127.0.0.1 9618"], ids=["no-file", "no-cookie"])
def test_a_process_outside_of_a_job_is_told_so(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "config"
    if content is not None:
        path.write_text(content)
    with pytest.raises(RendezvousError, match=rf"{path}, which says how to reach HTCondor, cannot be read") as error:
        Chirp.connect({CONFIG: str(path)})
    assert error.value.hint == "tasks find each other with want_io_proxy = true, inside an HTCondor job"


def test_a_starter_that_is_gone_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(RendezvousError, match=rf"HTCondor's starter at 127\.0\.0\.1:{port} cannot be reached"):
        Chirp("127.0.0.1", port, COOKIE)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"", "chirp getfile: HTCondor's starter closed the connection"),
        (b"12\nhalf", "HTCondor's starter closed the connection in the middle of a file"),
        (None, "chirp getfile: no answer from HTCondor's starter"),
    ],
    ids=["closes", "closes-in-a-file", "silent"],
)
def test_a_starter_that_stops_answering_is_an_error(answer: bytes | None, message: str) -> None:
    is_done = threading.Event()

    def answer_badly(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection, connection.makefile("rb") as requests:
            requests.readline()
            connection.sendall(b"0\n")
            requests.readline()
            if answer is None:
                is_done.wait(60)
            else:
                connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer_badly, args=(server,))
        thread.start()
        try:
            with (
                Chirp("127.0.0.1", server.getsockname()[1], COOKIE, timeout_seconds=0.5) as chirp,
                pytest.raises(RendezvousError, match=message),
            ):
                chirp.read("notes")
        finally:
            is_done.set()
            thread.join()
