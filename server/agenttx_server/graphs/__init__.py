"""Graphs: what one is, whether it is sound, and what a superstep of it does to state and work.

Everything here is pure: no clock, no randomness, no I/O, no task of its own. A scheduler calls it
in this order (docs/decisions/0019):

1. :func:`.compiler.compile_graph` makes a definition a :class:`.compiled_graph.CompiledGraph`, or says
   everything that is wrong with it.
2. :func:`.boundary.first_work` makes input the first work; :func:`.tasks.order_tasks` makes work tasks.
3. :func:`.node_results.read_result` reads what a node answered.
4. :func:`.fold.fold` folds the results of a superstep into a new state, all or nothing.
5. :func:`.boundary.next_work` routes on the folded state: joins, deferred nodes, what comes next.
"""
