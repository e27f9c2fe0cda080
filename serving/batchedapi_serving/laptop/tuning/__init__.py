"""`batchedapi tune`: measures one replica, searches settings in simulation, runs the best for real.

cli.tune ── options and exit codes
    run      ── the stages in order; keeps what is known when it is interrupted
        replica   ── `batchedapi serve` as a process, with other values in its manifest
        load      ── open-loop requests, and one client for each lane
        measuring ── rows to ask with; t(n) by size, a ladder of loads
        (search: batchedapi_core.simulation.tuning)
    report   ── table, patch, JSON and picture
"""
