"""`elastic-ctl doctor`: what is wrong with this machine, with etcd, or between the nodes of a job, and the fix."""
