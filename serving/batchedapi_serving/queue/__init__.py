"""One queue for all replicas: requests wait in Redis, web processes and workers are elsewhere.

    web process: `engine` ── `broker` ── Redis ── `broker` ── `puller`: a worker's dispatcher

`entries` is what lies in Redis, `fields` what may be in it, `unreadable` counts what is not;
`broker` has the commands, and core's `shared_queue` decides. Loaded where a manifest has
`serverSideBatching.queue`, and nowhere else.
"""
