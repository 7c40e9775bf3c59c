#!/bin/sh
# Gridflow's wrapper: starts a task in the slot, or says with its exit code why it cannot.
#   121  the scratch folder cannot be used
#   122  there is no Python 3.11 or newer in the image or on the machine
#   123  the part of Gridflow that travels with the task cannot be loaded
GRIDFLOW_RUN_DIR=${_CONDOR_SCRATCH_DIR:-$PWD}
export GRIDFLOW_RUN_DIR
cd "$GRIDFLOW_RUN_DIR" && mkdir -p logs results checkpoints tensorboard outputs || exit 121
# All tasks of the parallel universe have one environment, and each its number.
if [ -z "$GRIDFLOW_TASK" ]; then
    # shellcheck disable=SC2086
    set -- $GRIDFLOW_TASKS
    shift "$_CONDOR_PROCNO"
    GRIDFLOW_TASK=$1
    export GRIDFLOW_TASK
fi
log=logs/$(echo "$GRIDFLOW_TASK" | tr / -).log
exec >>"$log" 2>&1 || exit 121

# HTCondor gives a job no PATH, and without one Python does not know where it is.
PATH=${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}
export PATH
for python in $GRIDFLOW_PYTHON python3 python3.13 python3.12 python3.11 python; do
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break
    python=
done
if [ -z "$python" ]; then
    echo "[gridflow] error: there is no Python 3.11 or newer here ($(python3 --version 2>&1))"
    exit 122
fi

# An image may have Gridflow itself, with its compiled parts; any other gets what came along.
finds_gridflow() { "$python" -P -c 'from importlib.util import find_spec; find_spec("gridflow.task.htcondor").loader' 2>/dev/null; }
if ! finds_gridflow; then
    # Unpacked, so that Python keeps what it compiles: the program loads it again.
    "$python" -P -m zipfile -e gridflow.zip package
    PYTHONPATH=$GRIDFLOW_RUN_DIR/package${PYTHONPATH:+:$PYTHONPATH}
    export PYTHONPATH
    if ! finds_gridflow; then
        echo "[gridflow] error: gridflow.zip, which came with the task, cannot be loaded"
        exit 123
    fi
fi
exec "$python" -P -m gridflow.task.htcondor
