"""The command line: `python -m gridflow`."""

from gridflow.cli.main import main

main()
