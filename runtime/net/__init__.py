"""Messages on their way: protobuf and frames, TLS transport, and who dials whom."""
