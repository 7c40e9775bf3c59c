"""What runs inside a task.

environment ─▶ identity ─▶ agent ── joins the rendezvous ─▶ roster ─▶ tf_config ─▶ TF_CONFIG, DTENSOR_*, arguments
                             │
                             ├─ gpus ─▶ claim, held until the program is gone
                             └─ child ─▶ program (the user's script, module, function or command; or a service)
                                           └─ keras_multiworker, context

On HTCondor, where nobody outside watches over a run, `htcondor` is around the agent, and in the first task `leader`.
"""
