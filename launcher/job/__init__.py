"""The state of a job, read from etcd and from its agents, and the actions of users.

Shared by elastic-ctl, its doctor and its dashboard.
"""
