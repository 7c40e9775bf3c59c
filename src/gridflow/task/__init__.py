"""What runs inside a task.

environment ─▶ identity ─▶ agent ── joins the rendezvous ─▶ roster ─▶ tf_config ─▶ TF_CONFIG, DTENSOR_*, arguments
                             │
                             └─ child ─▶ program (the user's script, module, function or command; or a service)
                                           └─ keras_multiworker, context
"""
