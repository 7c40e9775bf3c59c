"""The command line: `main` finds the verb, then one module per verb; the others serve several.

gridflow run ─▶ job_options ─▶ Job ─▶ launch.submit ─▶ Run ─▶ view
gridflow status, logs, cancel ─▶ existing_run ─▶ Run
"""
