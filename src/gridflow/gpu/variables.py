"""The environment variables through which GPUs are declared, claimed and granted."""

#: A `gpus.toml`, besides the places where one is looked for.
DECLARED = "GRIDFLOW_GPUS"
#: The folder of the host's ledger.
LEDGER = "GRIDFLOW_GPU_LEDGER"
#: The grant of a task, as JSON.
GRANT = "GRIDFLOW_GRANT"
#: `off`: the program of a task sees to TensorFlow's limits itself.
LIMITS = "GRIDFLOW_GPU_LIMITS"
#: CUDA's own: the devices that a process sees.
VISIBLE = "CUDA_VISIBLE_DEVICES"
NO_DEVICE = "-1"
