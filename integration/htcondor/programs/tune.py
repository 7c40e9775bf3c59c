"""Give a result that depends on the arguments, and fail where they are too large."""

import argparse
import json

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--seed", type=int)
given = parser.parse_args()
if given.lr > 0.5:
    raise SystemExit(3)
print(json.dumps({"loss": given.lr * given.seed}))  # noqa: T201
