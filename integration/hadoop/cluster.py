"""A real HDFS and YARN on this machine: a JVM for each daemon, everything below one folder.

    downloads (once)  ──>  site files  ──>  daemons  ──>  "ready"  ──>  orders from standard input  ──>  all is killed

It stays in the foreground and ends with its standard input or its parent, or when it is told to by a signal. Whatever
the daemons have started by then, YARN's containers too, ends with it.
"""

from __future__ import annotations

import argparse
import json
import os
import pwd
import random
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from integration.hadoop.configuration import FAST_JVM, MAIN_CLASSES, MASTER_PORTS, Daemon, Layout, files

from gridflow.processes import adopt_orphans, die_with_parent, kill_children, kill_marked

#: That of pyspark's own Hadoop client.
VERSION = "3.4.2"
READY = "ready"
DONE = "done"

_ARTIFACTS = (
    "hadoop-common",
    "hadoop-hdfs",
    "hadoop-hdfs-client",
    "hadoop-mapreduce-client-app",
    "hadoop-mapreduce-client-hs",
    "hadoop-mapreduce-client-jobclient",
    "hadoop-mapreduce-client-shuffle",
    "hadoop-yarn-client",
    "hadoop-yarn-server-nodemanager",
    "hadoop-yarn-server-resourcemanager",
    # The ResourceManager loads it without declaring it.
    "hadoop-yarn-server-timelineservice",
    "hadoop-yarn-server-web-proxy",
)
_DEPENDENCY = (
    "<dependency><groupId>org.apache.hadoop</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"
)
_PROJECT = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>local</groupId><artifactId>hadoop</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>{}</dependencies>
</project>
"""
#: YARN's pages generate classes, which Java 17 forbids unless told.
_JAVA_OPTIONS = [*FAST_JVM.split(), "-Xmx512m", "--add-opens=java.base/java.lang=ALL-UNNAMED", "-Dlevel=INFO"]
#: Below those that the kernel gives to connections.
_PORTS = range(10_000, 32_000)
_DOWNLOAD_SECONDS = 600
_START_SECONDS = 300
_POLL_SECONDS = 0.25
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_TAIL_LINES = 30


def download(cache: Path) -> Path:
    """Return the folder with Hadoop's jars, which Maven fetches unless they are in the cache."""
    jars = cache / f"hadoop-{VERSION}"
    if jars.is_dir():
        return jars
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="hadoop-", dir=cache) as scratch:
        aside = Path(scratch)
        dependencies = "".join(_DEPENDENCY.format(artifact, VERSION) for artifact in _ARTIFACTS)
        (aside / "pom.xml").write_text(_PROJECT.format(dependencies))
        _note(f"downloading Hadoop {VERSION} to {jars}")
        settings = [
            f"-DoutputDirectory={aside}/jars",
            "-DincludeScope=runtime",
            f"-Dmaven.repo.local={aside}/repository",
        ]
        argv = ["mvn", "-B", "-ntp", "-f", f"{aside}/pom.xml", "dependency:copy-dependencies", *settings]
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=_DOWNLOAD_SECONDS, check=False, stdin=subprocess.DEVNULL
        )
        if done.returncode != 0:
            _fail(f"{shlex.join(argv)} failed ({done.returncode}):\n{_tail(done.stdout + done.stderr)}")
        try:
            (aside / "jars").rename(jars)
        except OSError:
            # Another run was faster.
            if not jars.is_dir():
                raise
    return jars


def draw_ports() -> dict[str, int]:
    """Return a free port for each of the masters, chosen at random so that clusters side by side differ."""
    found: list[int] = []
    for port in random.sample(_PORTS, len(_PORTS)):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == len(MASTER_PORTS):
            break
    return dict(zip(MASTER_PORTS, found, strict=True))


class Cluster:
    """The daemons, each a child of this process."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._java_home = Path(shutil.which("javac") or _fail("javac is missing")).resolve().parents[1]
        self._processes: dict[Daemon, subprocess.Popen[bytes]] = {}

    def up(self) -> None:
        """Start all daemons, and wait until every node has found its masters."""
        for path, content in files(self._layout).items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        (self._layout.folder / "logs").mkdir(exist_ok=True)
        namenode = Daemon("namenode")
        if self._run(namenode, "-format", "-nonInteractive").wait(_START_SECONDS) != 0:
            self._fail_of(namenode, "could not be formatted")
        self._start(self._layout.daemons)
        self._wait("the job history", lambda: bool(self._get("history-web", "ws/v1/history/info")))

    def kill(self, node: int) -> None:
        """Kill all that runs on a node, its containers too, as if somebody had pulled its plug."""
        lost = [self._processes.pop(daemon) for daemon in self._layout.on_node(node)]
        kill_marked("=".join(self._layout.mark(node)))
        for process in lost:
            process.wait()

    def start(self, node: int) -> None:
        """Start a node again that was killed, once its masters have found it missing."""
        self._wait_for_nodes()
        self._start(self._layout.on_node(node))

    def exports(self) -> dict[str, str]:
        """Return the environment of the cluster's users."""
        client = str(self._layout.configuration(None))
        user = pwd.getpwuid(os.geteuid()).pw_name
        return {
            "JAVA_HOME": str(self._java_home),
            "HADOOP_CONF_DIR": client,
            "YARN_CONF_DIR": client,
            "HADOOP_CLASSPATH": f"{client}:{self._layout.jars}/*",
            "HDFS_URL": f"hdfs://{self._layout.address('namenode')}",
            "WEBHDFS_URL": f"webhdfs://{user}@{self._layout.address('namenode-web')}",
            "RESOURCEMANAGER_URL": f"http://{self._layout.address('resourcemanager-web')}/ws/v1/cluster",
            "HISTORY_URL": f"http://{self._layout.address('history-web')}/ws/v1/history",
        }

    def _start(self, daemons: Iterable[Daemon]) -> None:
        for daemon in daemons:
            self._processes[daemon] = self._run(daemon)
        self._wait_for_nodes()

    def _run(self, daemon: Daemon, *arguments: str) -> subprocess.Popen[bytes]:
        configuration = self._layout.configuration(daemon.node)
        class_path = f"{configuration}:{self._layout.folder}/web:{self._layout.jars}/*"
        logs = f"-Dhadoop.log.dir={self._layout.folder}/logs"
        main_class = MAIN_CLASSES[daemon.kind]
        java = [f"{self._java_home}/bin/java", *_JAVA_OPTIONS, logs, "-cp", class_path, main_class, *arguments]
        foreign = ("HADOOP_", "YARN_", "SPARK_", "PYSPARK_")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        environment |= {"JAVA_HOME": str(self._java_home), "HADOOP_CONF_DIR": str(configuration)}
        environment |= dict([self._layout.mark(daemon.node)])
        parent = os.getpid()
        with self._log(daemon).open("a") as log:
            return subprocess.Popen(
                java,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._layout.folder,
                env=environment,
                preexec_fn=lambda: die_with_parent(parent),
            )

    def _wait_for_nodes(self) -> None:
        """Wait until the masters count as many nodes as there are."""
        nodes = sum(daemon.kind == "datanode" for daemon in self._processes)
        self._wait(f"{nodes} DataNodes", lambda: self._live_datanodes() == nodes)
        self._wait(f"{nodes} NodeManagers", lambda: self._live_nodemanagers() == nodes)

    def _wait(self, what: str, look: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _START_SECONDS
        last = "the answer is another"
        while time.monotonic() < deadline:
            for daemon, process in self._processes.items():
                if process.poll() is not None:
                    self._fail_of(daemon, f"ended with {process.returncode}")
            try:
                if look():
                    return
            except (OSError, KeyError) as error:
                last = str(error)
            time.sleep(_POLL_SECONDS)
        _fail(f"waited {_START_SECONDS} s in vain for {what}: {last}")

    def _live_datanodes(self) -> int:
        beans = self._get("namenode-web", "jmx?qry=Hadoop:service=NameNode,name=*")["beans"]
        named = {bean["name"].partition("name=")[2]: bean for bean in beans}
        return -1 if named["NameNodeInfo"]["Safemode"] else int(named["FSNamesystemState"]["NumLiveDataNodes"])

    def _live_nodemanagers(self) -> int:
        return int(self._get("resourcemanager-web", "ws/v1/cluster/metrics")["clusterMetrics"]["activeNodes"])

    def _get(self, master: str, path: str) -> Any:
        with urllib.request.urlopen(f"http://{self._layout.address(master)}/{path}", timeout=30) as answer:
            return json.load(answer)

    def _log(self, daemon: Daemon) -> Path:
        return self._layout.folder / "logs" / f"{daemon.name}.log"

    def _fail_of(self, daemon: Daemon, message: str) -> NoReturn:
        _fail(f"{daemon.name} {message}; the end of {self._log(daemon)}:\n{_tail(self._log(daemon).read_text())}")


def _tail(text: str) -> str:
    return "\n".join(text.splitlines()[-_TAIL_LINES:])


def _note(message: str) -> None:
    sys.stderr.write(f"hadoop-cluster: {message}\n")
    sys.stderr.flush()


def _fail(message: str) -> NoReturn:
    _note(message)
    sys.exit(1)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _end(number: int, _: FrameType | None) -> NoReturn:
    # The first of them ends it; those that follow must not disturb the end.
    for each in _SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    sys.exit(128 + number)


def _end_all() -> None:
    """Kill all descendants: whatever a child leaves behind when it is gone becomes a child in its place."""
    with suppress(ChildProcessError):
        while True:
            kill_children()
            os.wait()


def main() -> None:
    """Run a cluster until there is nobody left who wants it."""
    parser = argparse.ArgumentParser(
        prog="hadoop-cluster",
        description="Run a real HDFS and YARN in the foreground. When it is ready it prints what to export; then "
        "`kill 2` and `start 2` on standard input make node 2 fail and come back.",
    )
    parser.add_argument("folder", type=Path, help="the cluster's own: settings, logs and data; new or empty")
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument(
        "--cache", type=Path, default=Path("~/.cache/gridflow-test"), help="where Hadoop's jars are kept"
    )
    options = parser.parse_args()
    adopt_orphans()
    try:
        for number in _SIGNALS:
            signal.signal(number, _end)
        die_with_parent(os.getppid(), signal.SIGTERM)
        try:
            _serve(options.folder.absolute(), options.cache.expanduser().absolute(), options.nodes)
        finally:
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_IGN)
    finally:
        _end_all()


def _serve(folder: Path, cache: Path, nodes: int) -> None:
    cluster = Cluster(Layout(folder, download(cache), nodes, draw_ports()))
    cluster.up()
    for name, value in cluster.exports().items():
        _say(f"export {name}={shlex.quote(value)}")
    _say(READY)
    orders = {"kill": cluster.kill, "start": cluster.start}
    for line in sys.stdin:
        verb, node = line.split()
        orders[verb](int(node))
        _say(DONE)


if __name__ == "__main__":
    main()
