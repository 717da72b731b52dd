"""A job as the store and its agents describe it, and the orders of an operator.

Shared by elastic-ctl, its doctor and its page.
"""
