"""The AgentTx server: transactions, with rollback, for the tool calls of LLM agents."""
