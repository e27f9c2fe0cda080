"""One queue for all replicas: requests wait in Redis, web processes and workers are elsewhere.

    web process: `engine` ── `line` ── Redis ── `line` ── `puller`, `answers`: a worker's dispatcher

`entries` is what lies in Redis, `fields` what may be in it, `unreadable` counts what is not;
`line` keeps a `broker` connected, which has the commands, and core's `shared_queue` decides.
Loaded where a manifest has `serverSideBatching.queue`, and nowhere else.
"""
