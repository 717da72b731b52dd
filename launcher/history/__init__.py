"""The history of a job: its events, recoveries, downtime, goodput and training curve (pure)."""
