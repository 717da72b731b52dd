"""The state of a job, read from etcd and from its agents, and the orders of an operator.

Shared by elastic-ctl, its doctor and its page.
"""
