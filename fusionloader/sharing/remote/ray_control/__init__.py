"""The process that speaks to Ray for a loader: starts, watches and ends workers of a cluster.

It is a process of its own because of what Ray does to a process that has joined a cluster. When the
cluster's head has been gone for a minute, Ray ends that process at once, without an exception; and
a child that is forked from it, as local workers are, must not touch Ray. So training never joins.
It is told the workers' addresses through a pipe, keeps those that it knows when this process ends,
and starts it again.

One process has one loader's workers. They end with it: Ray ends the actors of a driver that is
gone.
"""
