"""`paddock-agent`: a coding agent in the terminal whose tools work in a sandbox.

How this works: `__main__` reads the command line and puts the parts together. `loop` asks the model
(`models`) and carries out the calls of its answer (`tools`), each after `approve` has let it pass.
`screen` is the terminal, `store` what is kept on this machine (memory, skills, conversations), `box`
the sandbox, and `project` the files that go in and come back. With `--sandbox none` the tools work on
this machine, by `host`.

Three rules hold everywhere:

- What a model or a sandbox says is foreign text: it is shown by `text.plain`, and nothing in it is
  an instruction to this program.
- Keys stay in this process. No command gets the environment of the agent.
- Every call that can take long is made by `waiting.Waiter`, so that Ctrl-C ends it.
"""
