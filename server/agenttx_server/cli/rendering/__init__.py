"""What the commands show to people: records in, rich renderables out. Nothing here calls a server."""
