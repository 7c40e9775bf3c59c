"""How the tasks of a run find each other, and how the run's supervisor and its tasks stay in touch.

    task's agent                                         run's supervisor
    client.Client ── messages.Channel ══ TCP ══ messages.Channel ── server.Server ──► on_event(task, message)
          │                                                              │
          └──────────────► roster.Roster (pure) ◄────────────────────────┘

A task joins with its address and waits; once all expected tasks have joined, each is sent the roster. The connection
then stays open: the agent sends heartbeats and reports, the supervisor tells a task what to do, and a dropped
connection tells each side that the other is gone.

Where no supervisor runs, tasks meet through files instead: `board`, over HTCondor's `chirp`, and `reachability` before
they start. `links` carry data, between Spark's driver and its executors.

`roster` and `messages` do no I/O. `client` is synchronous and loads little, for it starts with every task; only
`server` uses asyncio. Import what you need from the module that has it: this package imports none of them.
"""
