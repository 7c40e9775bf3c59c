"""The command line: `main` finds the verb, then one module per verb; `job_options` and `view` serve several.

gridflow run ─▶ job_options ─▶ Job ─▶ launch.submit ─▶ Run ─▶ view
"""
