"""The rules of a job: documents in etcd, admission, membership, restarts (pure: time and randomness are arguments)."""
