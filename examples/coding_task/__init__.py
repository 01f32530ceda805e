"""The parts of the coding agent: a small project, a test runner, a model with a script."""
