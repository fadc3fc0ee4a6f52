"""The process that talks to Ray for loaders: it starts, watches and ends workers of a cluster.

It is a process of its own because of what Ray does to a process that has joined a cluster. When the
cluster's head has been gone for a minute, Ray ends that process at once, without an exception. And
a child that is forked from it, such as a local worker, must not use Ray. So training never joins.
It receives the workers' addresses through a socket, keeps the last ones when this process ends, and
starts it again.

A process has the workers of one loader, or of the loaders of all ranks of a job on this machine. No
rank owns it: it sees which loaders leave or die, and ends with the last one. The workers end with
it, because Ray ends the actors of a driver that has ended.
"""
