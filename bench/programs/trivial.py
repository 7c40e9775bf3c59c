"""Notes when it was started."""

import os
import time

started = time.time()
with open(os.path.join(os.environ["STAMPS"], str(os.getpid())), "w") as stamp:
    stamp.write(str(started))
