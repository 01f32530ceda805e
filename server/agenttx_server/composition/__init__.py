"""The parts that a server is made of, each from the settings: main puts them together."""
