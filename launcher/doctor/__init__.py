"""`elastic-ctl doctor`: checks this machine, etcd and the nodes of a job, and names the fix for each problem."""
