"""The environment variables through which a task finds its feeds."""

#: `host:port` of the feeds' coordinator.
FEEDS = "GRIDFLOW_FEEDS"
