"""Records whose ancestry is known, and the pure rules by which pipelines make them.

Nothing here does I/O or asks for the time: a definition is read (:mod:`.document`, :mod:`.yaml_text`), checked whole
(:mod:`.validation`) and compiled (:mod:`.plan`); :mod:`.dataflow` says what each action is called with and what its
answers become; :mod:`.verification` checks what came of it. The runner, the store and the API are built on these.
"""
