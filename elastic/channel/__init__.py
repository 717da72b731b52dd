"""The local channel between an agent and its workers: messages, both ends, and shared memory."""
