"""The rules of a job, pure: documents, admission, membership, restarts. Time and randomness are arguments."""
