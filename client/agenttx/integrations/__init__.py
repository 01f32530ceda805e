"""Agent frameworks over AgentTx: their tool calls become steps, their prompts are told what was undone.

- `agenttx.integrations.function_calling`: loops of your own over Chat Completions, Responses or Messages; needs nothing.
- `agenttx.integrations.langchain`: tools of LangChain, in `create_agent` and in graphs with a `ToolNode`;
  ``pip install 'agenttx[langchain]'``.
- `agenttx.integrations.openai_agents`: function tools of the OpenAI Agents SDK; ``pip install 'agenttx[openai-agents]'``.

Plain functions and tools of a framework that live in the agent's own process are offered to the server by
`agenttx.integrations.hosting`. See docs/integrations.md.
"""
