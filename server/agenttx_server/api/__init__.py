"""The gRPC edge: the only package that knows gRPC and the generated messages."""
