"""Between the processes of a replica: frames on Unix sockets, and memory that two have mapped."""
