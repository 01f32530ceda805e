"""Durable runs of graphs: what is kept of them, and what carries them out superstep by superstep."""
