"""Where tasks run: `base` is the contract, then one module per platform.

launch ─▶ base.Platform ◀─ local ─▶ local_supervisor ─▶ task agents
"""
