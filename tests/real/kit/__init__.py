"""What the real-engine tests stand on: processes, sockets, metrics, tables."""
