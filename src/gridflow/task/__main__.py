"""The task agent: `python -m gridflow.task`."""

import sys

from gridflow.task.agent import main

sys.exit(main())
