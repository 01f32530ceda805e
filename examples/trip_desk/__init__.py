"""The parts of the travel booking: a service of its own process, tools over it, an agent with a script."""
