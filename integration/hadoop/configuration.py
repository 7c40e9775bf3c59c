"""What each daemon of the cluster reads: Hadoop's site files, as data.

Every node has a loopback address of its own (127.0.0.2, 127.0.0.3, ...), so that HDFS, YARN and Spark see different
hosts. Nodes take the ports that they find free and tell their master; masters have theirs drawn beforehand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

#: One port is drawn for each.
MASTER_PORTS = (
    "namenode",
    "namenode-web",
    "resourcemanager",
    "scheduler",
    "tracker",
    "admin",
    "resourcemanager-web",
    "history",
    "history-web",
    "history-admin",
)
MAIN_CLASSES = {
    "namenode": "org.apache.hadoop.hdfs.server.namenode.NameNode",
    "datanode": "org.apache.hadoop.hdfs.server.datanode.DataNode",
    "resourcemanager": "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager",
    "nodemanager": "org.apache.hadoop.yarn.server.nodemanager.NodeManager",
    "historyserver": "org.apache.hadoop.mapreduce.v2.hs.JobHistoryServer",
}
#: Short lives on few cores: the second compiler and parallel collectors cost more than they give.
FAST_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
#: Spark's master and one of two executors of 512 MB fit on a node, both executors beside the master do not.
_NODE_MB = 2560
_TASK_MB = 512
_LOG4J = """level=WARN
log4j.rootLogger=${level},console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.target=System.err
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d{ISO8601} %p %c: %m%n
log4j.logger.org.apache.hadoop.util.NativeCodeLoader=ERROR
"""

Properties = dict[str, str | int]


@dataclass(frozen=True)
class Daemon:
    """A process of Hadoop's; those of a node have its number, masters have none."""

    kind: str
    node: int | None = None

    @property
    def name(self) -> str:
        """What its log is called, `datanode2` for instance."""
        return f"{self.kind}{self.node or ''}"


@dataclass(frozen=True)
class Layout:
    """Where things are: `folder` is the cluster's own, `jars` Hadoop's; `ports` has those of the masters."""

    folder: Path
    jars: Path
    nodes: int
    ports: Mapping[str, int]

    @property
    def daemons(self) -> list[Daemon]:
        """All daemons, in the order in which they start."""
        masters = [Daemon("namenode"), Daemon("resourcemanager"), Daemon("historyserver")]
        return masters + [daemon for node in range(1, self.nodes + 1) for daemon in self.on_node(node)]

    @staticmethod
    def on_node(node: int) -> list[Daemon]:
        """Return the daemons of a node, which are counted from 1."""
        return [Daemon("datanode", node), Daemon("nodemanager", node)]

    def mark(self, node: int | None) -> tuple[str, str]:
        """Return the variable that all processes of a node have in their environment, containers too."""
        return "HADOOP_NODE", f"{self.folder}/node{node or ''}"

    def address(self, port: str) -> str:
        """Return the address of a master."""
        return f"localhost:{self.ports[port]}"

    def configuration(self, node: int | None) -> Path:
        """Return the folder with the site files of a node's daemons, or of masters and clients."""
        return self.folder / "conf" / ("client" if node is None else f"node{node}")


def host(node: int) -> str:
    """Return the address of a node."""
    return f"127.0.0.{node + 1}"


def files(layout: Layout) -> dict[Path, str]:
    """Return the content of every file that the daemons and their clients read."""
    content = {}
    for node in (None, *range(1, layout.nodes + 1)):
        folder = layout.configuration(node)
        content[folder / "core-site.xml"] = _xml(_core(layout))
        content[folder / "hdfs-site.xml"] = _xml(_hdfs(layout, node))
        content[folder / "yarn-site.xml"] = _xml(_yarn(layout, node))
        content[folder / "mapred-site.xml"] = _xml(_mapred(layout))
        content[folder / "capacity-scheduler.xml"] = _xml(_SCHEDULER)
        content[folder / "log4j.properties"] = _LOG4J
    # The jars lack the pages of HDFS; empty ones are enough for its statistics and WebHDFS.
    for page in ("hdfs", "datanode"):
        content[layout.folder / "web" / "webapps" / page / "WEB-INF" / "web.xml"] = "<web-app/>\n"
    return content


def _xml(properties: Properties) -> str:
    lines = [
        f"  <property><name>{escape(name)}</name><value>{escape(str(value))}</value></property>\n"
        for name, value in properties.items()
    ]
    return f"<configuration>\n{''.join(lines)}</configuration>\n"


def _core(layout: Layout) -> Properties:
    return {"fs.defaultFS": f"hdfs://{layout.address('namenode')}", "hadoop.tmp.dir": f"{layout.folder}/tmp"}


def _hdfs(layout: Layout, node: int | None) -> Properties:
    properties: Properties = {
        "dfs.namenode.rpc-address": layout.address("namenode"),
        "dfs.namenode.http-address": layout.address("namenode-web"),
        "dfs.namenode.name.dir": f"file://{layout.folder}/name",
        "dfs.replication": layout.nodes,
        # The NameNode sees all DataNodes come from 127.0.0.1, so everybody goes by the name that they give.
        "dfs.namenode.datanode.registration.ip-hostname-check": "false",
        "dfs.client.use.datanode.hostname": "true",
        "dfs.datanode.use.datanode.hostname": "true",
        # With so few nodes, a write goes on with the replicas that are left.
        "dfs.client.block.write.replace-datanode-on-failure.policy": "NEVER",
        # A DataNode is taken for dead after 2 x 5 + 10 x 1 seconds.
        "dfs.heartbeat.interval": 1,
        "dfs.namenode.heartbeat.recheck-interval": 5000,
        "dfs.namenode.safemode.extension": 0,
        "dfs.namenode.resource.du.reserved": 0,
    }
    if node is not None:
        properties |= {
            "dfs.datanode.data.dir": f"file://{layout.folder}/node{node}/blocks",
            "dfs.datanode.hostname": host(node),
            "dfs.datanode.address": f"{host(node)}:0",
            "dfs.datanode.http.address": f"{host(node)}:0",
            "dfs.datanode.ipc.address": f"{host(node)}:0",
        }
    return properties


def _yarn(layout: Layout, node: int | None) -> Properties:
    properties: Properties = {
        "yarn.resourcemanager.hostname": "localhost",
        "yarn.resourcemanager.address": layout.address("resourcemanager"),
        "yarn.resourcemanager.scheduler.address": layout.address("scheduler"),
        "yarn.resourcemanager.resource-tracker.address": layout.address("tracker"),
        "yarn.resourcemanager.admin.address": layout.address("admin"),
        "yarn.resourcemanager.webapp.address": layout.address("resourcemanager-web"),
        # Half a minute otherwise, where a node starts before its master.
        "yarn.resourcemanager.connect.retry-interval.ms": 1000,
        # A node is lost after this long.
        "yarn.nm.liveness-monitor.expiry-interval-ms": 15_000,
        "yarn.resourcemanager.nm.liveness-monitor.interval-ms": 1000,
        "yarn.scheduler.minimum-allocation-mb": 128,
        "yarn.scheduler.maximum-allocation-mb": _NODE_MB,
        "yarn.nodemanager.resource.memory-mb": _NODE_MB,
        "yarn.nodemanager.vmem-check-enabled": "false",
        "yarn.nodemanager.pmem-check-enabled": "false",
        "yarn.nodemanager.disk-health-checker.enable": "false",
        "yarn.nodemanager.aux-services": "mapreduce_shuffle",
    }
    if node is not None:
        properties |= {
            "yarn.nodemanager.hostname": host(node),
            "yarn.nodemanager.address": f"{host(node)}:0",
            "yarn.nodemanager.localizer.address": f"{host(node)}:0",
            "yarn.nodemanager.webapp.address": f"{host(node)}:0",
            "yarn.nodemanager.local-dirs": f"{layout.folder}/node{node}/local",
            "yarn.nodemanager.log-dirs": f"{layout.folder}/logs/containers/node{node}",
            "yarn.nodemanager.admin-env": "=".join(layout.mark(node)),
        }
    return properties


def _mapred(layout: Layout) -> Properties:
    java = f"-Xmx{_TASK_MB // 2}m {FAST_JVM}"
    return {
        "mapreduce.framework.name": "yarn",
        # Every node is this machine, so the containers take Hadoop's jars where they lie.
        "mapreduce.application.classpath": f"{layout.jars}/*",
        "mapreduce.shuffle.port": 0,
        "mapreduce.jobhistory.address": layout.address("history"),
        "mapreduce.jobhistory.webapp.address": layout.address("history-web"),
        "mapreduce.jobhistory.admin.address": layout.address("history-admin"),
        "yarn.app.mapreduce.am.resource.mb": _TASK_MB,
        "yarn.app.mapreduce.am.command-opts": java,
        "mapreduce.map.memory.mb": _TASK_MB,
        "mapreduce.map.java.opts": java,
        "mapreduce.reduce.memory.mb": _TASK_MB,
        "mapreduce.reduce.java.opts": java,
        "mapreduce.task.io.sort.mb": 32,
    }


_SCHEDULER: Properties = {
    "yarn.scheduler.capacity.root.queues": "default",
    "yarn.scheduler.capacity.root.default.capacity": 100,
    "yarn.scheduler.capacity.maximum-am-resource-percent": "0.9",
    # Containers are spread over the nodes rather than heaped on the first that has room.
    "yarn.scheduler.capacity.per-node-heartbeat.multiple-assignments-enabled": "false",
}
