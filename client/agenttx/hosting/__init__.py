"""A worker's inside: its connections to the servers, and the calls that it runs for them."""
