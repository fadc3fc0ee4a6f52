"""The process that talks to Ray for a loader: it starts, watches and ends workers of a cluster.

It is a process of its own because of what Ray does to a process that has joined a cluster. When the
cluster's head has been gone for a minute, Ray ends that process at once, without an exception. And
a child that is forked from it, such as a local worker, must not use Ray. So training never joins.
It receives the workers' addresses through a pipe, keeps the last ones when this process ends, and
starts it again.

A process has the workers of one loader. They end with it, because Ray ends the actors of a driver
that has ended.
"""
