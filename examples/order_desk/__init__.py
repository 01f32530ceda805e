"""The parts of examples/demo.py: the agent, the server around it, what is shown and what is checked."""
