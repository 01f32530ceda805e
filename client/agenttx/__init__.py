"""AgentTx: transactions for the tool calls of LLM agents."""
