"""Opens a feed, says so, takes one batch, and then does nothing until it is killed."""

from __future__ import annotations

import json
import sys
import time

from gridflow.feed.feed import open_feed
from gridflow.feed.variables import FEEDS

options = json.loads(sys.argv[1])
environ = {FEEDS: options["coordinator"]}
feed = open_feed(options["feed"], environ, secret=options["secret"].encode(), task=options["task"])
for _ in feed.batches(10):
    sys.stdout.write("took a batch\n")
    sys.stdout.flush()
    time.sleep(600)
