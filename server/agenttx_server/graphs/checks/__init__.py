"""What the compiler checks, a module for each kind of finding. Each check is a function that yields findings."""
