"""Rows on their way from Spark into the tasks of a run; nothing here knows Spark itself.

    Spark's Python worker                 driver                          task
    sender.send ───── ask, grant ───► coordinator.Coordinator ◄── report, news ─── receiver.Receiver
        │ blocks                          │ state.FeedState (pure)                     │ inbox.Inbox
        │                                 └ pacing.Pacing, Loans (pure)                │ reading.Reader, answers.Answers
        └────────────── slices of blocks, by Unix socket or TCP ──────────────────────►│
                                                                                       └ feed.Feed

A sender makes blocks of what Spark gives it, asks for each where its rows go, and sends them there. The coordinator
grants what the consumers have room for, so a consumer takes whatever reaches it and no one can block another. A block
is known by its partition and its number there, and a slice is taken once, so a partition may be sent any number of
times. For inference a whole block is lent to one consumer, and its answer comes back on the same link (`exchange`).

Import what you need from the module that has it: this package imports none of them.
"""
