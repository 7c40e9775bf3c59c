"""Where tasks run: `base` is the contract, then one module per platform.

launcher ─▶ base.Platform ◀─ supervised.SupervisedPlatform ◀─ local, spark
                                       │
                             supervisor.Supervisor ─▶ crew.Crew ─▶ task agents

         base.Platform ◀─ htcondor.HTCondor ─▶ htcondor_plan, _submit (pure) ─▶ htcondor_access ─▶ schedd
                                           ◀── htcondor_events (pure) ◀── job event logs
                                           ◀── htcondor_live ◀── condor_tail, where no agent sends a task's output

`companions` are Gridflow's own processes beside a run.
"""
